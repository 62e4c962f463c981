"""One run of an engine, read from its files: answers, or a page of /metrics.

Beside answers lie what `pipeline.ask` writes: the pages before and after them, and how it asked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.statistics.trajectories import acceptance_by_position
from pipeline.core.errors import PipelineError
from pipeline.engines.answers.draft_counts import read_answer_counts
from pipeline.engines.answers.layouts import MAX_LOAD
from pipeline.engines.counts import Counts
from pipeline.engines.metrics_pages import is_page, page_difference, page_of
from pipeline.engines.packed_files import read_bytes
from pipeline.engines.registry import engine_named

MIN_DRAFTING = 0.02  # of the passes; with fewer drafts a run tells nothing of drafting


@dataclass(frozen=True)
class Run:
    """A run of an engine."""

    path: Path
    length: int | None  # of a full draft; 0 without drafts, None where it is not told
    counts: Counts  # of its answers, or its page
    page: Counts | None  # the page, or the difference of those beside the answers
    record: Mapping[str, Any]  # that pipeline.ask wrote; empty without one

    @property
    def engine(self) -> str:
        """The engine, empty where nothing tells it."""
        return self.counts.engine or engine_named(self.record.get("engine", "")).name

    @property
    def has_drafter(self) -> bool | None:
        """Whether the server drafts; None where the counts do not tell.

        With a schedule it has counts by position, also at loads at which it drafts nothing.
        """
        return True if self.counts.by_place else self.counts.drafting

    @property
    def draft_share(self) -> float:
        """The share of passes with a draft; NaN where it is not told."""
        passes = (self.counts.least_passes + self.counts.most_passes) / 2
        return self.counts.drafts / passes if passes else math.nan

    @property
    def hardly_drafts(self) -> bool:
        """Whether so few passes have a draft that the run tells nothing of drafting."""
        return self.draft_share < MIN_DRAFTING  # NaN compares as false

    @property
    def asked(self) -> int | None:
        """How many requests were asked for at once; None where record and answers don't tell."""
        loads = {answer.load for answer in self.counts.answers.values()}
        of_answers = loads.pop() if len(loads) == 1 else math.nan
        number = self.record.get("concurrent", of_answers)
        if isinstance(number, int | float) and 1 <= number <= MAX_LOAD:  # NaN compares as false
            return int(number)
        return None

    @property
    def in_flight(self) -> float:
        """The mean number of requests in flight, of a page those in a step; NaN if unknown."""
        measured = self.record.get("in_flight")
        if isinstance(measured, int | float):
            return float(measured)
        seconds = self.record.get("seconds")
        answer_seconds = [answer.seconds for answer in self.counts.answers.values()]
        covered = len(answer_seconds) == self.record.get("answers_of_pages")
        if answer_seconds and covered and isinstance(seconds, int | float) and seconds > 0:
            return sum(answer_seconds) / seconds
        return math.nan if self.page is None else self.page.load * self.page.replicas

    @property
    def replicas(self) -> int | None:
        """How many engines the page counts apart; None without a page."""
        return None if self.page is None else self.page.replicas

    @property
    def load(self) -> int | None:
        """The load: the requests asked for at once, else those in a step; None if it is unknown."""
        if self.asked is not None or self.page is None:
            return self.asked
        is_known = 0 < self.page.load <= MAX_LOAD  # NaN compares as false
        return max(1, round(self.page.load)) if is_known else None

    @property
    def tokens(self) -> float:
        """The tokens after each answer's first one."""
        return self.counts.emitted if self.page is None else self.page.emitted

    @property
    def acceptance(self) -> tuple[list[float], float]:
        """The accepted share of tested tokens, by position and of all; nothing where not told."""
        counts = self.counts
        steps = [answer.per_call for answer in counts.answers.values()]
        if any(steps) and None not in steps:
            calls = [call for calls in steps for call in calls or ()]
            kept, tried = np.array(calls, dtype=np.intp).T
            tested, passed = acceptance_by_position(np.minimum(kept + 1, tried), kept)
            return (passed / tested).tolist(), float(passed.sum() / tested.sum())
        before = [counts.drafts, *counts.by_place[:-1]] if counts.by_place else []
        pairs = zip(counts.by_place, before, strict=True)  # all drafts are full
        rates = [passing / n if n else math.nan for passing, n in pairs]
        return rates, sum(counts.by_place) / sum(before) if sum(before) else math.nan


def run_files(folder: Path) -> list[Path]:
    """Return the files of a directory that are runs, by name.

    Answers (.jsonl, .jsonl.gz), and pages (.txt) without answers; NAME.before.txt belongs to
    NAME.after.txt.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    answers = [path for path in files if path.name.endswith((".jsonl", ".jsonl.gz"))]
    with_answers = {path.name.partition(".jsonl")[0] for path in answers}
    pages = [
        path
        for path in files
        if path.suffix == ".txt"
        and not path.name.endswith(".before.txt")
        and path.name.removesuffix(".txt").removesuffix(".after") not in with_answers
        and is_page(path)
    ]
    if not answers and not pages:
        raise PipelineError(f"{folder} has no answers (.jsonl) and no page of /metrics (.txt)")
    return answers + pages


def read_run(path: Path, length: int | None = None) -> Run:
    """Read a run: answers, or a page of /metrics.

    `length` is the draft length if the file does not have it. For NAME.after.txt with
    NAME.before.txt beside it, the counts are the difference of the two pages.
    """
    page = page_of(path)
    if page is None:
        answers = read_answer_counts(path)
        page = _page_beside(path, len(answers.answers))
        counts = answers if page is None else _with_page(answers, page)
    else:
        counts = page
    run = Run(path, length, counts, page, _record(path))
    if run.has_drafter is False:
        length = 0
    elif _drafts_are_full(counts):
        length = len(counts.by_place)
    return replace(run, length=length)


def _with_page(answers: Counts, page: Counts) -> Counts:
    """Return the counts of answers with the passes of their page, which has all of them."""
    if answers.by_place:
        passes = page.least_passes
        return replace(answers, least_passes=passes, most_passes=passes, emitted=page.emitted)
    if page.drafts > 0 or answers.drafting is None:
        return replace(page, answers=answers.answers, excluded=answers.excluded)
    return answers


def _drafts_are_full(counts: Counts) -> bool:
    """Whether counts by position end at the draft length."""
    places = len(counts.by_place)
    if places == 0:
        return False
    all_full = counts.drafted == counts.drafts * places
    return all_full or engine_named(counts.engine).counts_full_drafts


def _record(path: Path) -> Mapping[str, Any]:
    """Return what `pipeline.ask` wrote beside answers or a page; nothing where it did not."""
    name = path.name.removesuffix(".jsonl").removesuffix(".after.txt")
    record = path.with_name(f"{name}.json")
    if name == path.name or not record.is_file():
        return {}
    try:
        read = json.loads(read_bytes(record))
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _page_beside(path: Path, answers: int) -> Counts | None:
    """Return the difference of the pages beside answers; None if they miss some of the answers."""
    first = path.with_suffix(".before.txt")
    last = path.with_suffix(".after.txt")
    record = path.with_suffix(".json")
    if path.suffix != ".jsonl" or not all(file.is_file() for file in (first, last, record)):
        return None
    covered = _record(path).get("answers_of_pages")
    if covered is None:
        raise PipelineError(
            f"{record} has no answers_of_pages, which pipeline.ask writes: ask again, ask.name=NAME"
        )
    return page_difference(first, last, answers) if covered == answers else None
