"""Runs of an engine beside one without drafts: speed-up, cost of a step, and whether they compare.

Three clocks can time a run; the first that every answer of both runs has is taken. The engine's own
clock times decoding (llama.cpp); `pipeline.ask` times whole requests. Both give an interval over
prompts. Else the pages of /metrics do, with a rough interval from their numbers of requests. With
several requests at once the engine's clock is not taken: a request's decoding then waits for the
prefill of others, and drafts change how often. The servers must have answered the same requests at
the same load: where the counts show that they did not, nothing is recommended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from analysis.decoding.draft_length import drafting_pass_cost
from analysis.decoding.speed import MIN_VERIFY_RATIO, speed_bootstrap, speedups
from analysis.report.text import estimate_text
from analysis.statistics.bootstrap import Resampling
from analysis.statistics.estimate import Estimate
from pipeline.core.errors import PipelineError
from pipeline.engines.counts import UNDRAFTED, Counts
from pipeline.engines.registry import counts_remedy, engine_named
from pipeline.engines.speed.runs import Run

SAME_TOKENS = 0.02  # by which the tokens of the same requests may differ
MIN_FOR_COST = 0.1  # share of passes with a draft, from which on the cost of a step is told
SAME_LOAD = 1.5  # times as many requests at once; answers of other lengths leave other gaps
IMPLAUSIBLE = 20  # passes that a step costs
ROUGH_SPREAD = 0.3  # standard deviation of a request's log seconds per token: docs/engine.md
CLOCKS = {"decode_seconds": "decoding, by the engine's clock", "seconds": "whole requests"}
OF_PAGES = "sums of the pages, prefill left out"
OF_SEVERAL = ("seconds",)  # the clocks that hold with several requests at once


class Speed(NamedTuple):
    """How many times as fast as the base a run is, its interval, and the cost of a step.

    The cost is in passes of the base; NaN where something is not known.
    """

    times: float
    low: float = math.nan
    high: float = math.nan
    cost: float = math.nan
    rough: bool = False  # the interval is from the number of requests alone
    compares: bool = True  # with the base
    decoding: float = 1.0  # share of the base's seconds that are passes, and of which cost tells
    rest: float = 0.0  # seconds of the run that are no passes, in seconds of the base

    def __str__(self) -> str:
        if math.isnan(self.times):
            return "-"
        if math.isnan(self.low):
            return f"{self.times:.2f} times"
        unit = " times, roughly" if self.rough else " times"
        times = Estimate(self.times, self.low, self.high)
        return estimate_text(times, unit=unit, distinct_from=[1], zero_width=True)


def clocks_of(runs: Sequence[Run]) -> Sequence[str]:
    """Return the clocks of answers that hold for runs, the best first."""
    return OF_SEVERAL if any(map(_several_at_once, runs)) else tuple(CLOCKS)


def _several_at_once(run: Run) -> bool:
    return run.load is not None and run.load > 1


def compare(
    base: Run, runs: Sequence[Run], statistics: Resampling, clocks: Sequence[str] = ()
) -> tuple[list[Speed], list[str]]:
    """Return the speed and the cost of a step of each run, and what the reader must know of them.

    The base is without drafts. Intervals hold for all runs together. `clocks` are those of answers
    that may be taken; by default those that hold for these runs.
    """
    if base.has_drafter:
        raise PipelineError(f"{base.path} counts drafts: give the run without drafts first")
    for run in runs:
        if run.has_drafter is False:
            raise PipelineError(
                f"{run.path} counts no drafts: start this server with a drafter, or give what "
                f"counts them ({counts_remedy(engine_named(run.engine))})"
            )
        if base.engine and run.engine and base.engine != run.engine:
            raise PipelineError(
                f"{base.path} is of {base.engine} and {run.path} of {run.engine}: give those of one"
            )
    clock, speeds = _speeds(base, runs, statistics, clocks or clocks_of([base, *runs]))
    notes = [f"speed beside the target alone: {clock}"] if clock else []
    for i, run in enumerate(runs):
        doubts = _differences(base, run) + _doubts_of_cost(run, speeds[i].cost)
        if clock == OF_PAGES and _waits_for_others(base):
            doubts.append(
                f"{run.path.name}: with several requests at once {run.engine} counts the prefill "
                "of others as decoding: give answers that python -m pipeline.ask saved"
            )
        notes += doubts
        speeds[i] = speeds[i]._replace(compares=not doubts)
        if run.draft_share < MIN_FOR_COST:  # NaN compares as false
            speeds[i] = speeds[i]._replace(cost=math.nan)
            notes.append(
                f"{run.path.name}: {run.counts.drafts:,.0f} of {run.counts.least_passes:,.0f} "
                "passes had a draft: too few to tell what a step with one costs"
            )
    return speeds, notes


def _waits_for_others(run: Run) -> bool:
    """Say whether the seconds of a run's decoding hold the prefill of other requests."""
    return engine_named(run.engine).decoding_waits and _several_at_once(run)


