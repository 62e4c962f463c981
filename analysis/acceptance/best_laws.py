"""What engines' lossy tests and several drafts accept, as a share of the best there is."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..beyond import engine_laws
from ..beyond.clip import divergence_of, mean_curve
from ..statistics.bootstrap import Flags, Floats
from ..trees.acceptance import drawn_rates
from ..trees.several import best_of_drafts

RATIOS = np.concatenate([1.0 + np.geomspace(1e-3, 1.0, 14), np.geomspace(2.2, 1e6, 26)])
DRAWS = 64  # of the drafts of a step
COUNTS = (2, 4)  # drafts of one token
LAW, DRAFTS = "law", "drafts"  # kinds of rows
NAMES = ("GSS", "ERSS")


def law_statistics(p: Floats, q: Floats, relaxed: Flags, seed: int = 0) -> pd.DataFrame:
    """Hold laws against the best of the same mean KL(r || p), and of the same drafts.

    Tokens that only one of the two can emit, as only one is known of, stand together as one.

    Args:
        p: (N, V) target.
        q: (N, V) draft.
        relaxed: (N,) where MARS' ratio of raw logits exceeds its threshold.
        seed: of the drafts that are drawn.

    Returns:
        Rows with rule, kind, eps, statistic (acceptance; best, the largest of any law; share) and
        value. Kind law: of an engine's test, eps its mean KL(r || p), nats; best is interpolated
        between ratios c1 / c2, from below. Kind drafts: of GSS and ERSS from two and four drafts
        without replacement, which lose nothing: eps is 0.
    """
    p, q = _shared(p, q)
    pairs = list(zip(p, q, strict=True))
    found = {
        "typical of Ascend": [engine_laws.typical_law(*pair) for pair in pairs],
        "MARS": [
            engine_laws.mars_law(*pair, bool(flag))
            for pair, flag in zip(pairs, relaxed, strict=True)
        ],
        "cascade": [engine_laws.cascade_law(*pair) for pair in pairs],
        "mixture": [engine_laws.mixture_law(*pair) for pair in pairs],
        "Cactus": [engine_laws.cactus_law(*pair) for pair in pairs],
    }
    spent, reached = mean_curve(pairs, RATIOS.tolist())
    rows = []
    for name, laws in found.items():
        kl = np.mean([divergence_of(r, own) for (r, _), own in zip(laws, p, strict=True)])
        kept = np.mean([accepted for _, accepted in laws])
        best = np.interp(kl, np.append(0.0, spent), np.append(reached[0], reached))
        best = best if kl <= spent[-1] else 1.0
        rows.append((name, LAW, float(kl), float(kept), float(best)))
    generator = np.random.default_rng(seed)
    rates = np.zeros((2, max(COUNTS)))
    for _ in range(DRAWS):
        times = generator.exponential(size=p.shape)
        for at in (0, 1):
            drawn = drawn_rates(p, q, times, max(COUNTS), races=bool(at))
            rates[at, : len(drawn)] += drawn / (len(p) * DRAWS)
    for count in COUNTS:
        best = float(best_of_drafts(p, q, count).mean())
        for name, rate in zip(NAMES, rates, strict=True):
            rows.append((f"{name}, {count} drafts", DRAFTS, 0.0, float(rate[:count].sum()), best))
    frame = pd.DataFrame(rows, columns=["rule", "kind", "eps", "acceptance", "best"])
    frame["share"] = frame["acceptance"] / frame["best"]
    return frame.melt(["rule", "kind", "eps"], var_name="statistic", value_name="value")


def _shared(p: Floats, q: Floats) -> tuple[Floats, Floats]:
    both = (p > 0) & (q > 0)
    p, q = (np.column_stack([x * both, (x * ~both).sum(axis=1)]) for x in (p, q))
    return p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
