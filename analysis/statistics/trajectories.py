"""Where each prompt's trajectory lies among the steps of a study."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .bootstrap import Flags, Integers

# Share of segments cut by the trajectories' ends above which a length is a lower bound: long_run is
# over a ninth larger than per_call then.
CENSORED = 0.1


@dataclass(frozen=True)
class Trajectories:
    """Where each prompt's trajectory lies among the steps; lengths may differ.

    Attributes:
        starts: (P,) index of the first step of each trajectory.
        prompts: (N,) index of the trajectory of each step.
    """

    starts: Integers
    prompts: Integers

    @classmethod
    def from_positions(cls, position: NDArray[np.integer]) -> Trajectories:
        """Find the trajectories from the (N,) position of each step in its own, 0-based.

        Raises:
            ValueError: the steps are not in order, or a trajectory has a gap.
        """
        position = np.asarray(position)
        starts = np.flatnonzero(position == 0)
        prompts = np.cumsum(position == 0) - 1
        if len(position) == 0 or position[0] != 0:
            raise ValueError("the first step must be step 0 of its trajectory")
        if not np.array_equal(position, np.arange(len(position)) - starts[prompts]):
            raise ValueError(
                "the steps of a trajectory must be in order and without a gap: 0, 1, 2, ..."
            )
        return cls(starts, prompts)

    def total(self, flags: Flags | Integers) -> Integers:
        """Sum (E, N) values over the steps of each trajectory: (P, E)."""
        sums: Integers = np.add.reduceat(flags, self.starts, axis=1, dtype=np.intp).T
        return sums
