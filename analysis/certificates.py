"""Certificates: the least KL(p || q) at which a drafted token can be rejected.

`certify` gives them for many steps and rules at once: exact where the stored tokens determine
them, an interval that contains them elsewhere (docs/method.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.criteria import Cut, Mars, Rule, Tree, check_k
from analysis.distributions import Floats, TopK
from analysis.extremal import extremal_draft
from analysis.kernel import BLOCK, COUNTS, CUT, RANK, RATIO, TREE, certify_rows
from analysis.truncation import intervals

__all__ = ["Certificates", "accepted_counts", "certify", "extremal_draft"]


@dataclass(frozen=True, eq=False)
class Certificates:
    """Certificates of N steps under R rules; every array is (N, R).

    Attributes:
        lo: nats, float64; a drafter with KL(p || q) < lo is accepted.
        hi: nats, float64; equal to lo where the certificate is exact, +inf where nothing is
            rejected or that cannot be excluded.
        active_size: int32, |A| of Lemma 4.2 or Theorem 5.1 (at lo); 0 where nothing is rejected.
        accepted_count: int32, n; -1 where it is unknown, and for trees.
    """

    lo: Floats
    hi: Floats
    active_size: NDArray[np.int32]
    accepted_count: NDArray[np.int32]


@dataclass
class _Table:
    """The rules as the kernel reads them; row -1 means a constant."""

    kind: list[int]
    slope: list[float]
    gate: list[int]
    offset: list[float]
    offset_row: list[int]
    offsets: Floats
    limit: list[int]
    limit_row: list[int]
    limits: NDArray[np.int64]


def certify(dist: TopK, rules: Sequence[Rule], threads: int = 1) -> Certificates:
    """Compute the certificates of every step under every rule, in one pass.

    Args:
        dist: N steps.
        rules: R rules.
        threads: the steps are split over so many threads.

    Returns:
        Theorem 4.4 for rules of one token, Theorem 5.1 for trees, with intervals where the first
        rejected token is not stored. Relative error about 1e-14, of the stored logits.

    Raises:
        ValueError: too few tokens are stored for a rule, a rule needs raw logits and there are
            none, a rule of the user's gives an impossible count, or the ranks are not sorted.

    Example:
        >>> from analysis.criteria import StrictGreedy
        >>> certify(TopK.from_probabilities([[0.75, 0.25]]), [StrictGreedy()]).lo.round(6).tolist()
        [[0.130812]]
    """
    check_k(rules, dist.k, dist.vocab_size)
    table = _table(dist, rules)
    shape = (len(rules), len(dist))  # a rule's column is contiguous
    floats, ints = np.empty((2, *shape)), np.empty((2, *shape), dtype=np.int32)
    edges = np.linspace(0, len(dist), max(1, threads) + 1).astype(int).tolist()
    if threads <= 1:
        left = _run(dist, table, floats, ints, 0, len(dist))
    else:
        with ThreadPoolExecutor(threads) as pool:
            parts = pool.map(lambda first, last: _run(dist, table, floats, ints, first, last),
                             edges[:-1], edges[1:])
            left = np.sum(list(parts), axis=0)
    found = Certificates(floats[0].T, floats[1].T, ints[0].T, ints[1].T)
    for r in np.flatnonzero(left).tolist():
        open_ = np.flatnonzero(np.isnan(floats[0, r]))
        floats[0, r, open_], floats[1, r, open_], ints[0, r, open_], ints[1, r, open_] = (
            intervals(dist, rules[r], open_, ints[1, r, open_]))
    return found


def accepted_counts(dist: TopK, rule: Rule) -> NDArray[np.int32]:
    """Return the (N,) accepted counts of a rule given by its `cut`; -1 where unknown."""
    return np.ascontiguousarray(certify(dist, [rule]).accepted_count[:, 0])


def _table(dist: TopK, rules: Sequence[Rule]) -> _Table:
    kinds, cuts = zip(*(_cut(dist, rule) for rule in rules), strict=True) if rules else ((), ())
    offset, offset_row, offsets = _columns([cut.offset for cut in cuts], len(dist), np.float64)
    everything = dist.vocab_size
    limit, limit_row, limits = _columns(
        [everything if cut.max_rank is None else cut.max_rank for cut in cuts], len(dist), np.int64)
    return _Table(list(kinds), [cut.slope for cut in cuts],
                  [cut.strictly_above_rank for cut in cuts],
                  offset, offset_row, offsets, limit, limit_row, limits)


def _cut(dist: TopK, rule: Rule) -> tuple[int, Cut]:
    """Return the kind of a rule and what the kernel needs of it; counts pass as ranks."""
    size = dist.vocab_size
    if isinstance(rule, Tree):
        return TREE, Cut(max_rank=rule.m)
    if isinstance(rule, Mars):
        rule.raw_logits(dist)
        return RATIO, Cut(offset=rule.theta)
    if type(rule).accepted_count is not Rule.accepted_count:
        counts = np.asarray(rule.accepted_count(dist))
        good = ((counts >= 1) | ((counts == -1) & (dist.k < size))) & (counts <= size)
        if counts.shape != (len(dist),) or not np.all(good):
            raise ValueError(f"rule {rule.label!r}: accepted_count must give {len(dist)} integers "
                             f"in [1, {size}], or -1 where more than the stored tokens are "
                             "accepted")
        return COUNTS, Cut(max_rank=counts)
    cut = rule.cut(dist)
    if cut is None:
        raise ValueError(f"rule {rule.label!r} says nothing: give its class a method cut(dist) "
                         "or accepted_count(dist)")
    if cut.max_rank is not None and np.any(np.asarray(cut.max_rank) < 1):
        raise ValueError(f"rule {rule.label!r}: max_rank must be at least 1, x0 is accepted")
    ranks = 1 if cut.max_rank is None else int(np.max(cut.max_rank, initial=1)) + 1
    needed = min(max(ranks, cut.strictly_above_rank), size)
    if dist.k < needed:
        raise ValueError(f"rule {rule.label!r} needs the {needed} most probable tokens of every "
                         f"step, and K={dist.k} are stored: set distributions.k to {needed} or "
                         "more, and let the rule's minimum_k say so")
    return CUT, cut


def _columns(values: list[Any], steps: int, dtype: Any) -> tuple[list[Any], list[int], Any]:
    """Split numbers from arrays of one number a step: constants, rows, and the rows as array."""
    arrays: list[Any] = []
    constants, rows = [], []
    for value in values:
        shape = np.shape(value)
        if shape not in ((), (steps,)):
            raise ValueError(f"a rule gave numbers of shape {shape} for {steps} steps")
        constants.append(0 if shape else value)
        rows.append(len(arrays) if shape else -1)
        if shape:
            arrays.append(np.asarray(value, dtype=dtype))
    return constants, rows, np.array(arrays, dtype=dtype).reshape(len(arrays), steps)


def _run(dist: TopK, table: _Table, floats: Floats, ints: NDArray[np.int32], first: int, last: int
         ) -> NDArray[np.int64]:
    values: Any = dist.stored_probs if dist.logits is None else dist.logits
    left = np.zeros(len(table.kind), dtype=np.int64)
    have, counts = np.zeros((2, BLOCK), dtype=np.int64)

    def whole(column: list[int]) -> NDArray[np.int64]:
        return np.array(column, dtype=np.int64)

    bad = certify_rows(
        values, first, last, dist.logits is not None, 1.0 / dist.temperature, dist.logsumexp,
        dist.vocab_size, whole(table.kind), np.array(table.slope, dtype=np.float64),
        whole(table.gate), np.array(table.offset, dtype=np.float64), whole(table.offset_row),
        table.offsets, whole(table.limit), whole(table.limit_row), table.limits,
        np.zeros((dist.k + 1) * RANK), have, counts, floats[0], floats[1], ints[0], ints[1], left)
    if bad >= 0:
        raise ValueError(f"step {bad}: the stored tokens are not numbers by decreasing value, or "
                         "the logsumexp does not belong to them")
    return left
