"""The speed of each draft length at each load, measured or predicted.

With the acceptance rates by position, which are the same at every load, and the cost c(g) of a step
with a draft of g tokens, decoding is L(g) / c(g) times as fast (`expected_tokens`). Whole requests
also wait for prefill and for their turn, which drafts don't shorten. In units of the seconds of a
request without drafts: if decoding takes d of them, and with drafts everything else takes r, whole
requests are 1 / (r + d c(g) / L(g)) times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.decoding.draft_length import expected_tokens
from pipeline.core.errors import PipelineError
from pipeline.engines.speed.comparison import Speed
from pipeline.engines.speed.loads import Load, costs_at, rates_and_draft_share
from pipeline.engines.speed.recommendation import doubt_of
from pipeline.engines.speed.runs import Run
from pipeline.engines.speed.step_costs import MEASURED, Costs


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
    between = [requests for requests in doubled if requests < max(ends) and requests not in ends]
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
    for load in requests:
        costs = costs_at(loads, load)
        if costs is None:
            raise PipelineError(
                "what_if: no run that compares tells the cost of a step: give pages of /metrics, "
                "or answers that python -m pipeline.ask saved"
            )
        rows += _predicted(load, costs, rates, 1.0 if math.isnan(share) else share)
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
