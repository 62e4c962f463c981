"""Runs at several loads: which belong together, and the speed of each draft length at each load.

What was not measured is predicted. With the acceptance rates by position, which carry over from one
load to another, and the cost c of a step with a draft of g tokens, decoding is L(g) / c(g) times as
fast (`expected_tokens`). Whole requests also wait for prefill and for their turn, which drafts
don't shorten. In seconds of a request without drafts: if decoding takes d of them, and with drafts
everything else takes r, whole requests are 1 / (r + d c(g) / L(g)) times as fast. `costs_by_length`
gives the costs between measured lengths, `between_loads` those between two measured loads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from analysis.decoding.draft_length import (
    between_loads,
    costs_by_length,
    expected_tokens,
    over_all_passes,
)
from analysis.statistics.bootstrap import Resampling
from analysis.topk import Floats
from pipeline.core.errors import PipelineError
from pipeline.engines.comparison import SAME_LOAD, Speed, clocks_of, compare
from pipeline.engines.recommendation import doubt_of, known_rates
from pipeline.engines.runs import Run

MEASURED = "measured"


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
            np.interp(np.arange(longest + 2), sorted(rests), [rests[at] for at in sorted(rests)]),
            decoding,
            frozenset(known),
        )


@dataclass(frozen=True)
class Costs:
    """What drafts of 0, 1, ..., G tokens cost at a load."""

    steps: Floats  # (G + 1,) of a step, in passes of the target alone
    rests: Floats  # (G + 1,) seconds of a request outside of passes, in those of one without drafts
    decoding: float  # share of the seconds of a request without drafts that are passes
    lengths: frozenset[int]  # of which the cost was measured
    origin: str = ""  # where the costs come from, if not from this load
    ends: Sequence[Costs] = field(default=())  # at the measured loads around it

    def speeds(self, rates: Sequence[float], share: float) -> Floats:
        """Return the predicted speed (G + 1,) at acceptance rates by position.

        A `share` of the passes has a draft.
        """
        tokens = over_all_passes(expected_tokens(rates, len(self.steps) - 1), share)
        cost = over_all_passes(self.steps, share)
        speeds: Floats = 1.0 / (self.rests + self.decoding * cost / tokens)
        return speeds

    def source(self, length: int) -> str:
        """Say where the cost of a step of this length comes from."""
        if length in self.lengths:
            of_length = "" if self.ends else MEASURED
        elif length == len(self.steps) - 1:
            of_length = "beyond the longest"
        else:
            of_length = "between lengths"
        return (", " if self.ends else " ").join(part for part in (of_length, self.origin) if part)


@dataclass(frozen=True)
class Row:
    """A draft length at a load."""

    load: int | None  # requests at once
    length: int | None  # of a draft
    speed: Speed  # with its interval; of a predicted one the speeds at the loads around it
    acceptance_length: float  # tokens of a call with a draft, the target's own included
    tokens_per_pass: float  # of all passes
    run: Run | None = None  # that measured it; None: predicted
    source: str = MEASURED  # where the cost of a step comes from

    @property
    def verdict(self) -> str:
        """What has to be said of the speed."""
        if self.run is None:
            return "predicted"
        if not self.speed.compares:
            return "does not compare"
        if self.run.hardly_drafts:
            return "hardly any drafts"
        return "not sure" if self.speed.times > 1 and doubt_of(self.speed) else ""

    def cells(self) -> dict[str, str]:
        """Return what is printed."""
        speed = str(self.speed)
        if self.run is None:
            ends = f" ({self.speed.low:.2f} to {self.speed.high:.2f})"
            speed = f"{self.speed.times:.2f} times" + ("" if math.isnan(self.speed.low) else ends)
        return {
            "load": _shown(self.load, "d"),
            "in flight": "" if self.run is None else _shown(self.run.in_flight, ".1f"),
            "drafts of": _shown(self.length, "d"),
            "acceptance length": _shown(self.acceptance_length, ".3f"),
            "tokens per pass": _shown(self.tokens_per_pass, ".3f"),
            "a step costs": _shown(self.speed.cost, ".2f", " passes"),
            "its cost was": self.source,
            "speed": ", ".join(text for text in (speed, self.verdict) if text),
        }

    def columns(self) -> dict[str, object]:
        """Return the row of the CSV file."""
        return {
            "load": self.load,
            "in_flight": math.nan if self.run is None else self.run.in_flight,
            "draft_length": self.length,
            "acceptance_length": self.acceptance_length,
            "tokens_per_pass": self.tokens_per_pass,
            "cost": self.speed.cost,
            "cost_source": self.source,
            "speed": self.speed.times,
            "speed_ci_low": math.nan if self.run is None else self.speed.low,
            "speed_ci_high": math.nan if self.run is None else self.speed.high,
            "known": "predicted" if self.run is None else MEASURED,
            "verdict": self.verdict,
            "run": "" if self.run is None else self.run.path.name,
        }


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
        at = _base_of(run, bases)
        if at is None:
            load = "an unknown load" if run.load is None else f"load {run.load}"
            notes.append(
                f"{run.path.name} is left out: it is of {load}, and no run without drafts is: give "
                "one"
            )
        else:
            members[at].append(run)
    loads = []
    for base, specs in zip(bases, members, strict=True):
        if not specs:
            notes.append(f"{base.path.name} has no run with drafts at its load, {base.load}")
            continue
        speeds, said = compare(base, specs, statistics, clocks_of(runs))
        loads.append(Load(base.load, base, specs, speeds, said))
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
    known = [(load.requests, costs) for load in loads if (costs := load.costs) is not None]
    if not known:
        return None
    placed = [(at, costs) for at, costs in known if at is not None]
    if requests is None or not placed:
        of, costs = known[0]
        return _moved(costs, "at a load that is not told" if of is None else f"at load {of}")
    exact = [costs for at, costs in placed if at == requests]
    if exact:
        return exact[0]
    below = max((pair for pair in placed if pair[0] < requests), default=None, key=lambda p: p[0])
    above = min((pair for pair in placed if pair[0] > requests), default=None, key=lambda p: p[0])
    if below is None or above is None:
        at, costs = below or above or placed[0]
        return _moved(costs, f"at load {at}, the nearest")
    return _between(requests, below, above)


def _moved(costs: Costs, origin: str) -> Costs:
    return Costs(costs.steps, costs.rests, costs.decoding, costs.lengths, origin)


def _between(requests: int, below: tuple[int, Costs], above: tuple[int, Costs]) -> Costs:
    """Return the costs between two loads, up to the length that both have."""
    size = min(len(below[1].steps), len(above[1].steps))

    def at(name: str) -> Floats:
        ends = (np.atleast_1d(getattr(costs, name))[:size] for costs in (below[1], above[1]))
        return between_loads(requests, (below[0], next(ends)), (above[0], next(ends)))

    return Costs(
        at("steps"),
        at("rests"),
        float(at("decoding")[0]),
        below[1].lengths & above[1].lengths,
        f"between loads {below[0]} and {above[0]}",
        (below[1], above[1]),
    )


def load_rows(loads: Sequence[Load]) -> list[Row]:
    """Return a row for each load and draft length, measured or predicted."""
    rates, share = rates_and_draft_share(loads)
    rows = []
    for load in loads:
        measured = [
            _measured(load.requests, run, speed)
            for run, speed in zip(load.runs, load.speeds, strict=True)
        ]
        costs = load.costs
        predicted = []
        if costs is not None and rates:
            every = _predicted(load.requests, costs, rates, share)
            predicted = [row for row in every if row.length not in load.measured]
        rows += sorted([*measured, *predicted], key=lambda row: row.length or math.inf)
    return rows


def rows_between(loads: Sequence[Load]) -> list[Row]:
    """Return the predicted rows at twice, four times, ... the smallest load, between measured ones.

    None where no two loads tell the cost of a step, or no run its rates.
    """
    ends = [load.requests for load in loads if load.requests and load.costs is not None]
    if len(ends) < 2 or not rates_and_draft_share(loads)[0]:
        return []
    doubled = [min(ends) * 2**times for times in range(1, max(ends).bit_length())]
    between = [at for at in doubled if at < max(ends) and at not in ends]
    return predicted_rows(loads, between, None)


def predicted_rows(
    loads: Sequence[Load], requests: Sequence[int | None], acceptance: float | None
) -> list[Row]:
    """Return a row for each of the loads and each draft length, all predicted.

    `acceptance` is the rate at each position; None: the rates that were measured.

    Raises:
        PipelineError: no run tells its rates, or the cost of a step.
    """
    rates, share = rates_and_draft_share(loads)
    if acceptance is not None:
        rates = [acceptance]
    if not rates:
        raise PipelineError(
            "what_if: no run that compares tells acceptance by position: give what_if.acceptance=N"
        )
    rows = []
    for at in requests:
        costs = costs_at(loads, at)
        if costs is None:
            raise PipelineError(
                "what_if: no run that compares tells the cost of a step: give pages of /metrics, "
                "or answers that python -m pipeline.ask saved"
            )
        rows += _predicted(at, costs, rates, 1.0 if math.isnan(share) else share)
    return rows


def _measured(requests: int | None, run: Run, speed: Speed) -> Row:
    counts = run.counts
    least, most = counts.tokens_per_pass
    accepted = counts.accepted / (counts.drafts or math.nan)
    source = "not known" if math.isnan(speed.cost) else MEASURED
    tokens = (least + most) / 2
    return Row(requests, run.length, speed, 1.0 + accepted, tokens, run, source)


def _predicted(
    requests: int | None, costs: Costs, rates: Sequence[float], share: float
) -> list[Row]:
    """Return the rows of drafts of 1, 2, ... tokens."""
    longest = len(costs.steps) - 1
    tokens = expected_tokens(rates, longest)
    speeds = costs.speeds(rates, share)
    ends = [end.speeds(rates, share) for end in costs.ends]
    rows = []
    for length in range(1, longest + 1):
        between = [float(end[length]) for end in ends]
        speed = Speed(
            float(speeds[length]),
            min(between, default=math.nan),
            max(between, default=math.nan),
            float(costs.steps[length]),
        )
        kept = float(tokens[length])
        whole = 1.0 + share * (kept - 1.0)
        rows.append(Row(requests, length, speed, kept, whole, source=costs.source(length)))
    return rows


def load_table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table of loads."""
    shown = pd.DataFrame([row.cells() for row in rows])
    if all(row.run is None for row in rows):
        shown = shown.drop(columns="in flight")
    return shown.to_string(index=False).splitlines()


def _shown(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None or math.isnan(value) else format(value, form) + unit
