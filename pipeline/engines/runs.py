"""Runs of an engine beside each other: acceptance, tokens per pass, cost of a step, speed-up.

A run is a file of answers, or a page of /metrics. Seconds are, where both runs have them of every
answer, those of decoding by the engine's clock (llama.cpp), else those of whole requests
(`pipeline.ask`), with an interval over prompts; else those of the pages, without one. The servers
must have answered the same requests at the same load.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.decoding.metrics import formula_speedup
from analysis.decoding.speed import speedups
from analysis.report.text import estimate_text
from analysis.statistics.bootstrap import PromptBootstrap, Resampling
from analysis.statistics.estimate import Estimate
from analysis.statistics.trajectories import acceptance_by_position
from pipeline.core.errors import PipelineError
from pipeline.engines.answers import read_bytes
from pipeline.engines.counts import Counts, read_sums
from pipeline.engines.pages import page_difference, page_of

LENGTH_NAMES = {"llama.cpp": "--spec-draft-n-max"}  # of the draft length; else vLLM's
SAME_TOKENS = 0.02  # by which the tokens of the same requests may differ
IMPLAUSIBLE = 20  # passes that a step costs
SURE = 1.1  # a gain without an interval, above which drafts are recommended without a doubt
CLOCKS = {"decode_seconds": "decoding, by the engine's clock", "seconds": "whole requests"}


@dataclass(frozen=True)
class Run:
    """A run of an engine."""

    path: Path
    length: int | None  # of a full draft; 0 without drafts, None where it is not told
    counts: Counts  # of its answers, or its page
    page: Counts | None  # the page, or the difference of those beside the answers

    @property
    def acceptance(self) -> tuple[list[float], float]:
        """The accepted share of tested tokens, by position and of all; nothing where not told."""
        counts = self.counts
        steps = [answer.per_step for answer in counts.answers.values()]
        if any(steps) and None not in steps:
            calls = [call for calls in steps for call in calls or ()]
            kept, tried = np.array(calls, dtype=np.intp).T
            tested, passed = acceptance_by_position(np.minimum(kept + 1, tried), kept)
            return (passed / tested).tolist(), float(passed.sum() / tested.sum())
        before = [counts.drafts, *counts.by_place[:-1]] if counts.by_place else []
        pairs = zip(counts.by_place, before, strict=True)  # all drafts are full
        rates = [passing / n if n else math.nan for passing, n in pairs]
        return rates, sum(counts.by_place) / sum(before) if sum(before) else math.nan


class Speed(NamedTuple):
    """How many times as fast as the base a run is, and the cost of a step.

    The cost is in passes of the base; NaN where something is not known.
    """

    times: Estimate = Estimate(math.nan)
    cost: float = math.nan

    @property
    def is_known(self) -> bool:
        """Whether both runs tell their seconds."""
        return not math.isnan(self.times.value)

    def __str__(self) -> str:
        if not self.is_known:
            return "-"
        return estimate_text(self.times, unit=" times", with_points=True)


def read_run(path: Path, length: int | None = None) -> Run:
    """Read a run: answers, or a page of /metrics; `length` where the file does not tell it.

    Of NAME.after.txt with NAME.before.txt beside it the page is the difference of the two.
    """
    counts = page = page_of(path)
    if counts is None:
        counts = read_sums(path)
        page = _page_beside(path, len(counts.answers))
        if page is not None and counts.by_place:
            passes = page.passes
            counts = replace(counts, passes=passes, most_passes=passes, emitted=page.emitted)
        elif page is not None and (page.drafts or not counts.engine):
            counts = replace(page, answers=counts.answers, excluded=counts.excluded)
    told = len(counts.by_place) or length
    return Run(path, told if counts.drafts and counts.drafted else 0, counts, page)


def _page_beside(path: Path, answers: int) -> Counts | None:
    """Return the sums between the pages beside answers; None where they do not cover all."""
    first, last, record = (path.with_suffix(end) for end in (".before.txt", ".after.txt", ".json"))
    if path.suffix != ".jsonl" or not all(file.is_file() for file in (first, last, record)):
        return None
    try:
        covered = json.loads(read_bytes(record))["answers_of_pages"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise PipelineError(
            f"{record} has no answers_of_pages, which pipeline.ask writes: ask again, ask.name=NAME"
        ) from None
    return page_difference(first, last, answers) if covered == answers else None


def compare(
    base: Run, runs: Sequence[Run], statistics: Resampling
) -> tuple[list[Speed], list[str]]:
    """Return the speed and the cost of a step of each run, and what the reader must know of them.

    The base is without drafts. Intervals, over prompts, hold for all runs together.
    """
    if base.length != 0:
        raise PipelineError(f"{base.path} counts drafts: give the run without drafts first")
    speeds, notes = [], []
    for run in runs:
        if run.length == 0:
            raise PipelineError(
                f"{run.path} counts no drafts: start this server with a drafter (llama.cpp's older "
                "/metrics count none: give its answers; vLLM's answers count them with "
                "--per-request-spec-decode-metrics detailed)"
            )
        engines = base.counts.engine, run.counts.engine
        if all(engines) and len({*engines}) > 1:
            raise PipelineError(
                f"{base.path} is of {engines[0]} and {run.path} of {engines[1]}: give those of one"
            )
        speed = gain(base.page, run.page) if base.page and run.page else Speed()
        if base.page and run.page:
            models = base.page.model, run.page.model
            if all(models) and models[0] != models[1]:
                notes.append(f"{base.path.name} is of {models[0]}, {run.path.name} of {models[1]}")
            tokens = base.page.emitted, run.page.emitted
            if abs(tokens[1] - tokens[0]) > SAME_TOKENS * tokens[0]:
                notes.append(
                    f"{base.path.name} counts {tokens[0]:,.0f} tokens and {run.path.name} "
                    f"{tokens[1]:,.0f}: other requests, or a server that was restarted"
                )
        if speed.cost <= 0:
            notes.append(f"{run.path.name}: a step would cost {speed.cost:.2f} passes")
            speed = speed._replace(cost=math.nan)
        elif speed.cost > IMPLAUSIBLE:
            notes.append(
                f"{run.path.name}: a step costs {speed.cost:.0f} passes, as in a server that still "
                "compiles"
            )
        speeds.append(speed)
    clock, of_answers = _by_answers([run.counts for run in (base, *runs)], statistics)
    if of_answers is not None:
        times = np.transpose(of_answers).tolist()
        speeds = [
            speed._replace(times=Estimate(*of_run))
            for speed, of_run in zip(speeds, times, strict=True)
        ]
    elif any(speed.is_known for speed in speeds):
        clock = "sums of the pages, prefill left out; without an interval"
    return speeds, [f"speed beside the target alone: {clock}"] * bool(clock) + notes


def gain(base: Counts, run: Counts) -> Speed:
    """Return the gain of a run with drafts over one without; NaN where a page lacks a count.

    It is seconds a token of the target alone over those with drafts. Passes without a draft cost
    as much as those of the target alone. With s0 seconds a pass of the target alone, a step with a
    draft costs (seconds - (passes - drafts) s0) / (drafts s0).
    """

    def over(above: float, below: float) -> float:
        return above / below if below else math.nan

    pass_seconds = over(base.seconds, base.passes)
    spent = run.seconds - (run.passes - run.drafts) * pass_seconds
    speedup = over(over(base.seconds, base.emitted), over(run.seconds, run.emitted))
    return Speed(Estimate(speedup), over(spent, run.drafts * pass_seconds))


def _by_answers(runs: Sequence[Counts], statistics: Resampling) -> tuple[str, Estimate | None]:
    """Return the clock that all runs have of each answer, and the (R - 1,) speeds."""
    answers = [run.answers for run in runs]
    prompts = [name for name in answers[0] if all(name in others for others in answers)]
    sizes = [[of[name].size or math.nan for of in answers] for name in prompts]
    tokens = np.array(sizes, dtype=np.float64)  # (P, R)
    for clock, words in CLOCKS.items():
        seconds = np.array([[getattr(of[name], clock) for of in answers] for name in prompts])
        if not prompts or not np.isfinite(seconds).all() or not np.isfinite(tokens).all():
            continue
        bootstrap = PromptBootstrap(np.arange(len(prompts)), *statistics)
        times = speedups(seconds, tokens, [0] * len(runs), [range(1, len(runs))], bootstrap)
        of_runs = Estimate(*(ends[1:] for ends in times))
        return f"{words}, {len(prompts)} prompts", of_runs
    return "", None


def recommendation(runs: Sequence[Run], speeds: Sequence[Speed]) -> list[str]:
    """Return the recommended draft length, which to measure next, and the engine's flags."""
    pairs = list(zip(runs, speeds, strict=True))
    known = [(run, speed) for run, speed in pairs if run.length and speed.is_known]
    if not known:
        lengths = "how long its drafts are (decoding.draft_length=N)"
        missing = [
            f"{run.path.name} does not tell {lengths if speed.is_known else 'seconds as BASE does'}"
            for run, speed in pairs
        ]
        return [
            f"no recommendation: {'; '.join(missing)}: give two pages of /metrics, or two files of "
            "answers that python -m pipeline.ask saved"
        ]
    run, speed = max(known, key=lambda pair: pair[1].times.value)
    length = run.length or 0
    name = LENGTH_NAMES.get(run.counts.engine, "num_speculative_tokens")
    following = _following(run, speed, {other.length for other, _ in known})
    if speed.times.value <= 1:
        best = f"the best length measured, {name} = {length}, is {speed} as fast"
        return [f"no drafts: {best}{following}"]
    sentence = f"{name} = {length}: {speed}"
    if speed.times.low <= 1:
        sentence = f"not decided, the interval holds 1: {sentence}"
    elif math.isnan(speed.times.low) and speed.times.value < SURE:
        sentence = f"not decided, below {SURE:g} and without an interval: {sentence}"
    flag = f"{name} {length}"
    if not name.startswith("-"):  # a key of vLLM's
        flag = f"--speculative-config '{{..., \"{name}\": {length}}}'"
    flags = f"flags: {flag}, the rest as in {run.path.name}'s server"
    return [f"{sentence}{following}", flags]


