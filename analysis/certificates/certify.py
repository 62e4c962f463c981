"""Certificates: the least KL(p || q) at which a drafted token can be rejected.

`certify` handles many steps and rules at once. The certificate is exact where the stored tokens
determine it, and an interval that contains it elsewhere (docs/method.md). `certify_logits` takes
raw logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..rules.build import check_k
from ..rules.builtin import Tree
from ..rules.rule import Cut, Rule
from ..topk import TopK
from .kernel import BLOCK, COUNTS, CUT, RECORD, TREE, certify_rows
from .kernel_types import Block, Certificates, Rules, StoredSteps
from .rounded import rounded
from .truncation import beyond_stored, intervals

SPACING = 72  # columns of whole pages would share the same few cache sets


def certify(
    dist: TopK, rules: Rule | Sequence[Rule] = (), *, accepted: ArrayLike | None = None
) -> Certificates:
    """Compute the certificates of every step under every rule, in one pass.

    Args:
        dist: N steps.
        rules: R rules; one rule may be given bare, R = 1 then.
        accepted: instead of rules, the tokens that each step accepts, whichever they are: (N, V)
            booleans by token id, or (V,) for all steps alike. R = 1 then.

    Returns:
        Theorem 4.4 for rules of one token, Theorem 5.1 for trees, with intervals where the first
        rejected token is not stored. Relative error about 1e-14, of the stored logits.
        With `accepted`, the certificate is that of the most probable rejected token, and the
        accepted count is the number of ranks before it. It is 0 where the argmax is rejected: the
        target's own choice is then refused at no divergence.

    Raises:
        ValueError: too few tokens are stored for a rule, a rule needs raw logits and there are
            none, a rule of the user's gives an impossible count, or the ranks are not sorted; or
            what is given is no TopK or no rule. `accepted` comes with rules, or has
            another shape, or the log-probabilities are rounded.

    Examples:
        >>> from analysis.rules import StrictGreedy
        >>> certify(TopK.from_probabilities([0.75, 0.25]), StrictGreedy()).lower.round(6).tolist()
        [[0.130812]]
        >>> p = TopK.from_probabilities([0.5, 0.3, 0.2])
        >>> certify(p, accepted=[True, False, True]).lower.round(6).tolist()  # 0.3 is rejected
        [[0.025267]]
    """
    if not isinstance(dist, TopK):
        raise ValueError(
            f"{type(dist).__name__} is not a TopK: make one with TopK.from_probabilities(p) or "
            "TopK.from_logits(logits)"
        )
    rules = _listed(rules)
    if accepted is not None:
        if rules:
            raise ValueError("rules and accepted are both given: give one of them")
        return _certify_sets(dist, np.asarray(accepted))
    if dist.log_prob_error is not None:
        return rounded(dist, rules, _exact)
    return _exact(dist, rules)


def certify_logits(
    logits: ArrayLike, rules: Rule | Sequence[Rule], temperature: float = 1.0
) -> Certificates:
    """Compute the exact certificates of raw logits by sorting the whole vocabulary.

    For a large vocabulary and many steps `certify(TopK.from_logits(logits, k=256), rules)` is
    faster, and few of its certificates are intervals.

    Args:
        logits: (N, V) or one row (V,), NumPy or PyTorch; -inf is a masked token.
        rules: R rules, or a single one.
        temperature: of the distribution to certify, above 0.

    Raises:
        ValueError: as `TopK.from_logits` and `certify` say.

    Examples:
        >>> from analysis.rules import StrictGreedy
        >>> certify_logits([1.0, 0.0, -np.inf], StrictGreedy()).lower.round(6).tolist()
        [[0.110944]]
    """
    return certify(TopK.from_logits(logits, temperature=temperature), rules)


def _listed(rules: Rule | Sequence[Rule]) -> Sequence[Rule]:
    if isinstance(rules, Rule):
        return [rules]
    try:
        return list(rules)
    except TypeError:
        raise ValueError(
            f"{rules!r} is not a rule: give one, for instance StrictGreedy(), or a list of them"
        ) from None


def _exact(dist: TopK, rules: Sequence[Rule]) -> Certificates:
    """Return the certificates of steps whose stored numbers are exact."""
    check_k(rules, dist.k, dist.vocab_size)
    # a rule's column is contiguous
    shape = (len(rules), len(dist) + SPACING)
    floats, ints = np.empty((2, *shape)), np.empty((2, *shape), dtype=np.int32)
    results = Certificates(*floats, *ints)
    unknown = np.zeros(len(rules), dtype=np.int64)
    bad = certify_rows(_steps(dist), _rules(dist, rules), _scratch(dist.k), results, unknown)
    if bad >= 0:
        raise ValueError(
            f"step {bad}: the stored tokens are not numbers by decreasing value, or "
            "the largest probability is not in (0, 1]"
        )
    columns: list[NDArray[Any]] = [column[:, : len(dist)] for column in (*floats, *ints)]
    lower, _, _, accepted = columns
    rows = np.flatnonzero(unknown)
    if rows.size:  # all stored tokens are accepted, and lower is nan
        rule_index, steps = np.nonzero(np.isnan(lower[rows]))
        cells = rows[rule_index], steps
        ends = intervals(dist, rules, *cells, accepted[cells])
        for column, values in zip(columns, ends, strict=True):
            column[cells] = values
    return Certificates(*(column.T for column in columns))


class _Ranks(Rule):
    """Accepts the first ranks of each step, by (N,) counts."""

    counts: Any  # (N,) int32

    def form(self, _dist: TopK, /) -> NDArray[np.int32]:
        counts: NDArray[np.int32] = self.counts
        return counts


def _certify_sets(dist: TopK, accepted: NDArray[Any]) -> Certificates:
    """Return the certificates of sets of accepted tokens (Theorem 4.4 for any rejection region).

    Only the most probable rejected token counts: tokens behind it are not above its level. Where
    all stored tokens are accepted it is one of the others, unless those are accepted as well.
    """
    size, steps = dist.vocab_size, len(dist)
    if accepted.dtype != np.bool_ or accepted.shape not in ((size,), (steps, size)):
        raise ValueError(
            f"accepted is {accepted.dtype} {accepted.shape}: give booleans by token id, "
            f"({steps}, {size}) or ({size},)"
        )
    if dist.log_prob_error is not None:
        raise ValueError("rounded log-probabilities are certified by rules only, not by accepted")
    accepted = np.broadcast_to(accepted, (steps, size))
    stored = np.take_along_axis(accepted, dist.ids, axis=1)
    others = np.sum(accepted, axis=1) - np.sum(stored, axis=1)  # accepted, and not stored
    first = np.where(stored.all(axis=1), size, np.argmin(stored, axis=1)).astype(np.int32)
    result = _exact(dist, [_Ranks(np.maximum(first, 1))])
    own = np.flatnonzero(first == 0)
    result.lower[own], result.upper[own] = 0.0, 0.0
    result.active_size[own], result.accepted_count[own] = 1, 0
    rows = np.flatnonzero((first == size) & (others < size - dist.k))
    if len(rows):
        columns = beyond_stored(dist[rows], others[rows])
        parts: list[Any] = [*result]
        for column, values in zip(parts, columns, strict=True):
            column[rows, 0] = values
    return result


def _rules(dist: TopK, rules: Sequence[Rule]) -> Rules:
    """Return the rules in the kernel's form, those with the same threshold side by side."""
    pairs = [_kernel_form(dist, rule) for rule in rules]
    cuts = [cut for _, cut in pairs]
    ranks = [dist.vocab_size if cut.max_rank is None else cut.max_rank for cut in cuts]
    kind = np.array([kind for kind, _ in pairs], dtype=np.int64)
    slope = np.array([cut.slope for cut in cuts], dtype=np.float64)
    gate = np.array([cut.strictly_above_rank for cut in cuts], dtype=np.int64)
    offset, offset_row, offsets = _columns([cut.offset for cut in cuts], len(dist), np.float64)
    limit, limit_row, limits = _columns(ranks, len(dist), np.int64)
    keys = (limit_row, kind, gate, offset_row, slope, offset)
    order = np.lexsort((-limit, *reversed(keys)))
    again = np.zeros(len(rules), dtype=bool)
    again[1:] = limit_row[order][1:] < 0
    for key in keys:
        again[1:] &= key[order][1:] == key[order][:-1]
    return Rules(
        order,
        again,
        kind[order],
        slope[order],
        gate[order],
        offset[order],
        offset_row[order],
        offsets,
        limit[order],
        limit_row[order],
        limits,
    )


