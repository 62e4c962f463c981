"""Targets, rules and plain formulas that several tests share.

Rules and targets that one test needs as they are stay in that test.
"""

import math

import numpy as np
from scipy.special import xlogy

from analysis.acceptance.judgement import Steps
from analysis.certificates.certify import certify
from analysis.rules import (
    AbsoluteThreshold,
    Additive,
    Mars,
    Multiplicative,
    StrictGreedy,
    TopMAdditive,
    TopMMultiplicative,
    Tree,
    Typical,
)
from analysis.topk import TopK
from tests.divergences import compare_logits

# one rule of every kind of the paper that is neither strict greedy nor a tree
THRESHOLD_RULES = [
    Additive(0.2),
    Multiplicative(0.3),
    TopMAdditive(3, 0.3),
    TopMMultiplicative(4, 0.1),
    Typical(0.1, 0.09),
]
# and the others, at more than one place of their dials
RULES = [
    *(StrictGreedy(), *THRESHOLD_RULES, Additive(0.1), Additive(0.9)),
    *(AbsoluteThreshold(0.05), Mars(0.9), Tree(1), Tree(3)),
]


def dirichlet(seed, steps, vocab, *concentrations):
    """Unranked targets, `steps` of each concentration: at 0.03 nearly certain, at 1 spread out."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.dirichlet(np.full(vocab, a), size=steps) for a in concentrations])


def stored_columns(z, k, temperature=1.0):
    """What a dump stores of raw logits (N, V): textbook sums in float64, no shift."""
    x = z.astype(np.float64) / temperature
    order = np.argsort(-z, axis=1, kind="stable")
    weight = np.exp(x)
    p = weight / weight.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        tail = np.log(np.take_along_axis(p, order[:, k:], axis=1).sum(axis=1))
    return {
        "top_ids": order[:, :k],
        "top_logits": np.take_along_axis(z, order[:, :k], axis=1),
        "top_surprisal": -np.log(p.max(axis=1)),
        "log_tail": tail,
        "entropy": -xlogy(p, p).sum(axis=1),
    }


def drafted_steps(z, w, k=None, lengths=()):
    """Draft logits w beside target logits z (N, V), of which k are stored; one text, or several."""
    found = compare_logits(z, w)
    target = TopK.from_columns(**stored_columns(z, k or z.shape[1]), vocab_size=z.shape[1])
    position = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths or [len(z)]])
    steps = Steps(
        target, position, found.kl, found.draft_rank, found.draft_log_prob, found.argmax_rank
    )
    return steps, found


def noisy(size, vocab, scale, noise, seed=0):
    """Target and draft logits (N, V) in float32."""
    rng = np.random.default_rng(seed)
    z = scale * rng.standard_normal((size, vocab)) + 3
    return [x.astype(np.float32) for x in (z, z + noise * rng.standard_normal(z.shape))]


def certificate(p, rule, k=None):
    """The lower end for one target (V,), of which k tokens are stored (all without k)."""
    return float(certify(TopK.from_probabilities(p[None], k=k), [rule]).lower[0, 0])


def kl(p, q):
    """KL(p || q) in nats by its definition; tokens with p = 0 count nothing."""
    return math.fsum(x * math.log(x / y) for x, y in zip(p, q, strict=True) if x > 0)


def assert_same(found, wanted):
    """Assert that all that is known of the steps is exactly equal."""
    for name in ("lower", "upper", "active_size", "accepted_count"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)


# pairs (p, q) at which the paper's bounds are tight


def two_point_example(d):
    """Theorems 4.9 and 4.11: margin d and KL(p || q) = g(d), rejected at the tie."""
    return np.array([(1 + d) / 2, (1 - d) / 2]), np.full(2, 0.5)


def confident_example(eps, m=1):
    """Theorems 4.6 (m = 1) and 5.3: KL(p || q) goes to log(m + 1) as eps goes to 0."""
    return np.array([1 - m * eps] + [eps] * m), np.full(m + 1, 1 / (m + 1))


def multiplicative_example(alpha):
    """Theorem 4.13: p1 = alpha p0 and KL(p || q) = multiplicative_lower(p0, alpha)."""
    return np.array([1.0, alpha]) / (1 + alpha), np.full(2, 0.5)


def tree_example(gamma, m):
    """Theorem 5.2: margin gamma at rank m + 1 and KL(p || q) = B_m(gamma), gamma in (0, 1)."""
    root = math.sqrt(gamma**2 * (m - 1) ** 2 + 4 * (1 - gamma**2))
    tau = (gamma * (m - 1) + root) / (2 * (1 - gamma))
    p = np.array([tau**2] + [tau] * (m - 1) + [1.0])
    return p / p.sum(), np.full(m + 1, 1 / (m + 1))
