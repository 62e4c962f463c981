"""When a drafter stops: what it knows of the token to come, held against a threshold."""

from __future__ import annotations

import math

from torch import Tensor

from pipeline.decoding.choices import BrokenLogitsError
from pipeline.models.devices import read
from pipeline.models.logit_statistics import chosen_statistics, top_k_unread
from pipeline.plan.method import Drafting


class Threshold:
    """Says that a drafter stops, from its own logits alone.

    What it says of a token depends on the text and the tokens drafted before it, not on the token
    that would be drafted: what is emitted stays what it was.
    """

    def __init__(self, drafting: Drafting) -> None:
        """Stop where the largest probability is not above, or the entropy not below, a number."""
        self._drafting = drafting

    def __call__(self, logits: Tensor) -> bool:
        """Return whether a drafter with these logits (1, V) of the next token stops."""
        value = float(measured(self._drafting.measure, logits)[0])
        if not math.isfinite(value):
            raise BrokenLogitsError("drafter")
        if self._drafting.measure == "entropy":
            return value >= self._drafting.threshold
        return value <= self._drafting.threshold


def measured(measure: str, logits: Tensor) -> list[float]:
    """Return max_q, the largest probability, or the entropy (nats) of logits (r, V)."""
    names = {"max_q": "top_surprisal", "entropy": "entropy"}
    _, ids = top_k_unread(logits.float(), 1)
    (values,) = read(*chosen_statistics(logits, ids, [names[measure]]))
    found = [float(value) for value in values]
    return [min(math.exp(-value), 1.0) for value in found] if measure == "max_q" else found
