"""What an engine counted of its drafts, beside what a study predicts.

``python -m pipeline.engine_metrics metrics.txt`` reads a page of /metrics, or answers as JSON. With
``study=mini criteria=greedy`` the same numbers stand beside it, for drafts of the same length:
along the target's own answers (stage acceptance), and as decoded (stage decoding), where they were
computed. Both tables are written as CSV and Parquet.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from analysis.report.escape import without_formulas
from pipeline import cli
from pipeline.console import command, one_file
from pipeline.errors import PipelineError
from pipeline.formats.engine_counts import Counts, read_counts
from pipeline.plan.composition import composed, settings_of
from pipeline.plan.stage import SummaryRow
from pipeline.store.node import slug

OWN = ("engine.", "outputs=")  # overrides that ask for no study


def main(arguments: Sequence[str]) -> None:
    """Read the file that the command line names, and print and write both tables."""
    with command("python -m pipeline.engine_metrics FILE [OVERRIDES]", __doc__, arguments):
        path, overrides = one_file(
            arguments,
            "a page of /metrics or answers: "
            "python -m pipeline.engine_metrics FILE [study=NAME criteria=RULE]",
        )
        config = composed(overrides)
        settings = settings_of(config)
        counts = counted(path, settings)
        of_calls, of_places = rows_of_engine(counts)
        if any(not word.startswith(OWN) for word in overrides):
            _, nodes, store = cli.prepare(config)
            given = [word for word in overrides if not word.startswith("engine.")]
            for calls, places in predictions(nodes, store, _length(counts, settings), given):
                of_calls.append(calls)
                of_places += places
        _show(path, Path(settings.outputs), of_calls, of_places, counts)


def counted(path: Path, settings: Any) -> Counts:
    """Return what an engine wrote into a file, as `engine` of the configuration asks for it."""
    asked = settings.engine
    return read_counts(path, asked.model, None if asked.since is None else Path(asked.since))


def rows_of_engine(counts: Counts) -> tuple[list[SummaryRow], list[SummaryRow]]:
    """Return the row of the engine in the table of calls, and those of its places."""
    whose = {"from": f"{counts.engine} ({counts.written})", "target": "", "rule": ""}
    return [
        {
            **whose,
            "calls": counts.calls,
            "drafted": counts.drafted,
            "accepted": counts.accepted,
            "of_drafted": counts.accepted / counts.drafted,
            "tokens_per_call": counts.tokens_per_call,
        }
    ], [{**whose, **place} for place in counts.places]


def _length(counts: Counts, settings: Any) -> int:
    """Return the draft length of the engine.

    Raises:
        PipelineError: it is not told, or is not the one that was given.
    """
    told, asked = len(counts.by_place), settings.engine.draft_length
    if not told and asked is None:
        raise PipelineError(
            f"engine.draft_length must be given: {counts.engine}'s {counts.written} does not tell "
            "how many tokens a draft has"
        )
    if told and asked not in (None, told):
        raise PipelineError(
            f"engine.draft_length={asked}: the engine counted drafts of {told} tokens: leave it out"
        )
    return told or int(asked)


def predictions(
    nodes: dict[str, list[Any]], store: Any, length: int, overrides: Sequence[str] = ()
) -> Iterator[tuple[SummaryRow, list[SummaryRow]]]:
    """Yield the rows of each rule of `criteria`, for drafts of `length` tokens.

    Raises:
        PipelineError: stage acceptance was not computed, or is one of engines' logs.
    """
    from analysis.statistics.trajectories import Trajectories, drafts_made
    from pipeline.store.decoded import read_decoded

    if not nodes["acceptance"]:
        raise PipelineError("the study has no drafter: add the engine's, for instance drafter=mini")
    for at, node in enumerate(nodes["acceptance"]):
        if "logged" in node.config:
            raise PipelineError("a study of engines' logs predicts no calls: give models")
        made = store.find(node)
        if made is None:
            command = " ".join(["python -m pipeline", *overrides, "stage=acceptance"])
            raise PipelineError(f"acceptance {node.label} was not made yet: run `{command}`")
        table = made.read(columns=["rule", "position", "accepted"]).to_pandas()
        label = node.settings["target"]
        found = store.find(nodes["decoding"][at]) if nodes["decoding"] else None
        decoded = None if found is None else read_decoded(label, "", found)
        for rule in (rule.label for rule in node.settings["rules"]):
            mine = table[table["rule"] == rule]
            steps = Trajectories.from_positions(mine["position"].to_numpy())
            drafts = drafts_made(mine["accepted"].to_numpy(), steps, length)
            yield _predicted("stage acceptance", label, rule, *drafts)
            if decoded is None:
                continue
            runs = decoded.runs
            same = (runs["rule"] == rule) & (runs["draft_length"] == length)
            for run in runs.index[same & (runs["drafter"] == "model") & runs["tree"].isna()]:
                calls = decoded.calls[decoded.calls["run"] == run]
                heat = runs["temperature"][run]
                name = "stage decoding" + (f", T = {heat:g}" if heat else "")
                yield _predicted(name, label, rule, calls["tested"], calls["accepted"])


def _predicted(
    kind: str, target: str, rule: str, tested: Any, accepted: Any
) -> tuple[SummaryRow, list[SummaryRow]]:
    """Return the rows of calls that tested and accepted so many drafted tokens each."""
    import numpy as np

    from analysis.statistics.trajectories import place_shares

    tested, accepted = np.asarray(tested), np.asarray(accepted)
    whose = {"from": kind, "target": target, "rule": rule}
    count, places = len(tested), range(1, int(tested.max(initial=0)) + 1)
    reached, kept = (
        [int(np.sum(each >= place)) for place in places] for each in (tested, accepted)
    )
    row = {
        **whose,
        "calls": count,
        "accepted": int(accepted.sum()),
        "tokens_per_call": 1 + accepted.sum() / count,
    }
    return row, [{**whose, **place} for place in place_shares(count, reached, kept)]


def _show(
    path: Path,
    outputs: Path,
    of_calls: list[SummaryRow],
    of_places: list[SummaryRow],
    counts: Counts,
) -> None:
    import pandas as pd

    from pipeline import sweeps
    from pipeline.execution.runner import shown

    pieces = "series" if counts.written == "scrape" else "answers"
    print(f"{path}: {counts.engine}, {counts.pieces} {pieces}")
    for reason, times in counts.excluded.items():
        print(f"left out: {reason}: {times}")
    directory = outputs / "engine_metrics" / slug(path.name)
    directory.mkdir(parents=True, exist_ok=True)
    for name, rows in (("calls", of_calls), ("places", of_places)):
        for suffix in ("csv", "parquet"):
            (directory / f"{name}.{suffix}").unlink(missing_ok=True)  # of an earlier file
        if rows:
            print()
            sweeps.print_table(rows)
            table = pd.DataFrame(rows)
            without_formulas(table).to_csv(directory / f"{name}.csv", index=False)
            table.to_parquet(directory / f"{name}.parquet", index=False)
    print(
        "\nof_all: of all calls, as engines print it; conditional: of those that reached the place"
    )
    print(f"tables: {shown(directory)}/", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
