"""Prints counts of drafts in every convention: ``python -m pipeline.reconcile FILE``.

FILE is a page of /metrics, answers of vLLM, SGLang or llama.cpp as JSON, an artifact of stage
decoding (its folder), or a Parquet table of calls (answer, drafted, accepted, emitted; confidence,
a list of the drafter's probabilities of its tokens, if they are known). Prints calls, accepted
tokens and the rates by place. With ``study=mini criteria=greedy`` the same numbers stand beside it
for drafts of the same length: along the target's own answers (stage acceptance), and as decoded
(stage decoding), where they were computed.

Where calls can be told apart it also prints what vLLM, SGLang, specdec_bench, Spec-Bench and
TensorRT-LLM would print of them, with the formulas. Writes these tables, NVIDIA's
speculation_profile.json, and settings with which vLLM and SGLang accept at these rates (and, where
passes over batches were timed, vLLM's draft length by batch size) below outputs/reconcile/.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.decoding import conventions as of
from analysis.decoding.speed import break_even_by_batch
from analysis.report.escape import without_formulas
from analysis.statistics.proportions import calibration_error, reliability
from analysis.statistics.trajectories import Trajectories, drafts_made
from pipeline import sweeps
from pipeline.console import command
from pipeline.decoding.decoded import read_decoded
from pipeline.errors import PipelineError
from pipeline.formats.engine_answers import counted
from pipeline.formats.engine_counts import read_counts
from pipeline.loader import Study
from pipeline.plan.composition import composed, settings_of
from pipeline.plan.stage import SummaryRow
from pipeline.store.artifacts import Artifact
from pipeline.store.node import slug

OWN = ("engine.", "outputs=")  # overrides that ask for no study
TableRows = tuple[SummaryRow, list[SummaryRow]]  # of the table of calls, and of that of places


class EngineRun(NamedTuple):
    """Calls of one engine or method.

    Attributes:
        name: as printed.
        length: drafted tokens of a full draft, 0 where it is not told.
        rows: of both tables.
        calls: one row a call (`conventions.NEEDED`), None where calls can't be told apart.
        schedule: vLLM's draft length by batch size.
    """

    name: str
    length: int
    rows: TableRows
    calls: pd.DataFrame | None = None
    schedule: Sequence[Sequence[int]] = ()


def main(arguments: Sequence[str]) -> None:
    """Read the file that the command line names, and print and write all of it."""
    with command("python -m pipeline.reconcile FILE [OVERRIDES]", __doc__, arguments):
        files = [word for word in arguments if "=" not in word]
        overrides = [word for word in arguments if "=" in word]
        if len(files) != 1:
            raise PipelineError(
                f"{len(files)} files were given: give one, a page of /metrics, answers, a table "
                "of calls, or an artifact of stage decoding: "
                "python -m pipeline.reconcile FILE [study=NAME criteria=RULE]"
            )
        path = Path(files[0])
        settings = settings_of(composed(overrides))
        runs = list(read_runs(path))
        if not runs:
            raise PipelineError(f"{path} holds no calls with drafted chains")
        found = [run.rows for run in runs]
        if any(not word.startswith(OWN) for word in overrides):
            study = Study(*(word for word in overrides if not word.startswith("engine.")))
            found += predicted_rows(study, _length(runs, settings.engine.draft_length))
        directory = Path(settings.outputs) / "reconcile" / slug(path.name)
        directory.mkdir(parents=True, exist_ok=True)
        for run in runs:
            if run.calls is not None:
                reconcile(run, run.calls, directory)
        places = [place for _, more in found for place in more]
        for name, rows in (("calls", [row for row, _ in found]), ("places", places)):
            (directory / f"{name}.csv").unlink(missing_ok=True)  # of an earlier file
            if rows:
                print()
                sweeps.print_table(rows)
                without_formulas(pd.DataFrame(rows)).to_csv(directory / f"{name}.csv", index=False)
        print("\nof_all: of all calls with a draft; conditional: of those that reached the place")
        print(f"tables, profiles and settings: {directory}/", flush=True)


def _length(runs: Sequence[EngineRun], asked: int | None) -> int:
    """Return the draft length of all runs.

    Raises:
        PipelineError: it is not told, or is not the one that was given.
    """
    told = {run.length for run in runs if run.length}
    if len(told) != 1 and asked is None:
        raise PipelineError(
            "engine.draft_length must be given: the file does not say how many tokens a draft has"
            + (f", or has several: {sorted(told)}" if told else "")
        )
    if told and asked is not None and asked not in told:
        raise PipelineError(
            f"engine.draft_length={asked}: the file has drafts of "
            f"{' and '.join(map(str, sorted(told)))} tokens: leave it out"
        )
    return asked or told.pop()


def read_runs(path: Path) -> Iterator[EngineRun]:
    """Yield the runs that a file holds.

    Raises:
        PipelineError: it can't be read.
    """
    if path.is_dir():
        yield from _decoded(path)
    elif path.suffix == ".parquet":
        calls = _table(path)
        length = max(1, int(calls["drafted"].max()))
        yield EngineRun(path.stem, length, measured_rows({"from": path.stem}, calls, length), calls)
    else:
        yield _counted(path)


def measured_rows(whose: SummaryRow, calls: pd.DataFrame, length: int) -> TableRows:
    """Return the row of calls (drafted, accepted) that begins with `whose`, and those of places."""
    accepted = int(calls["accepted"].sum())
    row = {**whose, "calls": len(calls), "accepted": accepted}
    row["tokens_per_call"] = 1 + accepted / len(calls)
    return row, [{**whose, **place} for place in of.place_rows(calls, length)]


def _table(path: Path) -> pd.DataFrame:
    try:
        calls = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path} is no Parquet table: {error}") from error
    lacking = [name for name in of.NEEDED if name not in calls]
    if lacking or calls.empty or calls[of.NEEDED].isna().any(axis=None):
        raise PipelineError(
            f"{path}: give one row a call with {', '.join(of.NEEDED)}, none of them empty"
            + (f"; it lacks {', '.join(lacking)}" if lacking else "")
        )
    if ((calls["accepted"] < 0) | (calls["accepted"] > calls["drafted"])).any():
        raise PipelineError(f"{path}: accepted must lie from 0 to drafted")
    if "confidence" in calls:
        told = calls[calls["drafted"] > 0]  # null elsewhere, maybe
        each = pd.to_numeric(told["confidence"].explode(), errors="coerce")
        whole = told.empty or (told["confidence"].str.len() == told["drafted"]).all()
        if not whole or not each.between(0, 1).all():
            raise PipelineError(f"{path}: confidence must be a list of `drafted` numbers in [0, 1]")
    return calls


def _decoded(folder: Path) -> Iterator[EngineRun]:
    """Yield the runs of an artifact of stage decoding that drafted chains."""
    if not (folder / "calls.parquet").is_file() or not (folder / "record.json").is_file():
        raise PipelineError(f"{folder} is no artifact of stage decoding: give its folder")
    decoded = read_decoded("", "", Artifact(folder))
    chains = (decoded.runs["draft_length"] > 0) & ~decoded.of_trees
    for run in decoded.runs.index[chains]:
        row = decoded.runs.loc[run]
        length = int(row["draft_length"])
        calls = decoded.calls[decoded.calls["run"] == run].rename(columns={"prompt_id": "answer"})
        schedule: list[list[int]] = []
        if len(decoded.passes) and row["drafter"] == "model" and calls["tested"].sum():
            rate = float(calls["accepted"].sum() / calls["tested"].sum())
            best = break_even_by_batch(decoded, rate)
            schedule = of.batch_schedule(best["batch"].tolist(), best["draft_length"].tolist())
        name = f"{row['method']}, gamma {length}, T {row['temperature']:g}"
        yield EngineRun(name, length, measured_rows({"from": name}, calls, length), calls, schedule)


def _counted(path: Path) -> EngineRun:
    """Return what an engine counted; calls where every answer has a histogram.

    A histogram does not say which draft was shorter: all are taken to be of full length, and every
    call to emit what it accepted and one token more.
    """
    counts = read_counts(path)
    print(f"{path}: {counts.engine}, {counts.pieces}; left out: {counted(counts.excluded)}")
    whose: SummaryRow = {"from": counts.engine}
    row: SummaryRow = {
        **whose,
        "calls": counts.calls,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "of_drafted": counts.accepted / counts.drafted,
        "tokens_per_call": counts.tokens_per_call,
    }
    rows = row, [{**whose, **place} for place in counts.places]
    if not counts.by_place or not counts.histograms:
        print(
            "the file has sums over calls, so only the engine's own numbers can be computed; "
            "answers with draft counts give those of every tool (docs/answers.md)"
        )
        return EngineRun(counts.engine, len(counts.by_place), rows)
    calls = [
        {"answer": answer, "drafted": len(histogram) - 1, "accepted": n, "emitted": n + 1}
        for answer, histogram in counts.histograms.items()
        for n, times in enumerate(histogram)
        for _ in range(times)
    ]
    return EngineRun(counts.engine, len(counts.by_place), rows, pd.DataFrame(calls))


def reconcile(run: EngineRun, calls: pd.DataFrame, directory: Path) -> None:
    """Print a run in every convention, and write its table, profile and settings."""
    length = run.length
    table = of.conventions(calls, length)
    counts = calls["accepted"].value_counts().sort_index()
    answers = calls["answer"].nunique()
    print(f"\n{run.name}: {answers} answers, {len(calls)} calls, drafts of {length}")
    print(
        "a accepted, d drafted, e emitted tokens of C calls, D of them with a draft; gamma drafted"
    )
    shown = table.drop(columns="source").to_dict("records")
    sweeps.print_table([{str(name): value for name, value in row.items()} for row in shown])
    print("calls by accepted tokens: " + ", ".join(f"{n}: {times}" for n, times in counts.items()))
    if "confidence" in calls:
        sums = _reliability(calls)
        bins = pd.DataFrame(sums, columns=["tokens", "confidence", "accepted"])
        bins = pd.concat([bins["tokens"], bins.iloc[:, 1:].div(bins["tokens"], axis=0)], axis=1)
        bins.dropna().to_csv(directory / f"{slug(run.name)}-reliability.csv", index=False)
        print(f"calibration error of the drafter's confidence (ECE): {calibration_error(sums):.4f}")
    settings = of.synthetic_settings(calls, length)
    if run.schedule:
        settings["vllm"]["num_speculative_tokens_per_batch_size"] = run.schedule
    files = {"speculation_profile": of.speculation_profile(calls, length), "settings": settings}
    for what, content in files.items():
        path = directory / f"{slug(run.name)}-{what}.json"
        path.write_text(json.dumps(content, indent=2) + "\n")
    without_formulas(table).to_csv(directory / f"{slug(run.name)}-conventions.csv", index=False)


def _reliability(calls: pd.DataFrame) -> np.ndarray:
    """Return the sums of `reliability` over the tokens that were tested: a call's first a + 1."""
    drafted = calls.reset_index(drop=True).explode("confidence").dropna(subset="confidence")
    place = drafted.groupby(level=0).cumcount()
    tested = place <= drafted["accepted"]
    confidence = drafted["confidence"].to_numpy(np.float64)[tested]
    accepted = (place < drafted["accepted"]).to_numpy()[tested]
    return reliability(confidence, accepted, np.zeros(len(confidence), dtype=np.intp)).sum(axis=0)


