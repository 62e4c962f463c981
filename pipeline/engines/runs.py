"""Reads the calls of speculative decoding out of a file: of an engine, a table, or this project.

| file | calls |
|---|---|
| page of /metrics | sums alone |
| answers of vLLM (detailed) | each, with its drafted tokens |
| answers of vLLM (summary), SGLang | by accepted tokens; drafted tokens in all |
| answers of llama.cpp | sums alone |
| answers of Spec-Bench | each, by emitted tokens; nothing says how many were drafted |
| artifact of stage decoding, table of calls | each |

Of an engine's answers the passes without a draft are rows as well: they emit one token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import is_list_like

from analysis.decoding import conventions as of
from analysis.decoding.lookup import lookup_calls
from analysis.decoding.places import place_rates
from analysis.decoding.speed import break_even_by_batch
from analysis.statistics.trajectories import place_shares
from conf.schema import Config
from pipeline.decoding.decoded import read_decoded
from pipeline.engines.written.answer_counts import SPEC_BENCH, AnswerCounts
from pipeline.engines.written.answers import counted
from pipeline.engines.written.counts import EngineCounts, read_counts
from pipeline.engines.written.pages import MOST_PLACES
from pipeline.engines.written.served import read_served
from pipeline.errors import PipelineError
from pipeline.plan.stage import SummaryRow
from pipeline.store.artifacts import Artifact

TableRows = tuple[SummaryRow, list[SummaryRow]]  # of the table of calls, and of that of places


class EngineRun(NamedTuple):
    """Calls of one engine or method.

    Attributes:
        name: as printed.
        length: drafted tokens of a full draft, 0 where it is not told.
        rows: of both tables.
        calls: one row a pass (`conventions.NEEDED`), None where passes can't be told apart.
        drafted: tokens in all, where calls do not tell their own; NaN where nothing tells them.
        schedule: vLLM's draft length by batch size.
        page: whether it is a page of /metrics.
    """

    name: str
    length: int
    rows: TableRows
    calls: pd.DataFrame | None = None
    drafted: float | None = None
    schedule: Sequence[Sequence[int]] = ()
    page: bool = False


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
    """Return the row of calls (drafted, accepted, emitted) that begins with `whose`, and of places.

    tokens_per_pass counts all passes, tokens_per_drafting_call those with a draft, as engines do.
    """
    accepted, drafting = int(calls["accepted"].sum()), int((calls["drafted"] > 0).sum())
    row: SummaryRow = {
        **whose,
        "passes": len(calls),
        "tokens_per_pass": float(calls["emitted"].sum() / len(calls)),
        "drafting_calls": drafting,
        "tokens_per_drafting_call": 1 + accepted / drafting if drafting else math.nan,
        "accepted": accepted,
    }
    return row, [{**whose, **place} for place in of.place_rows(calls, length)]


def lookup_rows(path: Path, settings: Config, length: int) -> TableRows:
    """Return the rows of look-up replayed along the answers of a file; no model is read.

    Args:
        path: answers with the token ids of prompts and answers, with drafts or without.
        settings: `decoding.lookup` and `decoding.lookup_match`.
        length: of a full draft.

    Raises:
        PipelineError: the file can't be read, or no answer has both.
    """
    longest, match = settings.decoding.lookup, settings.decoding.lookup_match
    served, _ = read_served(path)
    texts = [
        (reply.request.prompt_ids, reply.ids)
        for reply in (answer.reply for answer in served)
        if reply.ids and reply.request and reply.request.prompt_ids
    ]
    # llama.cpp cuts drafts to the largest length of an answer
    limit = max((len(ids) for _, ids in texts), default=0) if match == "fixed" else None
    calls = [
        call
        for prompt, answer in texts
        for call in lookup_calls(prompt, answer, length, longest, match, limit)
    ]
    if not calls:
        raise PipelineError(
            f"{path}: look-up needs the token ids of prompts and answers, and answers of two "
            "tokens: `python -m pipeline.ask URL` saves both"
        )
    print(f"{path}: look-up ({match}) replayed along {len(texts)} of {len(served)} answers")
    table = pd.DataFrame(calls, columns=["drafted", "accepted", "emitted"])
    return measured_rows({"from": "look-up along the answers"}, table, length)


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
    counts = calls[["drafted", "accepted", "emitted"]].apply(pd.to_numeric, errors="coerce")
    whole = counts.isin(range(MOST_PLACES + 2)).all(axis=None)
    if not whole or counts["drafted"].max() > MOST_PLACES:
        raise PipelineError(
            f"{path}: drafted, accepted and emitted must be whole numbers, and drafted at most "
            f"{MOST_PLACES}"
        )
    if (counts["accepted"] > counts["drafted"]).any():
        raise PipelineError(f"{path}: accepted must lie from 0 to drafted")
    if not counts["emitted"].between(1, counts["accepted"] + 1).all():
        raise PipelineError(
            f"{path}: emitted must lie from 1 to accepted + 1: the accepted tokens and the "
            "target's own, fewer where the answer ended"
        )
    calls = calls.assign(**counts.astype(np.int64))
    if "confidence" in calls:
        with_drafts = calls[calls["drafted"] > 0]  # null elsewhere, maybe
        lists = with_drafts["confidence"].map(lambda value: value if is_list_like(value) else ())
        each = pd.to_numeric(lists.explode(), errors="coerce")
        if not (lists.map(len) == with_drafts["drafted"]).all() or not each.between(0, 1).all():
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
            best = break_even_by_batch(decoded, place_rates(decoded.calls, run, length))
            schedule = of.batch_schedule(best["batch"].tolist(), best["draft_length"].tolist())
        name = f"{row['method']}, gamma {length}, T {row['temperature']:g}"
        rows = measured_rows({"from": name}, calls, length)
        yield EngineRun(name, length, rows, calls, schedule=schedule)


def _counted(path: Path) -> EngineRun:
    """Return an engine's counts, with single calls where every answer has them."""
    counts = read_counts(path)
    print(f"{path}: {counts.engine}, {counts.pieces}; left out: {counted(counts.excluded)}")
    if counts.engine == SPEC_BENCH:
        return _of_spec_bench(counts)
    whose: SummaryRow = {"from": counts.engine}
    least, most = counts.tokens_per_pass
    row: SummaryRow = {
        **whose,
        "passes": counts.passes,
        "passes_upper": counts.most_passes,
        "tokens_per_pass": least,
        "tokens_per_pass_upper": most,
        "drafting_calls": counts.calls,
        "tokens_per_drafting_call": counts.tokens_per_drafting_call,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "of_drafted": counts.accepted / counts.drafted,
    }
    length, places = len(counts.by_place), counts.places
    if math.isnan(counts.passes):
        print(
            "the file does not say how many tokens were emitted: passes without a draft are "
            "unknown, and tokens_per_drafting_call leaves them out"
        )
    elif counts.passes < counts.most_passes:
        print(
            f"{counts.engine} counts accepted tokens behind the end of an answer in its last call, "
            "so passes are known between two ends; vLLM and llama.cpp count them on /metrics"
        )
    calls, drafted = None, None
    if length and counts.answers:
        calls = pd.concat([_calls(name, answer, length) for name, answer in counts.answers.items()])
        if all(answer.per_step is not None for answer in counts.answers.values()):
            places = of.place_rows(calls, length)
        elif counts.drafted < counts.calls * length:
            drafted = counts.drafted
            print(
                f"drafts are not always of {length} tokens, and the answers do not say which: a "
                "place that was not drafted counts as rejected; vLLM tells them apart with "
                "--per-request-spec-decode-metrics detailed"
            )
    else:
        print(
            "the file has sums over calls, so only the engine's own numbers can be computed; "
            "answers with draft counts give those of every tool (docs/answers.md)"
        )
    tables = row, [{**whose, **place} for place in places]
    return EngineRun(counts.engine, length, tables, calls, drafted, page=not counts.answers)


