"""Runs of an engine beside each other: acceptance, tokens a pass, cost of a step, speed-up.

A run is a file of answers, or a page of /metrics. Seconds are, where both runs have them of every
answer, those of decoding by the engine's clock (llama.cpp), else those of whole requests
(`pipeline.ask`), with an interval over prompts; else those of the pages, without one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.decoding.formulas import formula_speedup
from analysis.decoding.speed import speedups
from analysis.statistics.bootstrap import PromptBootstrap, Resampling
from analysis.statistics.trajectories import acceptance_by_position
from pipeline.engines.answers import counted, read_bytes
from pipeline.engines.clock import gain, has_pages, page_difference, read_run
from pipeline.engines.counts import check_drafts, read_sums
from pipeline.engines.pages import EngineCounts, is_page, read_page
from pipeline.errors import PipelineError

LENGTH_NAMES = {"llama.cpp": "--spec-draft-n-max"}  # of the draft length; else vLLM's
SAME_TOKENS = 0.02  # by which the tokens of the same requests may differ
CLOCKS = {"decode_seconds": "decoding, by the engine's clock", "seconds": "whole requests"}


@dataclass(frozen=True)
class Run:
    """A run of an engine.

    Attributes:
        path: its file.
        length: drafted tokens of a full draft; 0 without drafts, None where it is not told.
        counts: of its answers, or its page.
        page: the page, or the difference of those beside the answers; None without one.
    """

    path: Path
    length: int | None
    counts: EngineCounts
    page: EngineCounts | None

    @property
    def acceptance(self) -> tuple[list[float], float]:
        """The accepted share of tested tokens, by position and of all; nothing where not told."""
        counts = self.counts
        steps = [answer.per_step for answer in counts.answers.values()]
        if any(steps) and None not in steps:
            kept, tried = np.array([call for calls in steps for call in calls], dtype=np.intp).T
            tested, passed = acceptance_by_position(np.minimum(kept + 1, tried), kept)
            return (passed / tested).tolist(), float(passed.sum() / tested.sum())
        before = [counts.drafts, *counts.by_place[:-1]] if counts.by_place else []
        pairs = zip(counts.by_place, before, strict=True)  # all drafts are full
        rates = [passing / n if n else math.nan for passing, n in pairs]
        return rates, sum(counts.by_place) / sum(before) if sum(before) else math.nan


class Speed(NamedTuple):
    """How many times as fast as the base a run is, with its interval (NaN without one)."""

    times: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return it as printed."""
        if math.isnan(self.times):
            return "-"
        interval = "" if math.isnan(self.low) else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.times:.2f} times{interval}"


@dataclass
class Compared:
    """Runs beside a base.

    Attributes:
        speeds: of each run.
        costs: of a step with a draft, in passes of the base; NaN where no clock tells it.
        clock: what the speeds are of.
        notes: what the reader must know of them.
    """

    speeds: list[Speed]
    costs: list[float]
    clock: str = ""
    notes: list[str] = field(default_factory=list)


def read_engine_run(path: Path, length: int | None = None) -> Run:
    """Read a run.

    Args:
        path: answers, or a page of /metrics; of NAME.after.txt with NAME.before.txt beside it the
            difference of the two.
        length: of a full draft, where the file does not tell it.

    Raises:
        PipelineError: the file can't be read; names it, and the line where there is one.
    """
    text = read_bytes(path).decode("utf-8", errors="replace")
    page: EngineCounts | None
    if is_page(text):
        before = path.with_name(path.name.replace(".after.", ".before."))
        page = read_page(path, text)
        if before != path and before.is_file():
            page = page_difference(before, path)
        return Run(path, _length(page, length), page, page)
    counts, page = read_sums(path), read_run(path) if has_pages(path) else None
    if counts.engine:
        check_drafts(path, counts)
    if page is not None:
        answers, excluded = counts.answers, counts.excluded
        if not counts.engine or not counts.by_place:  # which llama.cpp's answers do not tell
            counts = replace(page, answers=answers, excluded=excluded)
        elif has_pages(path, len(answers)):  # and the page covers them all
            passes = page.passes
            counts = replace(counts, passes=passes, most_passes=passes, emitted=page.emitted)
    return Run(path, _length(counts, length), counts, page)


def _length(counts: EngineCounts, given: int | None) -> int | None:
    return (len(counts.by_place) or given) if counts.drafts else 0


def compare(base: Run, runs: Sequence[Run], statistics: Resampling) -> Compared:
    """Return the speed and the cost of a step of each run.

    Args:
        base: without drafts.
        runs: with drafts.
        statistics: of the bootstrap over prompts; intervals hold for all runs together.

    Raises:
        PipelineError: the base drafts, a run does not, or they are of two engines.
    """
    if base.length != 0:
        raise PipelineError(f"{base.path} counts drafts: give the run without drafts first")
    for run in runs:
        if run.length == 0:
            older = "; llama.cpp's /metrics count none in older builds: give its answers"
            llama = run.counts.engine == "llama.cpp" and not run.counts.answers
            raise PipelineError(
                f"{run.path} counts no drafts: start this server with a drafter{older * llama}"
            )
        engines = base.counts.engine, run.counts.engine
        if all(engines) and len({*engines}) > 1:
            raise PipelineError(
                f"{base.path} is of {engines[0]} and {run.path} of {engines[1]}: give those of one"
            )
    found = Compared([], [])
    for run in runs:
        cost = math.nan
        if base.page is not None and run.page is not None:
            times, cost = gain(base.page, run.page)
            found.speeds.append(Speed(times, math.nan, math.nan))
            ratio = run.page.emitted / base.page.emitted if base.page.emitted else math.nan
            if abs(ratio - 1) > SAME_TOKENS:
                found.notes.append(
                    f"{base.path.name} counts {base.page.emitted:,.0f} tokens and {run.path.name} "
                    f"{run.page.emitted:,.0f}: other requests, or a server that was started again"
                )
            if cost <= 0:
                found.notes.append(f"{run.path.name}: a step would cost {cost:.2f} passes")
                cost = math.nan
        else:
            found.speeds.append(Speed(math.nan, math.nan, math.nan))
        found.costs.append(cost)
    if not all(math.isnan(speed.times) for speed in found.speeds):
        found.clock = "sums of the pages"
    _with_intervals(base, runs, statistics, found)
    return found


