"""What engines' lossy tests of a sampled draft accept, as a share of the best there is."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..beyond import engine_laws
from ..beyond.clip import divergence_of, mean_curve
from ..statistics.bootstrap import Flags, Floats

RATIOS = np.concatenate([1.0 + np.geomspace(1e-3, 1.0, 14), np.geomspace(2.2, 1e6, 26)])
LAW = "law"  # kind of a row


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
    frame = pd.DataFrame(rows, columns=["rule", "kind", "eps", "acceptance", "best"])
    frame["share"] = frame["acceptance"] / frame["best"]
    return frame.melt(["rule", "kind", "eps"], var_name="statistic", value_name="value")


def _shared(p: Floats, q: Floats) -> tuple[Floats, Floats]:
    both = (p > 0) & (q > 0)
    p, q = (np.column_stack([x * both, (x * ~both).sum(axis=1)]) for x in (p, q))
    return p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