def _calls(name: str, counts: AnswerCounts, length: int) -> pd.DataFrame:
    """Return the passes of an answer, a row each.

    What vLLM accepted behind the end of the answer was not emitted: the last call with a draft
    emits fewer tokens.
    """
    steps = counts.per_step
    if steps is None:
        steps = [
            (accepted, length)
            for accepted, times in enumerate(counts.histogram or ())
            for _ in range(times)
        ]
    table = np.array(steps, dtype=np.int64).reshape(-1, 2)
    emitted = table[:, 0] + 1
    alone = 0
    if counts.tokens is not None:
        alone = max(counts.tokens, 1) - 1 - int(emitted.sum())
        if len(emitted):
            emitted[-1] = max(1, emitted[-1] + min(alone, 0))
    rows = {"drafted": table[:, 1], "accepted": table[:, 0], "emitted": emitted}
    without = {"drafted": 0, "accepted": 0, "emitted": 1}
    padded = {
        column: np.append(values, np.full(max(alone, 0), without[column]))
        for column, values in rows.items()
    }
    return pd.DataFrame({"answer": name, **padded})


def _of_spec_bench(counts: EngineCounts) -> EngineRun:
    """Return the passes of Spec-Bench's answers; each turn is an answer."""
    turns = [
        (f"{name} turn {at}", turn)
        for name, answer in counts.answers.items()
        for at, turn in enumerate(answer.emitted, start=1)
    ]
    calls = pd.DataFrame(
        [(name, math.nan, tokens - 1, tokens) for name, turn in turns for tokens in turn],
        columns=of.NEEDED,
    )
    if calls.empty:
        raise PipelineError("the answers have no calls in accept_lengths")
    print("Spec-Bench's answers say what each pass emitted, not what was drafted")
    emitted = calls["emitted"].to_numpy()
    whose: SummaryRow = {"from": SPEC_BENCH}
    row: SummaryRow = {
        **whose,
        "passes": len(calls),
        "tokens_per_pass": float(emitted.mean()),
        "accepted": int(calls["accepted"].sum()),
    }
    length = int(emitted.max()) - 1
    reached = [int((emitted >= at).sum()) for at in range(1, length + 2)]
    places = place_shares(len(calls), reached[:-1], reached[1:])
    return EngineRun(
        SPEC_BENCH, length, (row, [{**whose, **place} for place in places]), calls, math.nan
    )
