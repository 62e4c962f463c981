"""What engines' lossy tests of a sampled draft emit: laws r, held against the best one (`clip`).

Each keeps a draft x ~ q with some probability a(x), and otherwise draws from (p - q)+:

    r = q a + (1 - sum_i q_i a_i) (p - q)+ / TV(p, q).

SGLang's threshold is none of them: its drafts are not drawn, and every test of such a draft emits
a law of `clip.argmax_law`, on its curve.
"""

from __future__ import annotations

import math

import numpy as np

from ..topk import Floats

ALPHA, TAU = 0.4, 0.95  # of Ascend's entropy_verify
TINY = 1e-300
CASCADE, MIXTURE, CACTUS = 0.3, 0.3, 0.1  # share below p0; of the drafter; nats of a drafted token

Law = tuple[Floats, float]  # r (V,), and with what probability a draft is kept


def typical_law(p: Floats, q: Floats) -> Law:
    """Ascend's entropy_verify: a = min(1, p / (q m)), m = min(exp(-ALPHA H(p)), TAU)."""
    entropy = -np.sum(p * np.log(np.where(p > 0, p, 1.0)))
    return _emitted(p, q, exact_test(p, q * min(math.exp(-ALPHA * entropy), TAU)))


def mars_law(p: Floats, q: Floats, relaxed: bool) -> Law:
    """MARS above temperature 0: ranks 1 and 2 of p pass where z2 / z1 > theta (`relaxed`)."""
    keep = exact_test(p, q)
    if relaxed:
        keep[np.argsort(-p, kind="stable")[:2]] = 1.0
    return _emitted(p, q, keep)


def cascade_law(p: Floats, q: Floats) -> Law:
    """Cascades: a = 1 where p >= (1 - CASCADE) p0, the exact test elsewhere."""
    return _emitted(p, q, np.where(p >= (1.0 - CASCADE) * p.max(), 1.0, exact_test(p, q)))


def mixture_law(p: Floats, q: Floats) -> Law:
    """Mixtures (DIVERSED): r = (1 - MIXTURE) p + MIXTURE q, a = min(1, r / q)."""
    r = (1.0 - MIXTURE) * p + MIXTURE * q
    return r, float(np.minimum(q, r).sum())


def cactus_law(p: Floats, q: Floats) -> Law:
    """Cactus: x is tested by the law that lifts p(x) to p + sqrt(2 D p (1 - p)), D = CACTUS.

    The other tokens of this law are in proportion to p, and so each x has a residual of its own.
    """
    lifted = np.minimum(1.0, p + np.sqrt(2.0 * CACTUS * p * (1.0 - p)))
    keep = exact_test(lifted, q)
    r = q * keep
    for x in np.flatnonzero(q * (1.0 - keep) > 0.0):
        own = p * ((1.0 - lifted[x]) / (1.0 - p[x]))
        own[x] = lifted[x]
        rest = np.maximum(own - q, 0.0)
        r += q[x] * (1.0 - keep[x]) * rest / rest.sum()
    return r, float((q * keep).sum())


def exact_test(p: Floats, q: Floats) -> Floats:
    """Return min(1, p / q), (V,); 1 where q = 0."""
    return np.divide(np.minimum(p, q), q, out=np.ones_like(p), where=q > 0)


def _emitted(p: Floats, q: Floats, keep: Floats) -> Law:
    kept, rest = q * keep, np.maximum(p - q, 0.0)
    accepted = min(1.0, float(kept.sum()))
    return kept + (1.0 - accepted) * rest / max(rest.sum(), TINY), accepted
