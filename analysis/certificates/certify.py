"""Certificates: the least KL(p || q) at which a drafted token can be rejected.

`certify` handles many steps and rules at once. The certificate is exact where the stored tokens
determine it, and an interval that contains it elsewhere (docs/method.md). `extremal_draft` gives
the draft that attains a certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..rule_base import UNKNOWN, Rule, check_k
from ..rules import Tree
from ..topk import Floats, TopK
from .intervals import certify_rounded, certify_tests
from .kernel import Certificates
from .rule_range import checked_test

__all__ = ["Certificates", "certify", "extremal_draft"]


def certify(
    dist: TopK, rules: Rule | Sequence[Rule] = (), *, accepted: ArrayLike | None = None
) -> Certificates:
    """Compute the certificates of every step under every rule, in one pass.

    Instead of R rules, `accepted` gives the tokens that each of the N steps accepts, whichever they
    are: (N, V) booleans by token id, or (V,) for all steps alike. R is 1 then.

    Returns:
        Theorem 4.4 for rules of one token, Theorem 5.1 for trees, with intervals where the first
        rejected token is not stored. The relative error, of the stored logits, is below 1e-14 for
        rules of one token and trees of up to 8, and below 5e-14 for trees of up to 32.
        With `accepted`, the certificate is that of the most probable rejected token, and the
        accepted count is the number of ranks before it. It is 0 where the argmax is rejected: the
        target's own choice is then refused at no divergence.

    Raises:
        ValueError: too few tokens are stored for a rule, a rule needs raw logits and there are
            none, a rule of the user's gives an impossible count, or the ranks are not sorted.
            `accepted` comes with rules, or has another shape, or log-probabilities are rounded.

    >>> from analysis.rules import StrictGreedy
    >>> certify(TopK.from_probabilities([0.75, 0.25]), StrictGreedy()).lower.round(6).tolist()
    [[0.130812]]
    >>> p = TopK.from_probabilities([0.5, 0.3, 0.2])
    >>> certify(p, accepted=[True, False, True]).lower.round(6).tolist()  # 0.3 is rejected
    [[0.025267]]
    """
    rules = list(rules) if isinstance(rules, Sequence) else [rules]
    if accepted is not None:
        if rules:
            raise ValueError("rules and accepted are both given: give one of them")
        return _certify_sets(dist, np.asarray(accepted))
    check_k(rules, dist.k, dist.vocab_size)
    if dist.log_prob_error is not None:
        return certify_rounded(dist, rules)
    return certify_tests(dist, [checked_test(dist, rule) for rule in rules])


def extremal_draft(p: ArrayLike, rule: Rule) -> tuple[Floats, float]:
    """Return q* (V,), the closest draft to p (V,) that can be rejected, and KL(p || q*) in nats.

    q*(y) = c for y in A, the mean of p over A, and q*(y) = p(y) elsewhere (Lemma 4.2; Theorem 5.1
    for trees). It makes a tie, and the worst case of a tie is rejection.

    Raises:
        ValueError: the rule rejects nothing at this p, or p is not one distribution.

    >>> from analysis.rules import StrictGreedy, Tree
    >>> q, kl = extremal_draft([0.1, 0.6, 0.3], StrictGreedy())
    >>> q.round(6).tolist(), round(kl, 6)
    ([0.1, 0.45, 0.45], 0.05097)
    >>> extremal_draft([0.1, 0.6, 0.3], Tree(m=2))[0].round(6).tolist()
    [0.333333, 0.333333, 0.333333]
    """
    q = np.array(p, dtype=np.float64)
    if q.ndim != 1:
        raise ValueError(f"p has the shape {q.shape}: give the (V,) probabilities of one step")
    dist = TopK.from_probabilities(q)
    cost, _, (size,), (n,) = (column[:, 0] for column in certify(dist, rule))
    if not size:
        raise ValueError(f"rule {rule.label!r} rejects nothing at this p")
    last = rule.m + 1 if isinstance(rule, Tree) else size - 1
    active = [0, *range(last + 1 - size, last)] if isinstance(rule, Tree) else [*range(last), n]
    ids = dist.ids[0][active]
    q[ids] = q[ids].mean()
    return q, float(cost[0])


def _certify_sets(dist: TopK, accepted: NDArray[Any]) -> Certificates:
    """Return the certificates of sets of accepted tokens (Theorem 4.4 for any rejection region)."""
    size = dist.vocab_size
    steps = len(dist)
    if accepted.dtype != np.bool_ or accepted.shape not in ((size,), (steps, size)):
        raise ValueError(
            f"accepted is {accepted.dtype} {accepted.shape}: give booleans by token id, "
            f"({steps}, {size}) or ({size},)"
        )
    if dist.log_prob_error is not None:
        raise ValueError("rounded log-probabilities are certified by rules only, not by accepted")
    accepted = np.broadcast_to(accepted, (steps, size))
    stored = np.take_along_axis(accepted, dist.ids, axis=1)
    # where all stored ones are accepted: as many, if none of the others is
    beyond = np.where(accepted.sum(axis=1) == dist.k, dist.k, UNKNOWN)
    beyond = np.where(accepted.all(axis=1), size, beyond)
    first = np.where(stored.all(axis=1), beyond, np.argmin(stored, axis=1)).astype(np.int32)
    own = first == 0
    result = certify_tests(dist, [np.where(own, 1, first)])
    result.lower[own] = 0.0
    result.upper[own] = 0.0
    result.active_size[own] = 1
    result.accepted_count[own] = 0
    return result