def _speeds(
    base: Run, runs: Sequence[Run], statistics: Resampling, clocks: Sequence[str]
) -> tuple[str, list[Speed]]:
    """Return the clock, and the speed of each run by it with the cost of a step."""
    none = Speed(math.nan)
    pages = [gain(base.page, run.page) if base.page and run.page else none for run in runs]
    clock, of_answers = _by_answers([run.counts for run in (base, *runs)], statistics, clocks)
    if of_answers is None:
        if all(math.isnan(speed.times) for speed in pages):
            return "", pages
        z = float(norm.ppf(1 - (1 - statistics.confidence) / 2 / len(runs)))
        for i, run in enumerate(runs):
            if base.page and run.page:
                pages[i] = _roughly(pages[i], (base.page.requests, run.page.requests), z)
        return OF_PAGES, pages
    speeds = []
    for row, of_page, run in zip(np.transpose(of_answers).tolist(), pages, runs, strict=True):
        cost = math.nan if _waits_for_others(base) else of_page.cost
        shares = 1.0, 0.0
        if math.isnan(cost):
            cost = _cost_from_speed(run.counts, row[0])
        elif clock.startswith(CLOCKS["seconds"]):
            shares = _shares(base, run)
        speeds.append(Speed(row[0], row[1], row[2], cost, decoding=shares[0], rest=shares[1]))
    return clock, speeds


def _shares(base: Run, run: Run) -> tuple[float, float]:
    """Return `decoding` and `rest` of a run, whose requests have seconds and whose page has passes.

    The rest is mostly prefill, and the wait for it.
    """
    seconds = []
    for one in (base, run):
        whole = sum(answer.seconds for answer in one.counts.answers.values()) / one.tokens
        passes = one.page.seconds / one.page.emitted if one.page else math.nan
        seconds.append((whole, passes))
    whole, passes = seconds[0]
    if not (passes <= whole and seconds[1][1] <= seconds[1][0]):  # NaN compares as false
        return 1.0, 0.0
    return passes / whole, (seconds[1][0] - seconds[1][1]) / whole


def _cost_from_speed(counts: Counts, times: float) -> float:
    """Return the cost of a step that explains a speed; prefill, which has no draft, raises it."""
    passes = (counts.least_passes + counts.most_passes) / 2
    if not passes > 0:  # NaN compares as false
        return math.nan
    return drafting_pass_cost(counts.emitted / passes / times, counts.drafts / passes)


def _roughly(speed: Speed, requests: Sequence[float], z: float) -> Speed:
    """Return a speed with an interval from the numbers of requests, if these are known."""
    if not all(n > 0 for n in requests):  # NaN compares as false
        return speed
    half = z * ROUGH_SPREAD * math.sqrt(sum(1 / n for n in requests))
    ends = speed.times * math.exp(-half), speed.times * math.exp(half)
    return speed._replace(low=ends[0], high=ends[1], rough=True)


def _differences(base: Run, run: Run) -> list[str]:
    """Return why two runs do not compare: another model, other requests, another load."""
    differences = []
    if base.page and run.page:
        models = base.page.model, run.page.model
        if all(models) and models[0] != models[1]:
            differences.append(
                f"{base.path.name} is of {models[0]}, {run.path.name} of {models[1]}"
            )
    least, _ = base.counts.tokens_per_pass
    if least > UNDRAFTED:  # NaN compares as false
        differences.append(
            f"{base.path.name} has {least:.3f} tokens per pass, so something was drafted there"
        )
    tokens = _tokens_of_both(base, run)
    if abs(tokens[1] - tokens[0]) > SAME_TOKENS * tokens[0]:  # NaN compares as false
        differences.append(
            f"{base.path.name} counts {tokens[0]:,.0f} tokens and {run.path.name} "
            f"{tokens[1]:,.0f}: other requests, or a server that was restarted"
        )
    other_load = _load_difference(base, run)
    if other_load:
        differences.append(f"{other_load}: the speed is that of another load")
    return differences


