"""One log, every convention: ``python -m pipeline.reconcile FILE``.

FILE is an artifact of stage decoding (its folder), a Parquet table of calls (answer, drafted,
accepted, emitted; confidence, a list of the drafter's probabilities, if it is known), or answers of
vLLM or SGLang as JSON that count with a histogram. Prints what vLLM, SGLang, specdec_bench,
Spec-Bench and TensorRT-LLM would print of the same calls, with the formulas, the acceptance
histogram, and the rates by place. Writes these tables, NVIDIA's speculation_profile.json, and
settings with which vLLM and SGLang accept at these rates (and, where passes over batches were
timed, vLLM's draft length by batch size) below outputs/reconcile/.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.decoding import conventions as of
from analysis.report.escape import without_formulas
from pipeline import cli, sweeps  # noqa: F401  cli registers the configuration
from pipeline.console import command, one_file
from pipeline.errors import PipelineError
from pipeline.formats.engine_answers import FormatError
from pipeline.formats.engine_counts import request_of
from pipeline.formats.engine_lines import body_of, read_objects
from pipeline.plan.composition import composed, settings_of
from pipeline.store.node import slug

Run = tuple[str, pd.DataFrame, int, list[list[int]]]  # name, calls, draft length, vLLM's schedule


def main(arguments: Sequence[str]) -> None:
    """Read the file that the command line names, and print and write all of it."""
    with command("python -m pipeline.reconcile FILE [outputs=DIR]", __doc__, arguments):
        path, overrides = one_file(
            arguments,
            "an artifact of stage decoding, a table of calls, or answers: "
            "python -m pipeline.reconcile FILE",
        )
        outputs = settings_of(composed(overrides)).outputs
        directory = Path(outputs) / "reconcile" / slug(path.name)
        directory.mkdir(parents=True, exist_ok=True)
        for run in read_runs(path):
            reconcile(run, directory)
        print(f"\ntables, profiles and settings: {directory}/", flush=True)


def reconcile(run: Run, directory: Path) -> None:
    """Print a run in every convention, and write its tables, profile and settings."""
    name, calls, length, schedule = run
    tables = {"conventions": of.conventions(calls, length)}
    places = of.places(calls, length)
    tables["places"] = pd.DataFrame(places)
    counts = calls["accepted"].value_counts().sort_index()
    print(f"\n{name}: {calls['answer'].nunique()} answers, {len(calls)} calls, drafts of {length}")
    print(
        "a accepted, d drafted, e emitted tokens of C calls, D of them with a draft; gamma drafted"
    )
    shown = tables["conventions"].drop(columns="source").to_dict("records")
    sweeps.print_table([{str(name): value for name, value in row.items()} for row in shown])
    print("calls by accepted tokens: " + ", ".join(f"{n}: {times}" for n, times in counts.items()))
    sweeps.print_table(places)
    if "confidence" in calls:
        tables["reliability"], error = of.reliability(*tested_confidence(calls))
        print(f"expected calibration error of the drafter's confidence: {error:.4f}")
    settings = of.synthetic_settings(calls, length)
    if schedule:
        settings["vllm"]["num_speculative_tokens_per_batch_size"] = schedule
    files: dict[str, Any] = {"speculation_profile": of.speculation_profile(calls, length)}
    for what, content in (files | {"settings": settings}).items():
        path = directory / f"{slug(name)}-{what}.json"
        path.write_text(json.dumps(content, indent=2) + "\n")
    for what, table in tables.items():
        without_formulas(table).to_csv(directory / f"{slug(name)}-{what}.csv", index=False)


def tested_confidence(calls: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the drafter's confidence in every token that was tested, and which were accepted."""
    said, kept = [], []
    for confidence, accepted in calls[["confidence", "accepted"]].itertuples(index=False):
        tested = confidence[: accepted + 1]
        said += list(tested)
        kept += [at < accepted for at in range(len(tested))]
    return np.array(said, dtype=np.float64), np.array(kept, dtype=bool)


def read_runs(path: Path) -> list[Run]:
    """Return the runs that a file holds.

    Raises:
        PipelineError: it can't be read, or has no calls of drafted chains.
    """
    if path.is_dir():
        found = list(_decoded(path))
    elif path.suffix == ".parquet":
        found = [_table(path)]
    else:
        found = list(_answers(path))
    if not found:
        raise PipelineError(f"{path} holds no calls of drafted chains: a tree or none was drafted")
    return found


def _table(path: Path) -> Run:
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
    return path.stem, calls, max(1, int(calls["drafted"].max())), []


def _decoded(folder: Path) -> Iterator[Run]:
    """Yield the runs of an artifact of stage decoding that drafted chains."""
    from analysis.decoding.speed import break_even_by_batch
    from pipeline.store.artifacts import Artifact
    from pipeline.store.decoded import read_decoded

    if not (folder / "calls.parquet").is_file() or not (folder / "record.json").is_file():
        raise PipelineError(f"{folder} is no artifact of stage decoding: give its folder")
    decoded = read_decoded("", "", Artifact(folder))
    chains = (decoded.runs["draft_length"] > 0) & ~decoded.of_trees
    for run in decoded.runs.index[chains]:
        row = decoded.runs.loc[run]
        calls = decoded.calls[decoded.calls["run"] == run].rename(columns={"prompt_id": "answer"})
        schedule: list[list[int]] = []
        if len(decoded.passes) and row["drafter"] == "model" and calls["tested"].sum():
            rate = float(calls["accepted"].sum() / calls["tested"].sum())
            best = break_even_by_batch(decoded, rate)
            schedule = of.batch_schedule(best["batch"].tolist(), best["draft_length"].tolist())
        name = f"{row['method']}, gamma {row['draft_length']}, T {row['temperature']:g}"
        yield name, calls, int(row["draft_length"]), schedule


def _answers(path: Path) -> Iterator[Run]:
    """Yield the calls of answers that engines counted with a histogram.

    A histogram does not say which draft was shorter: all are taken to be of full length, and every
    call to emit what it accepted and one token more.

    Raises:
        PipelineError: an answer has no histogram, or contradicts itself.
    """
    found: dict[str, dict[str, Any]] = {}
    for line, value, _ in read_objects(path, {}):
        body = body_of(value)
        if isinstance(body, str):
            continue
        try:
            name, said = request_of(*body)
        except FormatError as error:
            raise PipelineError(f"{path}, line {line}: the answer {error}") from error
        if said is None:
            continue
        if said["by_place"] is None:
            raise PipelineError(
                f"{path}, line {line}: {said['engine']} gave no histogram of accepted tokens, "
                "without which calls can't be told apart: ask vLLM for per-request metrics, or "
                "SGLang for its meta_info"
            )
        answer = str(line if name is None else name)
        if answer not in found or said["calls"] > found[answer]["calls"]:  # of a stream they grow
            found[answer] = said
    tables: dict[str, list[pd.DataFrame]] = {}
    for answer, said in found.items():
        times = -np.diff([said["calls"], *said["by_place"], 0])
        accepted = np.repeat(np.arange(len(times)), times)
        drafted = np.full(len(accepted), len(said["by_place"]))
        calls = pd.DataFrame({"accepted": accepted, "drafted": drafted, "emitted": accepted + 1})
        tables.setdefault(said["engine"], []).append(calls.assign(answer=answer))
    for engine, parts in tables.items():
        calls = pd.concat(parts, ignore_index=True)
        yield engine, calls, max(1, int(calls["drafted"].max())), []


if __name__ == "__main__":
    main(sys.argv[1:])
