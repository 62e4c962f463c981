"""What steps with drafts cost at a load: measured there, or predicted from other loads.

`costs_by_length` gives the costs between measured lengths, `between_loads` those between two
measured loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.decoding.draft_length import between_loads, expected_tokens, over_all_passes
from analysis.topk import Floats

MEASURED = "measured"


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


def costs_between(requests: int, below: tuple[int, Costs], above: tuple[int, Costs]) -> Costs:
    """Return the costs between two loads, up to the length that both have."""
    size = min(len(below[1].steps), len(above[1].steps))

    def interpolated(name: str) -> Floats:
        ends = (np.atleast_1d(getattr(costs, name))[:size] for costs in (below[1], above[1]))
        return between_loads(requests, (below[0], next(ends)), (above[0], next(ends)))

    return Costs(
        interpolated("steps"),
        interpolated("rests"),
        float(interpolated("decoding")[0]),
        below[1].lengths & above[1].lengths,
        f"between loads {below[0]} and {above[0]}",
        (below[1], above[1]),
    )
