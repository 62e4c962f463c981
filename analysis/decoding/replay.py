"""Calls of an engine compared with those predicted along its answers.

A call is (drafted, accepted). Prefill emits the first token of an answer; a call that
begins at step s is followed by one at s + accepted + 1. If an engine reports only sums over calls,
the sums are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..statistics.bootstrap import Flags

Call = tuple[int, int]  # drafted, accepted


@dataclass
class Replayed:
    """Counts of a comparison of answers."""

    answers: int = 0  # number of answers of which anything is compared
    equal_answers: int = 0  # answers whose calls, or sums, are all equal
    calls: int = 0  # the engine's calls without each answer's last one; 0 if it reports only sums
    equal_calls: int = 0  # those of these calls that were predicted
    # number of accepted tokens, predicted and counted
    accepted: list[int] = field(default_factory=lambda: [0, 0])
    tested: int = 0  # number of certified tokens that the engine tested
    rejected: int = 0  # number of these that it rejected
    different: str = ""  # name of the first answer that is not equal

    def add(self, name: str, predicted: Sequence[Call], counted: Sequence[Call]) -> None:
        """Compare the calls with a draft of an answer; the last may go beyond its end.

        Of an answer with a single one nothing is compared.
        """
        engine_calls, own_calls = _begins(counted)[:-1], set(_begins(predicted))
        if not engine_calls:
            return
        equal = sum(call in own_calls for call in engine_calls)
        self.calls += len(engine_calls)
        self.equal_calls += equal
        self._count(name, equal == len(engine_calls), predicted, counted)

    def add_sums(self, name: str, predicted: Sequence[Call], accepted: int, beyond: int) -> None:
        """Compare the accepted tokens of an answer; up to `beyond` may be after its end.

        Where all of them may be, nothing is compared.
        """
        if 0 < accepted <= beyond:
            return
        total = sum(accepted_of_call for _, accepted_of_call in predicted)
        self._count(name, total <= accepted <= total + beyond, predicted, [(0, accepted)])

    def _count(
        self, name: str, equal: bool, predicted: Iterable[Call], counted: Iterable[Call]
    ) -> None:
        self.answers += 1
        self.equal_answers += equal
        self.different = self.different or ("" if equal else name)
        for index, calls in enumerate((predicted, counted)):
            self.accepted[index] += sum(accepted for _, accepted in calls)

    def certify(self, counted: Sequence[Call], certified: Flags) -> None:
        """Count the certified tokens (D, n), by depth, that drafting calls tested and rejected."""
        depths, size = certified.shape
        for begin, drafted, accepted in _begins(counted):
            for place in range(min(accepted + 1, drafted, size - begin)):
                if certified[min(place, depths - 1), begin + place]:
                    self.tested += 1
                    self.rejected += place == accepted


def _begins(calls: Sequence[Call]) -> list[tuple[int, int, int]]:
    """Return consecutive calls with the step at which each begins."""
    step, rows = 1, []
    for drafted, accepted in calls:
        rows.append((step, drafted, accepted))
        step += accepted + 1
    return rows
