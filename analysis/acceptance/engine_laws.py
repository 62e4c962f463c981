"""What engines' lossy tests of a sampled draft emit: laws r, held against the best one (`clip`).

Each keeps a draft x ~ q with some probability a(x), and otherwise draws from (p - q)+:

    r = q a + (1 - sum_i q_i a_i) (p - q)+ / TV(p, q).

SGLang's threshold is none of them: its drafts are not drawn, and every test of such a draft emits
a law of `clip.argmax_law`, on its curve.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from ..beyond.clip import divergence_of, mean_curve
from ..statistics.bootstrap import Flags
from ..topk import Floats

LAW = "law"  # kind of a row
RATIOS = np.concatenate([1.0 + np.geomspace(1e-3, 1.0, 14), np.geomspace(2.2, 1e6, 26)])
ALPHA, TAU = 0.4, 0.95  # of Ascend's entropy_verify
TINY = 1e-300
CASCADE, MIXTURE, CACTUS = 0.3, 0.3, 0.1  # share below p0; of the drafter; nats of a drafted token

Law = tuple[Floats, float]  # r (V,), and with what probability a draft is kept


def law_statistics(p: Floats, q: Floats, relaxed: Flags) -> pd.DataFrame:
    """Hold laws against the best of the same mean KL(r || p).

    Tokens that only one of the two can emit, as only one is known of, stand together as one.

    Args:
        p: (N, V) target.
        q: (N, V) draft.
        relaxed: (N,) where MARS' ratio of raw logits exceeds its threshold.

    Returns:
        Rows with rule, kind (law), eps (its mean KL(r || p), nats), statistic, value: acceptance;
        best, the largest of any law, interpolated from below between ratios c1 / c2; share.
    """
    p, q = _shared(p, q)
    pairs = list(zip(p, q, strict=True))
    found = {
        "typical of Ascend": [typical_law(*pair) for pair in pairs],
        "MARS": [mars_law(*pair, bool(flag)) for pair, flag in zip(pairs, relaxed, strict=True)],
        "cascade": [cascade_law(*pair) for pair in pairs],
        "mixture": [mixture_law(*pair) for pair in pairs],
        "Cactus": [cactus_law(*pair) for pair in pairs],
    }
    spent, reached = mean_curve(pairs, RATIOS.tolist())
    rows = []
    for name, laws in found.items():
        kl = np.mean([divergence_of(r, own) for (r, _), own in zip(laws, p, strict=True)])
        kept = np.mean([accepted for _, accepted in laws])
        best = np.interp(kl, np.append(0.0, spent), np.append(reached[0], reached))
        best = best if kl <= spent[-1] else 1.0
        rows.append((name, LAW, float(kl), float(kept), float(best)))
    frame = pd.DataFrame(rows, columns=["rule", "kind", "eps", "acceptance", "best"])
    frame["share"] = frame["acceptance"] / frame["best"]
    return frame.melt(["rule", "kind", "eps"], var_name="statistic", value_name="value")


def _shared(p: Floats, q: Floats) -> tuple[Floats, Floats]:
    both = (p > 0) & (q > 0)
    p, q = (np.column_stack([x * both, (x * ~both).sum(axis=1)]) for x in (p, q))
    return p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)


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
