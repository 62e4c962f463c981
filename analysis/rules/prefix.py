"""The prefix rule: a drafted token may cost something if cheap ones follow it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .rule import Cut, Rule, parameter, register

if TYPE_CHECKING:
    from ..topk import TopK

MU: Any = ("a number above 0", lambda mu: mu > 0)
COST: Any = ("nats or probability", lambda word: word in ("nats", "probability"), "nats")


@register("prefix")
@dataclass(frozen=True)
class Prefix(Rule):
    """Accept the longest L that maximises L - mu (c_1 + ... + c_L), c_i the cost of token i.

    The cost of a drafted token y, after the drafted tokens before it, is log(p0 / p(y)) nats or
    p0 - p(y) (docs/method.md, section 16). A call accepts every prefix whose tokens all have
    c <= 1/mu: those that multiplicative alpha = exp(-1/mu) accepts, or additive t = 1/mu. Their
    certificates hold for it, and for a first token with nothing behind it they are exact. A large
    mu is strict greedy. Decoding chooses among the paths of a whole draft, by `best_path`; where
    single tokens are judged it is the threshold 1/mu.
    """

    shown: ClassVar[str] = "Prefix (μ = {mu:g}, {cost})"
    relaxes: ClassVar[Mapping[str, int]] = {"mu": -1}
    decided_by: ClassVar[tuple[str, ...]] = ("top_surprisal",)

    mu: float = parameter(*MU)
    cost: str = parameter(*COST)

    def cut(self, _dist: TopK, /) -> Cut:
        """Return p > exp(-1/mu) p0, or p > p0 - 1/mu."""
        if self.cost == "nats":
            return Cut(offset=0.0, slope=math.exp(-1 / self.mu))
        return Cut(offset=-min(1 / self.mu, 1.0), slope=1.0)


def best_path(parents: Sequence[int], costs: Sequence[float], mu: float) -> tuple[int, ...]:
    """Return the path of a draft that maximises its length less mu times its cost.

    Of equal paths the longest, then the first. With gain g_i = 1 - mu c_i and B_i the most that can
    be gained behind node i, B_i = max(0, max over its children j of g_j + B_j).

    Args:
        parents: of n drafted tokens, before them; -1 is the text. A chain is -1, 0, 1, ...
        costs: of each, at least 0; infinite for one that can't be taken.
        mu: tokens for a unit of cost, above 0; infinite takes tokens of cost 0.

    Example:
        >>> best_path([-1, 0, 1], [0.6, 0.1, 2.0], 1.0)  # 0.4 + 0.9, then -1
        (0, 1)
    """
    best: list[tuple[float, int, tuple[int, ...]]] = [(0.0, 0, ())] * (len(parents) + 1)
    for node in reversed(range(len(parents))):  # children before their parents
        gain, length, path = best[node]
        gain += 1 - mu * costs[node] if costs[node] else 1.0
        above = parents[node]
        if (gain, length + 1) >= best[above][:2]:  # the first of equal siblings comes last
            best[above] = (gain, length + 1, (node, *path))
    return best[-1][2]
