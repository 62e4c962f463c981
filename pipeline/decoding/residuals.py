"""What speculative sampling draws after the drafted tokens that it accepts, on the device.

Which of them it accepts is decided on the host, from a few numbers. Where to read is to wait, all
that a decision may need is computed ahead and read with the rest of the call; elsewhere it is
computed when it is asked for. The laws are those of `analysis.decoding.laws` and
`analysis.trees.laws`, on tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from analysis.decoding.laws import Floats, pick
from pipeline.decoding.choices import invert
from pipeline.decoding.drafters import Draft
from pipeline.decoding.judging import Numbers
from pipeline.models import devices
from pipeline.models.devices import read, send


class Follow:
    """The token after the first a of n drafted tokens, for every a.

    Attributes:
        columns: what to read with the call; empty where nothing waits.
    """

    def __init__(
        self, p: Tensor, draft: Draft, uniforms: Floats, scale: Tensor | None = None
    ) -> None:
        """Draw from max(0, p - q), and from p after all tokens.

        Args:
            p: (n + 1, V) the target's distributions.
            draft: a chain of n tokens.
            uniforms: (n + 1,) numbers of the draws.
            scale: (n,) of p; None is 1.
        """
        self._p, self._drafted, self._q, self._scale = p, draft.tokens, draft.weights, scale
        self._uniforms = uniforms
        self.columns: list[Tensor] = []
        if devices.waits(p.device):
            self.columns = [invert(self._weights(0, len(p)), send(uniforms.copy(), p.device))]

    def of(self, found: list[Numbers]) -> Callable[[int], int]:
        """Return what gives the token after a accepted ones, from what `columns` hold."""
        if found:
            return found[0].item
        return lambda a: pick(read(self._weights(a, a + 1))[0][0], self._uniforms[a])

    def excess(self, begin: int) -> Tensor:
        """Return what is left of p in all (n - begin,): the sums of max(0, p - q)."""
        return self._excess(begin, len(self._drafted)).sum(1)

    def _weights(self, begin: int, end: int) -> Tensor:
        drafted = self._excess(begin, end)
        last = len(self._drafted)
        rest = or_else(drafted, self._p[begin : begin + len(drafted)])
        return torch.cat([rest, self._p[last:end]]) if end > last else rest

    def _excess(self, begin: int, end: int) -> Tensor:
        rows = slice(begin, min(end, len(self._drafted)))
        p = self._p[rows]
        if self._scale is not None:
            p = p * self._scale[rows, None]
        if self._q is None:  # q is 1 at the drafted token
            return p.scatter(1, self._drafted[rows, None], 0.0)
        return (p - self._q[rows]).clamp_(min=0)


class Siblings:
    """The tests of the children of a node, one after the other, and the token where all fail.

    Attributes:
        columns: what to read with the call; empty where nothing waits.
    """

    def __init__(self, p: Tensor, q: Tensor, drafted: list[Tensor], uniform: float) -> None:
        """Test tokens, of no dimension each, under the target's and the draft's weights (1, V).

        `uniform` is the number with which the token is drawn.
        """
        self._p, self._q, self._drafted, self._uniform = p, q, drafted, uniform
        self.columns: list[Tensor] = []
        if devices.waits(p.device):
            pairs = [torch.empty((0, 2), dtype=p.dtype, device=p.device), *self._pairs()]
            at = send(np.array([uniform]), p.device)
            self.columns = [torch.cat(pairs), invert(self._p, at)]

    def of(self, found: list[Numbers]) -> tuple[Iterable[Numbers], Callable[[], int]]:
        """Return p and q of each child, given that those before failed, and what draws the token.

        The token is drawn after the last child was asked for.
        """
        if found:
            return found[0], found[1].item
        pairs = (read(pair)[0][0] for pair in self._pairs())
        return pairs, lambda: pick(read(self._p)[0][0], self._uniform)

    def _pairs(self) -> Iterator[Tensor]:
        """Give (1, 2) numbers a child, and go on as if it failed."""
        for token in self._drafted:
            at = token.clamp(min=0)[None, None]
            yield torch.cat([self._p.gather(1, at), self._q.gather(1, at)], 1)
            drafted = token >= 0  # else there is no such child
            rest = or_else((self._p - self._q).clamp_(min=0), self._p)
            others = self._q.scatter(1, at, 0.0)
            self._p = torch.where(drafted, rest / rest.sum(), self._p)
            left = others / others.sum()
            self._q = torch.where(drafted & others.any(), left, self._q)


def or_else(weights: Tensor, others: Tensor) -> Tensor:
    """Return rows of weights (n, V), and those of `others` where a row has none above 0."""
    return torch.where(weights.any(1, keepdim=True), weights, others)
