"""Decodes a prompt with every method, and returns the rows of all tables of the stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from analysis.decoding.lookup import text_calls
from analysis.decoding.predicted_speed import MAX_DRAFT_LENGTH
from pipeline.core.columns import Row, Tables
from pipeline.decoding import answer_scoring
from pipeline.decoding import session as sessions
from pipeline.decoding.call_costs import time_calls
from pipeline.drafters import TextDrafter
from pipeline.settings.methods import ALONE, RACES, SPECULATIVE, Method, baseline
from pipeline.stages.decoding.tables import RUN, SECONDS, TABLES

if TYPE_CHECKING:
    from pipeline.decoding.loop import Answer, Prefill
    from pipeline.decoding.session import DecodingSession, Prompt

TIMED_PROMPTS = 20  # the first prompts, at which a call of each draft length is timed


def decode_prompt(session: DecodingSession, prompt: Prompt, index: int) -> Tables:
    """Decode a prompt with every method, and return the rows by table; of a failure, its reason.

    The prompt's `index` says which method begins: methods take turns to be first.
    """

    def decode_all() -> Tables:
        prefill = sessions.read_prompt(session, prompt, session.steps)
        count = len(session.runs)
        timed = {}
        for turn in range(count):
            run = (turn + index) % count
            timed[run] = sessions.decode_timed(session, session.runs[run], prompt, prefill)
        rows = answer_rows(session, prompt, prefill, [timed[run] for run in range(count)])
        first_baseline, _ = timed[0]
        if session.runs[0].temperature == 0:
            rows["lengths"] = length_rows(session, prompt, first_baseline.tokens)
        if index < TIMED_PROMPTS:
            rows["timings/passes"] = pass_rows(session, prompt, prefill, first_baseline.tokens)
        return rows

    rows, reason = sessions.result_or_reason(decode_all, session.target.device)
    return rows or {"failures": [{"prompt_id": prompt.prompt_id, "reason": reason}]}


def answer_rows(
    session: DecodingSession,
    prompt: Prompt,
    prefill: Prefill,
    timed: Sequence[tuple[Answer, int | None]],
) -> Tables:
    """Return the rows by table of the answers to a prompt.

    `timed` has the answer of each run and its peak memory, None but on CUDA.
    """
    rows: Tables = {name: [] for name in TABLES if name != "failures"}
    baselines: dict[Method, list[int]] = {}  # their runs come first
    nats_given_up = dict[tuple[int, ...], float]()
    # temperatures at which trees are drafted by sampling, whose contexts are not stored yet
    tree_temperatures = {
        method.temperature
        for method in session.runs
        if method.tree and method.sampling in (SPECULATIVE, RACES)
    }
    for run, (method, (answer, peak_bytes)) in enumerate(zip(session.runs, timed, strict=True)):
        key = {"prompt_id": prompt.prompt_id, "run": run}
        tokens = tuple(answer.tokens)
        if method.drafter == ALONE or tokens not in nats_given_up:
            logits, hidden = answer_scoring.answer_logits(prefill, tokens)
        if method.drafter == ALONE:
            baselines[method] = answer.tokens
            if session.neural is not None:
                drafts = answer_scoring.draft_logits(session.neural, prefill.prompt, tokens, hidden)
                if method.temperature == 0:
                    drafted = answer_scoring.drafted_columns(logits, drafts)
                    steps = {"token_id": tokens, **drafted}
                    rows["trajectory"] = by_position({"prompt_id": prompt.prompt_id}, steps)
                elif method.temperature in tree_temperatures:
                    tree_temperatures.remove(method.temperature)
                    entropies = answer_scoring.entropy_columns(logits, drafts, method.temperature)
                    rows["contexts"] += by_position(key, entropies)
        if tokens not in nats_given_up:
            nats = answer_scoring.log_probability_given_up(logits, tokens)
            nats_given_up[tokens] = float(nats.sum())
        rows["data"].append(
            {
                **key,
                "source": prompt.source,
                "method": method.name,
                **attributes(method, "drafter", "draft_length", "temperature"),
                "token_ids": answer.tokens,
                "n_tokens": len(tokens),
                "text_tokens": len(prompt.token_ids) + len(tokens),
                "ended": answer.ended,
                "nats_given_up": nats_given_up[tokens],
                **answer_scoring.compare_with_baseline(answer.tokens, baselines[baseline(method)]),
            }
        )
        rows["timings/runs"].append(
            {
                **key,
                **attributes(answer, "first_seconds", "begin_seconds", "seconds"),
                # on CUDA the thread waits for the device, so its CPU time says nothing
                "processor_seconds": answer.processor_seconds if peak_bytes is None else None,
                "peak_bytes": peak_bytes,
            }
        )
        for name, more in call_rows(key, answer, has_tree=method.tree is not None).items():
            rows[name] += more
    return rows


def call_rows(key: Row, answer: Answer, *, has_tree: bool) -> Tables:
    """Return the rows by table of the calls of an answer; those of levels only for trees."""
    rows: Tables = {"calls": [], "timings/calls": [], "levels": []}
    for call in answer.calls:
        for name in ("calls", "timings/calls"):
            columns = [column for column in TABLES[name] if column not in RUN]
            rows[name].append(key | attributes(call, *columns))
        if has_tree:
            for level, (children, accepted) in enumerate(call.levels, start=1):
                place = {"position": call.position, "level": level}
                rows["levels"].append({**key, **place, "children": children, "accepted": accepted})
    return rows


def pass_rows(
    session: DecodingSession, prompt: Prompt, prefill: Prefill, tokens: Sequence[int]
) -> list[Row]:
    """Return what a call costs at a prompt: a row for each draft length."""
    timed = time_calls(session, prefill, tokens)
    key = {"prompt_id": prompt.prompt_id, "begin_seconds": timed.begin_seconds}
    return [key | attributes(call, "drafted", *SECONDS) for call in timed.calls]


def length_rows(session: DecodingSession, prompt: Prompt, answer: Sequence[int]) -> list[Row]:
    """Return how many calls a greedy answer takes: a row for each text drafter and draft length."""
    rows: list[Row] = []
    for name, drafter in session.drafters.items():
        if not isinstance(drafter, TextDrafter):
            continue
        for length in range(1, MAX_DRAFT_LENGTH + 1):
            calls = text_calls(drafter.draft, prompt.token_ids, answer, length, session.steps)
            rows.append(
                {
                    "prompt_id": prompt.prompt_id,
                    "drafter": name,
                    "draft_length": length,
                    "calls": len(calls),
                    "drafting": sum(drafted > 0 for drafted, _, _ in calls),
                    "tokens": sum(emitted for _, _, emitted in calls),
                }
            )
    return rows


def by_position(key: Row, columns: Mapping[str, Sequence[float]]) -> list[Row]:
    """Return a row for each position, from columns with a value at each."""
    return [
        {**key, "position": position, **dict(zip(columns, values, strict=True))}
        for position, values in enumerate(zip(*columns.values(), strict=True))
    ]


def attributes(source: object, *names: str) -> Row:
    """Return the attributes of these names."""
    return {name: getattr(source, name) for name in names}