def _kernel_form(dist: TopK, rule: Rule) -> tuple[int, Cut]:
    """Return the kind of a rule, and its cut; counts are passed as a limit on ranks."""
    if isinstance(rule, Tree):
        return TREE, Cut(max_rank=rule.m)
    form = rule.form(dist)
    if not isinstance(form, Cut):
        return COUNTS, Cut(max_rank=form)
    ranks = 1 if form.max_rank is None else int(np.max(form.max_rank, initial=1)) + 1
    needed = min(max(ranks, form.strictly_above_rank), dist.vocab_size)
    if dist.k < needed:
        raise ValueError(
            f"rule {rule.label!r} needs the {needed} most probable tokens of every "
            f"step, and K={dist.k} are stored: set distributions.k to {needed} or "
            "more, and let the rule's minimum_k say so"
        )
    return CUT, form


def _columns(
    values: list[Any], steps: int, dtype: Any
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]:
    """Split constants from arrays of one number a step: constants, row indices, and the rows."""
    arrays: list[Any] = []
    constants, rows = [], []
    for value in values:
        shape = np.shape(value)
        constants.append(0 if shape else value)
        rows.append(len(arrays) if shape else -1)
        if shape:
            arrays.append(np.asarray(value, dtype=dtype))
    return (
        np.array(constants, dtype=dtype),
        np.array(rows, dtype=np.int64),
        np.stack(arrays) if arrays else np.empty((0, steps), dtype=dtype),
    )


def _steps(dist: TopK) -> StoredSteps:
    """Return `dist` in the kernel's form, as contiguous read-only arrays.

    numba would compile the kernel once more for any other layout, and for writable arrays.
    """
    values = np.ascontiguousarray(dist.stored_probs if dist.logits is None else dist.logits).view()
    values.flags.writeable = False
    by_logit = dist.logits is not None
    return StoredSteps(
        values, by_logit, 1.0 / dist.temperature, dist.top_probability, dist.vocab_size
    )


def _scratch(k: int) -> Block:
    """Return scratch arrays of the kernel for K stored tokens."""
    p0, second, m = np.zeros((3, BLOCK))
    have, listed, n = np.zeros((3, BLOCK + 1), dtype=np.int64)
    width = (k + 1) * RECORD
    a, s = np.zeros(BLOCK, dtype=np.int32), np.zeros(BLOCK * width)
    return Block(s, width, p0, second, m, a, have, listed, n)