def _load_difference(base: Run, run: Run) -> str:
    """Return how the loads of two runs differ, as asked, as measured or by pages; or nothing."""
    at_once = base.asked, run.asked
    if None not in at_once and at_once[0] != at_once[1]:
        return (
            f"{base.path.name} was asked with {at_once[0]} at once and {run.path.name} with "
            f"{at_once[1]}"
        )
    if base.page and run.page and base.replicas != run.replicas:
        return f"{base.path.name} has {base.replicas} replicas and {run.path.name} {run.replicas}"
    if None in at_once and base.page and run.page:
        loads = base.page.load, run.page.load
        if max(loads) > SAME_LOAD * min(loads):
            return (
                f"{base.path.name} served {loads[0]:.1f} requests a step and {run.path.name} "
                f"{loads[1]:.1f}"
            )
    measured = base.in_flight, run.in_flight
    if None not in at_once and max(measured) > SAME_LOAD * min(measured):
        return (
            f"{base.path.name} had {measured[0]:.1f} requests in flight and {run.path.name} "
            f"{measured[1]:.1f}"
        )
    return ""


def _tokens_of_both(base: Run, run: Run) -> tuple[float, float]:
    """Return the tokens of each run: of the answers that both have, else of all."""
    both = [name for name in base.counts.answers if name in run.counts.answers]
    if not both:
        return base.tokens, run.tokens
    of_base, of_run = (
        sum(counted.counts.answers[name].size or math.nan for name in both)
        for counted in (base, run)
    )
    return of_base, of_run


def _doubts_of_cost(run: Run, cost: float) -> list[str]:
    """Return why the cost of a step can't be right."""
    share = 1.0 if math.isnan(run.draft_share) else min(run.draft_share, 1.0)
    if 1.0 + share * (cost - 1.0) < MIN_VERIFY_RATIO:  # of all passes
        why = "less than a pass of the target alone: it had another load, or a busy machine"
        return [f"{run.path.name}: a step would cost {cost:.2f} passes, {why}"]
    if cost > IMPLAUSIBLE and share >= MIN_FOR_COST:
        why = "as in a server that still compiles"
        return [f"{run.path.name}: a step costs {cost:.0f} passes, {why}"]
    return []


def gain(base: Counts, run: Counts) -> Speed:
    """Return the gain of a run with drafts over one without; NaN where a page lacks a count.

    It is the seconds per token of the target alone over those with drafts. A pass without a draft
    costs as much as one of the target alone. With s0 seconds a pass of the target alone, a step
    with a draft costs (seconds - (passes - drafts) s0) / (drafts s0).
    """

    def over(above: float, below: float) -> float:
        return above / below if below else math.nan

    pass_seconds = over(base.seconds, base.least_passes)
    spent = run.seconds - (run.least_passes - run.drafts) * pass_seconds
    speedup = over(over(base.seconds, base.emitted), over(run.seconds, run.emitted))
    return Speed(speedup, cost=over(spent, run.drafts * pass_seconds))


def _by_answers(
    runs: Sequence[Counts], statistics: Resampling, clocks: Sequence[str]
) -> tuple[str, Estimate | None]:
    """Return the first clock that all runs have of each answer, and the (R - 1,) speeds by it."""
    answers = [run.answers for run in runs]
    prompts = [name for name in answers[0] if all(name in by_name for by_name in answers)]
    sizes = [[by_name[name].size or math.nan for by_name in answers] for name in prompts]
    tokens = np.array(sizes, dtype=np.float64)  # (P, R)
    for clock in clocks:
        seconds = np.array(
            [[getattr(by_name[name], clock) for by_name in answers] for name in prompts]
        )
        if not prompts or not np.isfinite(seconds).all() or not np.isfinite(tokens).all():
            continue
        bootstrap = speed_bootstrap(len(prompts), *statistics)
        speeds = speedups(seconds, tokens, [0] * len(runs), [range(1, len(runs))], bootstrap)
        of_runs = Estimate(*(numbers[1:] for numbers in speeds))
        return f"{CLOCKS[clock]}, {len(prompts)} prompts", of_runs
    return "", None
