"""Prints counts of drafts in every convention: ``python -m pipeline.reconcile FILE``.

FILE is a page of /metrics, answers of vLLM, SGLang, llama.cpp or Spec-Bench as JSON, an artifact of
stage decoding (its folder), or a Parquet table of calls (answer, drafted, accepted, emitted;
confidence, a list of the drafter's probabilities of its tokens, if they are known). Prints tokens a
pass (of all passes) and a drafting call, and the rates by place. With ``study=mini
criteria=greedy`` the same numbers stand beside it for drafts of the same length: along the target's
own answers (stage acceptance), and as decoded (stage decoding), where they were computed. With
``engine.drafter=prompt_lookup decoding.lookup_match=earliest`` look-up is replayed along the
answers of the file, which may be of a server without drafts; no model is read.

Where calls can be told apart it also prints what vLLM, SGLang, specdec_bench, Spec-Bench and
TensorRT-LLM would print of them, with the formulas. Writes these tables, NVIDIA's
speculation_profile.json, and settings with which vLLM and SGLang accept at these rates (and, where
passes over batches were timed, vLLM's draft length by batch size) below outputs/reconcile/.

``python -m pipeline.reconcile ALONE DRAFTED ...``, pages of /metrics of a server without drafts and
of some with them, or the answers that ``pipeline.ask`` saved of these, prints what a step costs and
how much faster decoding is, and writes the costs for decoding.costs=FILE (engine.drafter names what
drafted).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from analysis.acceptance.judgement import judge
from analysis.decoding import conventions as of
from analysis.report.escape import without_formulas
from analysis.statistics.trajectories import drafts_made
from conf.schema import Config
from pipeline import sweeps
from pipeline.console import command
from pipeline.decoding.decoded import read_decoded
from pipeline.engines.costs import measure_costs, write_costs
from pipeline.engines.runs import EngineRun, TableRows, lookup_rows, measured_rows, read_runs
from pipeline.engines.written.counts import NoCountsError, draft_length
from pipeline.errors import PipelineError
from pipeline.loader import Study
from pipeline.plan.composition import CONFIG_DIR, composed, files_and_overrides, settings_of
from pipeline.plan.stage import SummaryRow
from pipeline.store.distributions import read_steps
from pipeline.store.node import slug

OWN = (CONFIG_DIR, "engine.", "outputs=", "decoding.lookup")  # overrides that ask for no study


def main(arguments: Sequence[str]) -> None:
    """Read the file or the two pages that the command line names, and print and write all."""
    usage = "python -m pipeline.reconcile FILE [OVERRIDES] | ALONE DRAFTED ..."
    with command(usage, __doc__, arguments):
        files, overrides = files_and_overrides(arguments)
        paths = [Path(file) for file in files]
        if not paths:
            raise PipelineError(
                "0 files were given: give one, a page of /metrics, answers, a table "
                "of calls, or an artifact of stage decoding: "
                "python -m pipeline.reconcile FILE [study=NAME criteria=RULE], or several pages, "
                "of a server without drafts and of some with them"
            )
        settings = settings_of(composed(overrides))
        folder = Path(settings.outputs) / "reconcile"
        if len(paths) > 1:
            name = slug("-".join(path.name for path in paths))
            print_costs(paths, settings.engine.drafter, folder / name)
        else:
            print_file(paths[0], settings, overrides, folder)


def print_costs(paths: Sequence[Path], drafter: str, directory: Path) -> None:
    """Print and write the cost of a step, from a run without drafts and runs with them."""
    rows, sentences, costs = measure_costs(paths, drafter)
    sweeps.print_table(rows)
    directory.mkdir(parents=True, exist_ok=True)
    without_formulas(pd.DataFrame(rows)).to_csv(directory / "pages.csv", index=False)
    write_costs(directory / "costs.json", costs)
    print(
        f"{sentences}\ntable: {directory}/pages.csv\n"
        f"costs, for decoding.costs=FILE: {directory}/costs.json",
        flush=True,
    )


def print_file(path: Path, settings: Config, overrides: Sequence[str], folder: Path) -> None:
    """Print and write the counts of one file, beside those of look-up or of a study.

    Raises:
        PipelineError: it can't be read, or the draft length is not known.
    """
    requested = settings.engine.draft_length
    by_lookup = settings.engine.drafter == "prompt_lookup"
    try:
        runs = list(read_runs(path))
    except NoCountsError:  # look-up can be replayed along any answers
        if not by_lookup:
            raise
        runs = []
    if not runs and not by_lookup:
        raise PipelineError(f"{path} holds no calls with drafted chains")
    rows = [run.rows for run in runs]
    if by_lookup:
        rows.append(lookup_rows(path, settings, _length(runs, requested)))
    if any(not word.startswith(OWN) for word in overrides):
        study = Study(*(word for word in overrides if not word.startswith("engine.")))
        rows += predicted_rows(study, _length(runs, requested))
    directory = folder / slug(path.name)
    directory.mkdir(parents=True, exist_ok=True)
    for earlier in [*directory.glob("*.csv"), *directory.glob("*.json")]:
        earlier.unlink()  # of a file of the same name
    for run in runs:
        if run.calls is not None:
            reconcile(run, run.calls, directory)
    places = [place for _, of_run in rows for place in of_run]
    for name, table in (("calls", [row for row, _ in rows]), ("places", places)):
        if table:
            print()
            sweeps.print_table(table)
            without_formulas(pd.DataFrame(table)).to_csv(directory / f"{name}.csv", index=False)
    print("\nof_all: of all calls with a draft; conditional: of those that reached the place")
    print("tokens_per_pass: of all passes; engines print tokens_per_drafting_call")
    if runs and runs[0].page:
        print(
            "One page can't tell whether drafts pay: for the cost of a step and the speed-up give "
            f"the page of the same server without drafts first: ALONE {path.name}"
        )
    print(f"tables, profiles and settings: {directory}/", flush=True)


def _length(runs: Sequence[EngineRun], requested: int | None) -> int:
    """Return the draft length of all runs, as `draft_length` does."""
    return draft_length({run.length for run in runs if run.drafted == run.drafted}, requested)


def reconcile(run: EngineRun, calls: pd.DataFrame, directory: Path) -> None:
    """Print a run in every convention, and write its table, profile and settings."""
    length = run.length
    table = of.conventions(calls, length, run.drafted)
    counts = calls["accepted"].value_counts().sort_index()
    answers = calls["answer"].nunique()
    print(f"\n{run.name}: {answers} answers, {len(calls)} passes, drafts of {length}")
    print(
        "a accepted, d drafted, e emitted tokens of C passes, D of them with a draft; gamma drafted"
    )
    shown = table.drop(columns="source").to_dict("records")
    sweeps.print_table([{str(name): value for name, value in row.items()} for row in shown])
    print("passes by accepted tokens: " + ", ".join(f"{n}: {times}" for n, times in counts.items()))
    settings = of.synthetic_settings(calls, length)
    if run.drafted != run.drafted:  # nothing says which calls had a draft
        del settings["vllm"]
    files = {"speculation_profile": of.speculation_profile(calls, length), "settings": settings}
    for what, content in files.items():
        path = directory / f"{slug(run.name)}-{what}.json"
        path.write_text(json.dumps(content, indent=2) + "\n")
    without_formulas(table).to_csv(directory / f"{slug(run.name)}-conventions.csv", index=False)


def predicted_rows(study: Study, length: int) -> Iterator[TableRows]:
    """Yield the rows of each rule of `criteria`, for drafts of `length` tokens.

    Raises:
        PipelineError: stage acceptance was not computed, or is one of engines' logs.
    """
    nodes = study.nodes
    if not nodes["acceptance"]:
        raise PipelineError("the study has no drafter: add the engine's, for instance drafter=mini")
    for at, (target, node) in enumerate(zip(study.targets, nodes["acceptance"], strict=True)):
        steps = read_steps(study.artifact("drafts", target))
        artifact = study.store.find(nodes["decoding"][at]) if nodes["decoding"] else None
        decoded = None if artifact is None else read_decoded(node.label, "", artifact)
        for verdict in judge(steps, node.spec.rules):
            rule = verdict.rule.label
            whose: SummaryRow = {"target": study.config.targets[target].label, "rule": rule}
            counts = drafts_made(verdict.accepted_by_depth, steps.trajectories, length)
            names = ("drafted", "accepted", "emitted")
            calls = pd.DataFrame(dict(zip(names, counts, strict=True)))
            yield measured_rows({"from": "stage acceptance", **whose}, calls, length)
            if decoded is None:
                continue
            runs = decoded.runs
            same = (runs["rule"] == rule) & (runs["draft_length"] == length)
            for run in runs.index[same & (runs["drafter"] == "model") & runs["tree"].isna()]:
                heat = runs["temperature"][run]
                name = "stage decoding" + (f", T = {heat:g}" if heat else "")
                calls = decoded.calls[decoded.calls["run"] == run]
                calls = calls.assign(drafted=calls["tested"])
                yield measured_rows({"from": name, **whose}, calls, length)


if __name__ == "__main__":
    main(sys.argv[1:])
