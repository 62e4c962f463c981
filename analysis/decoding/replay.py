"""Calls of an engine beside those predicted along its answers: equal, certified, rate by place.

A call is (drafted, accepted). A call that begins at step s of an answer, the first token having
come from the prompt's pass, is followed by one at s + accepted + 1. Where an engine does not tell
its calls apart, there are sums, and only these are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..statistics.bootstrap import Flags

Call = tuple[int, int]  # drafted, accepted


@dataclass
class Replayed:
    """What a comparison of answers counted.

    Attributes:
        answers: compared.
        equal_answers: of them, those whose calls, or sums, are all equal.
        calls: of the engine, each answer's last one aside; 0 where it does not tell them apart.
        equal_calls: of them, those that the prediction has as well.
        accepted: tokens, predicted and counted.
        tested: certified tokens that the engine tested.
        rejected: of them, those that it rejected.
        different: the first answer that is not equal.
    """

    answers: int = 0
    equal_answers: int = 0
    calls: int = 0
    equal_calls: int = 0
    accepted: list[int] = field(default_factory=lambda: [0, 0])
    tested: int = 0
    rejected: int = 0
    different: str = ""

    def add(self, name: str, predicted: Sequence[Call], counted: Sequence[Call]) -> None:
        """Compare the calls with a draft of an answer; the last may go on behind its end."""
        theirs, ours = begins(counted)[:-1], set(begins(predicted))
        found = sum(call in ours for call in theirs)
        self.calls += len(theirs)
        self.equal_calls += found
        self._count(name, found == len(theirs), predicted, counted)

    def add_sums(self, name: str, predicted: Sequence[Call], accepted: int, beyond: int) -> None:
        """Compare the accepted tokens of an answer, of which `beyond` may lie behind its end."""
        ours = sum(kept for _, kept in predicted)
        self._count(name, ours <= accepted <= ours + beyond, predicted, [(0, accepted)])

    def _count(
        self, name: str, equal: bool, predicted: Iterable[Call], counted: Iterable[Call]
    ) -> None:
        self.answers += 1
        self.equal_answers += equal
        self.different = self.different or ("" if equal else name)
        for at, calls in enumerate((predicted, counted)):
            self.accepted[at] += sum(kept for _, kept in calls)

    def certify(self, counted: Sequence[Call], certified: Flags) -> None:
        """Count the certified tokens that the engine tested and rejected.

        Args:
            counted: calls of an answer that drafts in every pass.
            certified: (D, n) at each depth, of the answer's steps.
        """
        depths, size = certified.shape
        for begin, drafted, kept in begins(counted):
            for place in range(min(kept + 1, drafted, size - begin)):
                if certified[min(place, depths - 1), begin + place]:
                    self.tested += 1
                    self.rejected += place == kept


def begins(calls: Sequence[Call]) -> list[tuple[int, int, int]]:
    """Return calls in a row with the step at which each begins.

    Examples:
        >>> begins([(3, 2), (3, 0), (3, 3)])
        [(1, 3, 2), (4, 3, 0), (5, 3, 3)]
    """
    step, found = 1, []
    for drafted, kept in calls:
        found.append((step, drafted, kept))
        step += kept + 1
    return found


def rates_by_place(calls: Iterable[Call], length: int) -> list[float]:
    """Return the share of tested tokens that were accepted at each place of a draft.

    Examples:
        >>> rates_by_place([(2, 2), (2, 0), (1, 1)], 2)
        [0.6666666666666666, 1.0]
    """
    table = np.array(list(calls), dtype=np.intp).reshape(-1, 2)
    drafted, kept = table[:, 0], table[:, 1]
    shares = []
    for place in range(1, length + 1):
        tested = (drafted >= place) & (kept >= place - 1)
        shares.append(float(np.mean(kept[tested] >= place)) if tested.any() else float("nan"))
    return shares
