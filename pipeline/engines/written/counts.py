"""Adds up the counts of speculative decoding that an engine reports in its answers.

A call is a verification of a draft by the target; passes without a draft are in none of the counts
(`answer_counts` says how many there were).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from pipeline.engines.written.answer_counts import AnswerCounts, counted_by
from pipeline.engines.written.answers import counted, read_answers
from pipeline.errors import PipelineError

MANY_CHOICES = "answers of several choices"


@dataclass(frozen=True)
class EngineCounts:
    """The counts of an engine, summed over the answers of a file.

    Attributes:
        engine: vLLM or llama.cpp.
        calls: verifications of a draft, NaN where they are not told.
        drafted: tokens.
        accepted: tokens, those of the target's own not counted.
        passes: of the target after each prompt's, the least that the counts allow; NaN likewise.
        most_passes: the most.
        emitted: tokens of these passes, NaN likewise.
        by_place: accepted at each place of the draft, empty where it is not told.
        answers: of each answer.
        excluded: what was left out, and how often.
    """

    engine: str
    calls: float
    drafted: float
    accepted: float
    passes: float
    most_passes: float
    emitted: float
    by_place: Sequence[float]
    answers: Mapping[str, AnswerCounts]
    excluded: Mapping[str, int]

    @property
    def tokens_per_pass(self) -> tuple[float, float]:
        """The least and the most tokens that a pass emits, of all passes."""
        return self.emitted / self.most_passes, self.emitted / self.passes


def read_counts(path: Path) -> EngineCounts:
    """Add up the counts of all answers of a file.

    Raises:
        PipelineError: the file can't be read, no answer reports drafts, or it holds two models or
            numbers that contradict each other; names the file, and the line where there is one.
    """
    read, _, excluded = read_answers(path, counted_by)
    if not read:
        raise PipelineError(
            f"{path} holds no answers as JSON (left out: {counted(excluded)}): give answers that "
            "`python -m pipeline.ask URL` saved"
        )
    answers: dict[str, AnswerCounts] = {}
    without: dict[str, int | None] = {}  # counts: their tokens
    for name, counts in read.items():
        if f"{name}#1" in read or counts is None:
            excluded[MANY_CHOICES] += counts is not None
        elif isinstance(counts, AnswerCounts):
            answers[name] = counts
        else:
            without[name] = counts or None
    engines = {answer.engine for answer in answers.values()}
    if not engines:
        raise PipelineError(
            f"{path}: no answer reports draft counts; llama.cpp puts them into timings (draft_n), "
            "vLLM into metrics.speculative_decoding (start it with "
            "--per-request-spec-decode-metrics detailed)"
        )
    if len(engines) > 1:
        raise PipelineError(f"{path} holds answers of {' and '.join(sorted(engines))}: give one")
    engine = engines.pop()
    for name, size in without.items():  # nothing was drafted for these
        answers[name] = AnswerCounts(engine, 0, 0, 0, histogram=(), per_step=(), tokens=size)
    ends = [answer.passes for answer in answers.values()]
    emitted = [
        math.nan if answer.tokens is None else max(answer.tokens - 1, 0)
        for answer in answers.values()
    ]
    histograms = [answer.histogram for answer in answers.values() if answer.histogram is not None]
    by_place: list[float] = []
    if len(histograms) == len(answers):
        times = [sum(place) for place in zip_longest(*histograms, fillvalue=0)]
        by_place = [sum(times[place:]) for place in range(1, len(times))]
    counts_of_all = EngineCounts(
        engine=engine,
        calls=sum(answer.calls for answer in answers.values()),
        drafted=sum(answer.drafted for answer in answers.values()),
        accepted=sum(answer.accepted for answer in answers.values()),
        passes=sum(least for least, _ in ends),
        most_passes=sum(most for _, most in ends),
        emitted=sum(emitted),
        by_place=by_place,
        answers=answers,
        excluded=+excluded,
    )
    _check(path, counts_of_all)
    return counts_of_all


def _check(path: Path, counts: EngineCounts) -> None:
    """Refuse counts that no engine can have; NaN compares as false.

    Raises:
        PipelineError: no token was drafted, or more was accepted than drafted.
    """
    if counts.calls == 0 or counts.drafted == 0:
        raise PipelineError(
            f"{path}: no token was drafted: start the engine with a drafter and let it decode"
        )
    if counts.accepted > counts.drafted:
        raise PipelineError(
            f"{path}: {counts.accepted:g} tokens were accepted of {counts.drafted:g} drafted: the "
            "numbers are damaged"
        )
