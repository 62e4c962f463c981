"""Reads the counts of speculative decoding that engines keep, of a page of /metrics or of answers.

A call is a verification of a draft by the target; passes without a draft are in none of the counts
(`pages` and `answer_counts` say how many there were). Engines divide what is accepted at a
place of the draft by all calls with a draft.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from pathlib import Path

from analysis.statistics.trajectories import place_shares
from pipeline.engines.written.answer_counts import SPEC_BENCH, AnswerCounts, counted_by
from pipeline.engines.written.answers import counted, read_answers, read_bytes, read_objects
from pipeline.engines.written.pages import MOST_PLACES, EnginePage, is_page, read_page
from pipeline.errors import PipelineError

ODD_SHARE = 0.01  # of the accepted tokens, without a place: a page is read while it is counted
MANY_CHOICES = "answers of several choices"


class NoCountsError(PipelineError):
    """Answers that report no drafts."""


@dataclass(frozen=True)
class EngineCounts:
    """The counts of an engine, summed over the answers or series of a file.

    Attributes:
        engine: vLLM, SGLang, llama.cpp or Spec-Bench.
        pieces: what was read, "12 series".
        calls: verifications of a draft, NaN where they are not told.
        drafted: tokens, NaN likewise.
        accepted: tokens, those of the target's own not counted; NaN likewise.
        passes: of the target after each prompt's, the least that the counts allow; NaN likewise.
        most_passes: the most.
        emitted: tokens of these passes, NaN likewise.
        by_place: accepted at each place of the draft, empty where it is not told.
        answers: of each answer.
        excluded: what was left out, and how often.
    """

    engine: str
    pieces: str
    calls: float
    drafted: float
    accepted: float
    passes: float = math.nan
    most_passes: float = math.nan
    emitted: float = math.nan
    by_place: Sequence[float] = ()
    answers: Mapping[str, AnswerCounts] = field(default_factory=dict)
    excluded: Mapping[str, int] = field(default_factory=dict)

    @property
    def tokens_per_drafting_call(self) -> float:
        """The accepted tokens of a call with a draft, and the target's own."""
        return 1 + self.accepted / self.calls

    @property
    def tokens_per_pass(self) -> tuple[float, float]:
        """The least and the most tokens that a pass emits, of all passes."""
        return self.emitted / self.most_passes, self.emitted / self.passes

    @property
    def places(self) -> list[dict[str, float]]:
        """The shares of `place_shares` at each place.

        A place is reached where the one before was accepted. Drafts that end earlier count as
        rejected at it, which makes both shares too small; sums do not tell such drafts apart.
        """
        reached = [self.calls, *self.by_place][: len(self.by_place)]
        return place_shares(self.calls, reached, self.by_place)


def read_counts(path: Path) -> EngineCounts:
    """Return an engine's counts, from a page of /metrics or from answers as JSON.

    Raises:
        NoCountsError: answers of an engine without drafts, or that does not report them.
        PipelineError: the file can't be read, holds two models or numbers that contradict each
            other; names the file, and the line where there is one.
    """
    text = read_bytes(path).decode(errors="replace")
    counts = of_page(read_page(path, text)) if is_page(text) else _of_answers(path)
    if counts.engine != SPEC_BENCH:
        _check(path, counts)
    return counts


def draft_length(lengths: Collection[int], requested: int | None) -> int:
    """Return the tokens of a full draft.

    Args:
        lengths: those that files tell; 0 where one tells none.
        requested: `engine.draft_length`, None where it was not given.

    Raises:
        PipelineError: it is not told, is too large, or is not the one that was given.
    """
    stated = sorted(set(lengths) - {0})
    if len(stated) != 1 and requested is None:
        raise PipelineError(
            "engine.draft_length must be given: the file does not say how many tokens a draft has"
            + (f", or has several: {stated}" if stated else "")
        )
    if stated and requested is not None and requested not in stated:
        raise PipelineError(
            f"engine.draft_length={requested}: the file has drafts of "
            f"{' and '.join(map(str, stated))} tokens: leave it out"
        )
    if requested is not None and requested > MOST_PLACES:
        raise PipelineError(
            f"engine.draft_length={requested} is not allowed: give at most {MOST_PLACES}"
        )
    return requested or stated[0]