def predicted_rows(study: Study, length: int) -> Iterator[TableRows]:
    """Yield the rows of each rule of `criteria`, for drafts of `length` tokens.

    Raises:
        PipelineError: stage acceptance was not computed, or is one of engines' logs.
    """
    nodes = study.nodes
    if not nodes["acceptance"]:
        raise PipelineError("the study has no drafter: add the engine's, for instance drafter=mini")
    for at, (target, node) in enumerate(zip(study.targets, nodes["acceptance"], strict=True)):
        made = study.artifact("acceptance", target)
        table = made.read(columns=["rule", "position", "accepted"]).to_pandas()
        known = made.read("statistics").to_pandas()
        errors = known[known["statistic"] == "calibration_error"].set_index("rule")["value"]
        found = study.store.find(nodes["decoding"][at]) if nodes["decoding"] else None
        decoded = None if found is None else read_decoded(node.label, "", found)
        for rule in (rule.label for rule in node.spec.rules):
            whose: SummaryRow = {"target": node.run.target, "rule": rule}
            mine = table[table["rule"] == rule]
            steps = Trajectories.from_positions(mine["position"].to_numpy())
            tested, accepted = drafts_made(mine["accepted"].to_numpy(), steps, length)
            calls = pd.DataFrame({"drafted": tested, "accepted": accepted})
            row, by_place = measured_rows({"from": "stage acceptance", **whose}, calls, length)
            yield row | {"calibration_error": errors.get(rule)}, by_place
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
