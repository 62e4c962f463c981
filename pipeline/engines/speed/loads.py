"""Runs at several loads: which belong together, how each compares at its load, what steps cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from analysis.decoding.draft_length import costs_by_length
from analysis.statistics.bootstrap import Resampling
from pipeline.core.errors import PipelineError
from pipeline.engines.speed.comparison import SAME_LOAD, Speed, clocks_of, compare
from pipeline.engines.speed.recommendation import known_rates
from pipeline.engines.speed.runs import Run
from pipeline.engines.speed.step_costs import Costs, costs_between


@dataclass(frozen=True)
class Load:
    """The runs at one load, compared with the one of them that is without drafts."""

    requests: int | None  # at once; None where nothing tells it
    base: Run
    runs: Sequence[Run]
    speeds: Sequence[Speed]
    notes: Sequence[str]

    @cached_property
    def measured(self) -> dict[int, tuple[Run, Speed]]:
        """The runs that compare, by draft length; of one length the fastest."""
        pairs = [
            (run, speed)
            for run, speed in zip(self.runs, self.speeds, strict=True)
            if run.length
            and speed.compares
            and not run.hardly_drafts
            and not math.isnan(speed.times)
        ]
        return {run.length or 0: (run, speed) for run, speed in sorted(pairs, key=_times)}

    @cached_property
    def costs(self) -> Costs | None:
        """The costs that were seen at this load; None where no step's cost is known."""
        known = {
            length: speed
            for length, (_, speed) in self.measured.items()
            if not math.isnan(speed.cost)
        }
        if not known:
            return None
        decoding = next(iter(known.values())).decoding
        rests = {0: 1.0 - decoding} | {length: speed.rest for length, speed in known.items()}
        longest = max(known)
        return Costs(
            costs_by_length({length: speed.cost for length, speed in known.items()}, longest + 1),
            np.interp(
                np.arange(longest + 2), sorted(rests), [rests[length] for length in sorted(rests)]
            ),
            decoding,
            frozenset(known),
        )


def _times(pair: tuple[Run, Speed]) -> float:
    return pair[1].times


def compare_by_load(runs: Sequence[Run], statistics: Resampling) -> tuple[list[Load], list[str]]:
    """Group runs by load and compare each with the one without drafts; also say what is left out.

    The first run has no drafts, and each further load has one without drafts. A run whose load only
    its page shows belongs to the load with about as many requests in a step.
    """
    bases = _bases(runs)
    members: list[list[Run]] = [[] for _ in bases]
    notes = _notes(runs)
    for run in runs[1:]:
        if any(run is base for base in bases):
            continue
        index = _base_of(run, bases)
        if index is None:
            load = "an unknown load" if run.load is None else f"load {run.load}"
            notes.append(
                f"{run.path.name} is left out: it is of {load}, and no run without drafts is: give "
                "one"
            )
        else:
            members[index].append(run)
    loads = []
    for base, specs in zip(bases, members, strict=True):
        if not specs:
            notes.append(f"{base.path.name} has no run with drafts at its load, {base.load}")
            continue
        speeds, notes_on_speeds = compare(base, specs, statistics, clocks_of(runs))
        loads.append(Load(base.load, base, specs, speeds, notes_on_speeds))
    return sorted(loads, key=lambda load: load.requests or 0), notes


def _bases(runs: Sequence[Run]) -> list[Run]:
    """Return the runs without drafts, one for each load."""
    if all(run.has_drafter is False for run in runs):
        return [runs[0]]  # `compare` says that the others count no drafts
    bases = [runs[0]]
    for run in runs[1:]:
        if run.has_drafter is not False:
            continue
        same = next((base for base in bases if base.load == run.load), None)
        if same is not None:
            load = "which nothing tells" if run.load is None else str(run.load)
            raise PipelineError(
                f"{run.path} counts no drafts, as {same.path}, at the same load, {load}: give one "
                "run without drafts for each load"
            )
        bases.append(run)
    return bases


def _notes(runs: Sequence[Run]) -> list[str]:
    """Return notes on runs that several replicas served, or that had fewer requests than asked."""
    notes = []
    for run in runs:
        if run.asked is None:
            continue
        replicas = run.replicas or 1
        if replicas > 1:
            notes.append(
                f"{run.path.name} is of {replicas} replicas: of {run.asked} requests at once each "
                f"has {run.asked / replicas:.1f}"
            )
        served = run.in_flight if run.page is None else run.page.load * replicas
        if SAME_LOAD * served < run.asked:  # NaN compares as false
            notes.append(
                f"{run.path.name} was asked with {run.asked} at once, and {served:.1f} ran on "
                "average: send more prompts, or let the server run as many (vLLM: --max-num-seqs)"
            )
    return notes


def _base_of(run: Run, bases: Sequence[Run]) -> int | None:
    """Return the index of the base at a run's load; None if none is, or the load is unknown."""
    if len(bases) == 1:
        return 0  # `compare` says where the load is another
    if run.asked is not None:
        asked = [base.asked for base in bases]
        if run.asked in asked:
            return asked.index(run.asked)
    if run.page is None:
        return None
    ratios = []
    for base in bases:
        ratio = math.inf
        if base.page is not None and None in (run.asked, base.asked):
            ratio = _ratio(run.page.load, base.page.load)
        ratios.append(ratio if ratio <= SAME_LOAD else math.inf)
    nearest = min(range(len(bases)), key=ratios.__getitem__)
    return nearest if math.isfinite(ratios[nearest]) else None


def _ratio(one: float, other: float) -> float:
    """Return how many times the larger of two loads is the smaller; infinite if one is not told."""
    if not (one > 0 and other > 0):  # NaN compares as false
        return math.inf
    return max(one, other) / min(one, other)


def rates_and_draft_share(loads: Sequence[Load]) -> tuple[list[float], float]:
    """Return acceptance by position of the longest drafts, and the share of passes with a draft.

    An empty list and NaN if no run has them.
    """
    runs = [run for load in loads for run, _ in load.measured.values() if known_rates(run)]
    if not runs:
        return [], math.nan
    longest = max(runs, key=lambda run: run.length or 0)
    share = longest.draft_share
    return known_rates(longest), 1.0 if math.isnan(share) else min(share, 1.0)


def costs_at(loads: Sequence[Load], requests: int | None) -> Costs | None:
    """Return the costs at a load: measured there, else between its neighbours, else the nearest."""
    measured = [(load.requests, costs) for load in loads if (costs := load.costs) is not None]
    if not measured:
        return None
    by_load = {load: costs for load, costs in measured if load is not None}
    if requests is None or not by_load:
        load, costs = measured[0]
        return replace(
            costs, origin="at a load that is not told" if load is None else f"at load {load}"
        )
    if requests in by_load:
        return by_load[requests]
    below = max((load for load in by_load if load < requests), default=None)
    above = min((load for load in by_load if load > requests), default=None)
    if below is None or above is None:
        nearest = next(load for load in (below, above) if load is not None)
        return replace(by_load[nearest], origin=f"at load {nearest}, the nearest")
    return costs_between(requests, (below, by_load[below]), (above, by_load[above]))
