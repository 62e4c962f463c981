"""Certificates from the drafter's side, available before the target is called.

C(q) is the least KL(p || q) over all targets p that reject the drafter's most probable token y (for
a tree: whose argmax is not among q's top m). A drafter at most eps from its target is accepted
wherever C(q) > eps.

Making a rank of q the mode of p, or letting m of its ranks reach y, are the problems of `certify`
with the arguments exchanged: reverse KL of q. A threshold is one linear constraint,
p(y) <= offset + slope p(x), x rank 2 of q. Its least KL is a supremum over one multiplier l,

    sup over l >= 0 of -offset l - log(1 - q0 - q1 + q0 e^-l + q1 e^(slope l)).

docs/method.md has the proofs.
"""

from __future__ import annotations

import numpy as np

from ..certificates.certify import certify
from ..rules.builtin import (
    Additive,
    FirstRanks,
    Multiplicative,
    StrictGreedy,
    TopMAdditive,
    TopMMultiplicative,
    Tree,
)
from ..rules.rule import Rule
from ..topk import Floats, TopK

CERTIFIABLE = (StrictGreedy, Additive, Multiplicative, TopMAdditive, TopMMultiplicative, Tree)


def certify_draft(q: TopK, rule: Rule) -> Floats:
    """Return C(q), (N,), nats: +inf where no target rejects the draft.

    Exact for any K >= 2 (m + 1 for trees and top-m rules, at most V): only those tokens count.

    Args:
        q: N steps of the drafter, which drafts its most probable token.
        rule: strict greedy, additive, multiplicative, top-m with one of these, or a tree.

    Raises:
        ValueError: the rule needs the target's entropy or raw logits, uses `convention: paper`, or
            needs more tokens than are stored.

    Examples:
        >>> from analysis.rules import Additive, StrictGreedy, Tree
        >>> q = TopK.from_probabilities([[0.5, 0.3, 0.15, 0.05]])
        >>> [certify_draft(q, rule).round(4).tolist() for rule in (StrictGreedy(), Tree(2))]
        [[0.0257], [0.1088]]
        >>> certify_draft(q, Additive(0.2)).round(4).tolist()
        [0.1022]
    """
    if not isinstance(rule, CERTIFIABLE) or getattr(rule, "convention", "rank") != "rank":
        names = ", ".join(kind.name for kind in CERTIFIABLE)
        raise ValueError(
            f"rule {rule.label!r} cannot be certified from the drafter's side: give one of {names} "
            "(convention: rank)"
        )
    m = rule.parameters.get("m", 1 if isinstance(rule, StrictGreedy) else None)
    needed = min(2 if m is None else m + 1, q.vocab_size)
    if q.k < needed:
        raise ValueError(f"rule {rule.label!r} needs {needed} tokens of q, K={q.k} are stored")
    if isinstance(rule, Tree):
        return _reverse(q, FirstRanks(rule.m))
    least = np.full(len(q), np.inf)
    if m is not None:  # m tokens reach y
        least = _reverse(q, Tree(m))
    cut = rule.cut(q)
    if isinstance(rule, StrictGreedy) or cut is None or q.vocab_size == 1:
        return least
    return np.asarray(np.minimum(least, _linear(q, -float(cut.offset), cut.slope)))


def _reverse(q: TopK, rule: Rule) -> Floats:
    return certify(q, rule, divergence="reverse_kl").lower[:, 0]


def _linear(q: TopK, t: float, slope: float) -> Floats:
    """Return the least KL with p(y) <= slope p(x) - t: additive (slope 1) or multiplicative (t 0).

    The derivative in l is zero at a root of a quadratic in u = e^l, or where
    q0 / u = slope q1 u^slope.
    """
    q0, q1 = q.probs[:, 0], q.probs[:, 1]
    rest = np.maximum(0.0, -np.expm1(-q.top_surprisal) - q1)
    if t == 1.0:  # p(x) = 1
        with np.errstate(divide="ignore"):
            return np.asarray(-np.log(q1))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if slope == 1.0:
            a, b, c = (1.0 - t) * q1, t * rest, (1.0 + t) * q0  # a u^2 - b u - c = 0
            log_u = np.log((b + np.sqrt(b * b + 4.0 * a * c)) / (2.0 * a))
        else:
            log_u = (np.log(q0) - np.log(slope * q1)) / (1.0 + slope)
        moved = q0 * np.expm1(-log_u) + q1 * np.expm1(slope * log_u)  # the sum minus 1
        direct = np.log(rest + q0 * np.exp(-log_u) + q1 * np.exp(slope * log_u))
        log_sum = np.where(np.abs(moved) < 0.5, np.log1p(moved), direct)
        return np.where(q1 > 0, t * log_u - log_sum, np.inf)