def of_page(page: EnginePage) -> EngineCounts:
    """Return the counts of a page; its calls are 0 without a drafter."""
    return EngineCounts(
        engine=page.engine,
        pieces=f"{page.series} series",
        calls=page.drafts,
        drafted=page.drafted,
        accepted=page.accepted,
        passes=page.passes,
        most_passes=page.passes,
        emitted=page.emitted,
        by_place=page.by_place,
        excluded={"truncated last line": 1} if page.cut_off else {},
    )


def _of_answers(path: Path) -> EngineCounts:
    """Add up the counts of all answers; of a stream, its last counts."""
    read, _, excluded = read_answers(path, read_objects(path), counted_by)
    if not read:
        raise PipelineError(
            f"{path} holds neither a page of /metrics nor answers as JSON (left out: "
            f"{counted(excluded)}): give one of them; server logs are not read"
        )
    answers: dict[str, AnswerCounts] = {}
    without: dict[str, int | None] = {}  # counts: their tokens
    for name, (_, parts) in read.items():
        counts = [part for part in parts if isinstance(part, AnswerCounts)]
        tokens = [part for part in parts if isinstance(part, int)]
        if f"{name}#1" in read or None in parts:
            excluded[MANY_CHOICES] += None not in parts
        elif counts:
            answers[name] = counts[-1]
        else:
            without[name] = max(tokens, default=0) or None
    engines = {answer.engine for answer in answers.values()}
    if not engines:
        raise NoCountsError(
            f"{path}: no answer reports draft counts; SGLang puts them into meta_info "
            "(spec_verify_ct), llama.cpp in timings (draft_n), "
            "vLLM in metrics.speculative_decoding (start it with "
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
    calls, drafted = (
        sum(getattr(answer, name) for answer in answers.values()) for name in ("calls", "drafted")
    )
    if len(histograms) == len(answers):
        # SGLang's end at the longest accepted draft, which may be shorter than all drafts
        length = math.ceil(drafted / calls) if drafted > 0 else 0
        times = [sum(place) for place in zip_longest(*histograms, [0] * (length + 1), fillvalue=0)]
        by_place = [sum(times[place:]) for place in range(1, len(times))]
    return EngineCounts(
        engine=engine,
        pieces=f"{len(answers)} answers",
        calls=calls,
        drafted=drafted,
        accepted=sum(answer.accepted for answer in answers.values()),
        passes=sum(least for least, _ in ends),
        most_passes=sum(most for _, most in ends),
        emitted=sum(emitted),
        by_place=by_place,
        answers=answers,
        excluded=+excluded,
    )


def _check(path: Path, counts: EngineCounts) -> None:
    """Refuse counts that no engine can have; NaN compares as false.

    Raises:
        PipelineError: more was accepted than drafted, or at a place than calls reached it.
    """
    if counts.calls == 0 or counts.drafted == 0:
        raise PipelineError(
            f"{path}: no token was drafted: start the engine with a drafter and let it decode (a "
            "page without drafts is the first of two files)"
        )
    placed, reached = sum(counts.by_place), [counts.calls, *counts.by_place]
    wrong = None
    if counts.accepted > counts.drafted:
        wrong = f"{counts.accepted:g} tokens were accepted of {counts.drafted:g} drafted"
    elif any(after > before * (1 + ODD_SHARE) for before, after in pairwise(reached)):
        wrong = "more tokens were accepted at a place of the draft than calls reached it"
    elif counts.by_place and abs(placed - counts.accepted) > max(1.0, ODD_SHARE * counts.accepted):
        wrong = f"{counts.accepted:g} tokens were accepted, {placed:g} by their places"
    if wrong:
        raise PipelineError(f"{path}: {wrong}: the numbers mix several engines, or are damaged")