def _following(run: Run, speed: Speed, measured: Collection[int | None]) -> str:
    """Return which length to measure next: the closed form's best, at the cost of this run's steps.

    Without a cost it is the one that explains the speed, prefill left out.
    """
    _, rate = run.acceptance
    if math.isnan(rate):
        return ""
    length = run.length or 1
    cost = speed.cost
    if math.isnan(cost):
        cost = run.counts.tokens_per_pass[0] / speed.times.value
    rho = max(cost - 1, 0) / length
    best = max(range(length + 2), key=lambda n: formula_speedup(min(rate, 1.0), n, rho))
    if best == 0:
        return (
            f"; a drafted token costs {rho:.2f} passes and {rate:.2f} are accepted: no length pays"
        )
    return "" if best in measured else f"; {best} was not measured, ask with {best} next"


def screen(runs: Sequence[Run], speeds: Sequence[Speed] = ()) -> list[str]:
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
        if speeds:
            cost = speeds[i].cost
            row["a step costs"] = "-" if math.isnan(cost) else f"{cost:.2f} passes"
            row["speed"] = str(speeds[i])
        rows.append(row)
    return pd.DataFrame(rows).to_string(index=False).splitlines()


def _shown(form: str, *ends: float) -> str:
    """Return a number as printed, or the two ends between which it lies."""
    printed = dict.fromkeys("-" if math.isnan(end) else format(end, form) for end in ends)
    return " to ".join(printed)
