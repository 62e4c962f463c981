"""Acceptance of sampling verification rules, as a share of the best possible acceptance.

One draft x ~ q whose law may change: engines' lossy tests beside the best law r of the same
KL(r || p) (`analysis.beyond.clip`). Each keeps x with some probability a(x), and otherwise draws
from (p - q)+:

    r = q a + (1 - sum_i q_i a_i) (p - q)+ / TV(p, q).

SGLang's threshold is none of them: its drafts are not drawn, and every test of such a draft emits
a law of `clip.argmax_law`, on its curve.

Several drafts of one token, whose law stays: no lossless verification of n drafts accepts one with
a probability above

    1 - max over H of [Q_n(H) - p(H)],

Q_n(H) the probability that all n drafts lie in the set H; it is reached. The best H is a prefix of
the tokens by increasing p / q (docs/method.md). For n = 1 it is 1 - TV(p, q).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..beyond.clip import divergence_of, mean_curve
from ..statistics.bootstrap import Flags
from ..topk import Floats
from ..trees.acceptance import drawn_rates

LAW, DRAFTS = "law", "drafts"  # kinds of rows
RATIOS = np.concatenate([1.0 + np.geomspace(1e-3, 1.0, 14), np.geomspace(2.2, 1e6, 26)])
ALPHA, TAU = 0.4, 0.95  # of Ascend's entropy_verify
TINY = 1e-300
CASCADE, MIXTURE, CACTUS = 0.3, 0.3, 0.1  # share below p0; of the drafter; nats of a drafted token
GRID = np.exp(np.arange(-36.0, 44.0, 0.25))  # times at which arrivals are counted
DRAWS = 64  # of the drafts of a step
COUNTS = (2, 4)  # drafts of one token
KEYS = ["rule", "kind", "eps"]

Law = tuple[Floats, float]  # r (V,), and with what probability a draft is kept
LawRows = Iterator[tuple[str, str, float, float, float]]  # KEYS, acceptance and best


def law_statistics(p: Floats, q: Floats, relaxed: Flags) -> pd.DataFrame:
    """Hold one draft, and several, against the best of the same KL(r || p), or of no loss.

    Args:
        p: (N, V) target.
        q: (N, V) draft.
        relaxed: (N,) where MARS' ratio of raw logits exceeds its threshold.

    Returns:
        Rows with rule (the law), kind (law or drafts), eps (its mean KL(r || p), nats; of drafts
        0), statistic, value: acceptance; best, the largest of any law; share, of the best.
    """
    frame = pd.DataFrame(
        [*_engines(*_shared(p, q), relaxed), *_several(p, q)], columns=[*KEYS, "acceptance", "best"]
    )
    frame["share"] = frame["acceptance"] / frame["best"]
    return frame.melt(KEYS, var_name="statistic", value_name="value")


def _engines(p: Floats, q: Floats, relaxed: Flags) -> LawRows:
    """Yield engines' laws; the best is interpolated from below between ratios c1 / c2."""
    pairs = list(zip(p, q, strict=True))
    found = {
        "typical of Ascend": [typical_law(*pair) for pair in pairs],
        "MARS": [mars_law(*pair, bool(flag)) for pair, flag in zip(pairs, relaxed, strict=True)],
        "cascade": [cascade_law(*pair) for pair in pairs],
        "mixture": [mixture_law(*pair) for pair in pairs],
        "Cactus": [cactus_law(*pair) for pair in pairs],
    }
    spent, reached = mean_curve(pairs, RATIOS.tolist())
    for name, laws in found.items():
        kl = float(np.mean([divergence_of(r, own) for (r, _), own in zip(laws, p, strict=True)]))
        kept = float(np.mean([accepted for _, accepted in laws]))
        best = np.interp(kl, np.append(0.0, spent), np.append(reached[0], reached))
        yield name, LAW, kl, kept, float(best) if kl <= spent[-1] else 1.0


def _several(p: Floats, q: Floats) -> LawRows:
    """Yield GSS and ERSS of drafts that are drawn without replacement."""
    generator = np.random.default_rng(0)
    rates = np.zeros((2, max(COUNTS)))
    for _ in range(DRAWS):
        times = generator.exponential(size=p.shape)
        for races in (False, True):
            drawn = drawn_rates(p, q, times, max(COUNTS), races)
            rates[int(races), : len(drawn)] += drawn / (len(p) * DRAWS)
    for count in COUNTS:
        best = float(best_of_drafts(p, q, count).mean())
        for law, rate in zip(("GSS", "ERSS"), rates, strict=True):
            yield f"{law}, {count} drafts", DRAFTS, 0.0, float(rate[:count].sum()), best


def _shared(p: Floats, q: Floats) -> tuple[Floats, Floats]:
    """Return p and q with the tokens that only one of the two can emit as one."""
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


def best_of_drafts(p: Floats, q: Floats, count: int) -> Floats:
    """Return the largest acceptance of so many drafts, drawn without replacement, (N,).

    Token i arrives at an Exp(q_i) time, and the first n are the drafts: all lie in H if n of H
    arrive before the first of the others,

        Q_n(H) = integral over t of (1 - q(H)) exp(-(1 - q(H)) t) P(n of H have arrived by t),

    by the trapezoid rule in log t; the number of arrivals is Poisson binomial.

    Args:
        p: (N, V) target.
        q: (N, V) draft.
        count: n, at least 1.

    Examples:
        >>> p, q = np.array([[0.0, 1.0]]), np.array([[0.5, 0.5]])
        >>> [float(best_of_drafts(p, q, count)[0].round(9)) for count in (1, 2)]
        [0.5, 1.0]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(np.where(q > 0, p / q, np.inf), axis=1)
    p, q = (np.take_along_axis(x, order, axis=1) for x in (p, q))
    inside, mass = np.cumsum(q, axis=1), np.cumsum(p, axis=1)
    if count == 1:
        return np.asarray(1.0 - np.maximum(0.0, (inside - mass).max(axis=1)))
    rest = np.cumsum(q[:, ::-1], axis=1)[:, ::-1]
    rest = np.column_stack([rest[:, 1:], np.zeros(len(q))])  # of the tokens behind each prefix
    arrived = np.zeros((count, len(q), len(GRID)))  # probability of 0, 1, ... n - 1 arrivals
    arrived[0] = 1.0
    lost = np.zeros(len(q))
    for at in range(p.shape[1]):
        late = np.exp(-q[:, at, None] * GRID)
        arrived[1:] = late * arrived[1:] + (1.0 - late) * arrived[:-1]
        arrived[0] *= late
        weights = rest[:, at, None] * GRID * np.exp(-rest[:, at, None] * GRID)
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)  # of the first other one
        all_inside = 1.0 - (weights * arrived.sum(axis=0)).sum(axis=1)
        all_inside = np.where(rest[:, at] > 0, all_inside, 1.0)
        lost = np.maximum(lost, all_inside - mass[:, at])
    return 1.0 - lost