def _with_intervals(
    base: Run, runs: Sequence[Run], statistics: Resampling, found: Compared
) -> None:
    """Put speeds by the clock of single answers in the place of the pages', where all have one."""
    answers = [run.counts.answers for run in (base, *runs)]
    prompts = [name for name in answers[0] if all(name in others for others in answers)]
    for clock, words in CLOCKS.items():
        spent = np.array([[getattr(of[name], clock) for name in prompts] for of in answers])
        sizes = [[of[name].tokens or math.nan for name in prompts] for of in answers]
        tokens = np.array(sizes, dtype=np.float64)
        if not prompts or not np.isfinite(spent).all() or not np.isfinite(tokens).all():
            continue
        bootstrap = PromptBootstrap(np.arange(len(prompts)), *statistics)
        of_runs = [range(1, len(answers))]
        ends = speedups(spent.T, tokens.T, [0] * len(answers), of_runs, bootstrap)
        found.speeds = [Speed(*map(float, row)) for row in ends[1:]]
        found.clock = f"{words}, {len(prompts)} prompts"
        return


def recommendation(runs: Sequence[Run], found: Compared) -> list[str]:
    """Return the recommended draft length, which to measure next, and the engine's flags."""
    known = [
        i for i, run in enumerate(runs) if run.length and not math.isnan(found.speeds[i].times)
    ]
    if not known:
        return [
            "no recommendation: the files do not tell seconds and draft lengths; ask the servers "
            "with python -m pipeline.ask, or give their pages of /metrics (decoding.draft_length "
            "where a file does not tell it)"
        ]
    best = max(known, key=lambda i: found.speeds[i].times)
    run, speed = runs[best], found.speeds[best]
    length = run.length or 0
    name = LENGTH_NAMES.get(run.counts.engine, "num_speculative_tokens")
    sentence = f"{name} = {length}: {speed}"
    if speed.times <= 1:
        sentence = f"no drafts: {sentence}"
    elif speed.low <= 1:
        sentence += " (not sure: the interval holds 1)"
    measured = {runs[i].length for i in known}
    others = [n for n in (length + 1, length - 1) if n >= 1 and n not in measured]
    if others:
        following = max(others, key=lambda n: _predicted(run, found.costs[best], n))
        sentence += f"; {following} was not measured, ask with {following} next"
    lines = [sentence]
    if speed.times > 1:
        flag = f"{name} {length}"
        if not name.startswith("-"):  # a key of vLLM's
            flag = f"--speculative-config '{{..., \"{name}\": {length}}}'"
        lines.append(f"flags: {flag}, the rest as in {run.path.name}'s server")
    return lines


def _predicted(run: Run, cost: float, length: int) -> float:
    """Return the closed form's speed at another length; without a cost the longer comes first."""
    _, rate = run.acceptance
    if math.isnan(cost) or math.isnan(rate):
        return length
    return formula_speedup(min(rate, 1.0), length, max(cost - 1, 0) / (run.length or 1))


def screen(base: Run | None, runs: Sequence[Run], found: Compared | None) -> list[str]:
    """Return the lines of the table."""
    rows = []
    for i, run in enumerate(runs):
        counts, (rates, _) = run.counts, run.acceptance
        row = {
            "run": run.path.name,
            "drafts of": "?" if run.length is None else run.length or "none counted",
            "accepted by position": " ".join(f"{rate:.3f}" for rate in rates) or "-",
            "accepted of drafted": f"{counts.accepted:,.0f} of {_shown(',.0f', counts.drafted)}",
            "tokens": _shown(",.0f", counts.emitted),
            "passes": _shown(",.0f", counts.passes, counts.most_passes),
            "tokens per pass": _shown(".3f", *counts.tokens_per_pass),
        }
        if found is not None:
            cost = found.costs[i]
            row["a step costs"] = "-" if math.isnan(cost) else f"{cost:.2f} passes"
            row["speed"] = str(found.speeds[i])
        rows.append(row)
    lines = pd.DataFrame(rows).to_string(index=False).splitlines()
    for run in runs if base is None else (base, *runs):
        if run.counts.excluded:
            lines.append(f"{run.path.name}: left out: {counted(run.counts.excluded)}")
    if found is not None:
        lines += [f"speed beside the target alone: {found.clock}"] if found.clock else []
        lines += found.notes
    return lines


def _shown(form: str, *ends: float) -> str:
    """Return a number as printed, or the two ends between which it lies."""
    printed = dict.fromkeys("-" if math.isnan(end) else format(end, form) for end in ends)
    return " to ".join(printed)
