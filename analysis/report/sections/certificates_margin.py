"""What the margin of the target's two most probable tokens says of strict greedy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from ...certificates import bounds
from ...rules import StrictGreedy
from ..table import Cell, Section, Table
from ..text import number_text, share_text
from .certificates_bounds import Compared

PINSKER, SUFFICIENT, EXPANSION, NEEDED = (
    "proposition 4.8",
    "theorem 4.9 (i)",
    "lemma A.2",
    "theorem 4.9 (ii)",
)
ROUNDED: Mapping[str, Callable[[float], int]] = {
    PINSKER: math.ceil,
    SUFFICIENT: math.ceil,
    EXPANSION: round,
    NEEDED: math.floor,
}


def margins_table(
    targets: Mapping[str, Sequence[Compared]], levels: Iterable[float]
) -> Table | None:
    """Say what the margin p0 - p1 alone says of strict greedy; None without that rule.

    Args:
        targets: what is compared, by printed name of the target.
        levels: of the KL, in nats; those above log 2 are left out.
    """
    eps = [level for level in levels if level <= bounds.LOG2]
    frames = [
        margins(item, eps).assign(target=target)
        for target, items in targets.items()
        for item in items
        if item.rule == StrictGreedy()
    ]
    if not frames:
        return None
    data = pd.concat(frames, ignore_index=True)
    found = data.set_index(["target", "eps", "by"])
    titles = list(data["target"].unique())

    def cells(level: float) -> list[Cell]:
        texts = [
            number_text(rounded(1000 * found.loc[(titles[0], level, by), "margin"]) / 1000, 3)
            for by, rounded in ROUNDED.items()
        ]
        for target in titles:
            enough = [found.loc[(target, level, by), "share"] for by in (PINSKER, SUFFICIENT)]
            certified = found.loc[(target, level, SUFFICIENT), "certified"]
            texts += map(share_text, [*enough, certified])
        return [Cell(text) for text in texts]

    return Table(
        "margins",
        "What the margin alone says",
        "What the margin p₀ − p₁ alone says of strict greedy at a KL of at most ε. A margin above "
        "one of the first two is enough to be accepted: √(2ε) by Pinsker's inequality (Proposition "
        "4.8), the inverse of g at ε by Theorem 4.9 (i); Lemma A.2 expands it as √(2ε)(1 − ε/6). "
        "Needed: at every margin up to √(2ε/(1 + 2ε)) some target and a draft within ε of it are "
        "rejected (Theorem 4.9 (ii), by the upper half of Lemma A.1). Then the share of steps with "
        "a margin above each of the first two, and the share that the exact certificate covers, "
        "R > ε. The first two margins are rounded up, the last one down.",
        "ε",
        [("margin", len(ROUNDED)), *((target, 3) for target in titles)],
        ["Pinsker", "by g", "expansion", "needed", *["Pinsker", "by g", "R > ε"] * len(titles)],
        [Section("", [(f"{level:g}", cells(level)) for level in eps])],
        data[["target", *(name for name in data if name != "target")]],
        ["Every certificate of strict greedy is exact, and no rejection region is empty."],
    )


def margins(greedy: Compared, levels: Sequence[float]) -> pd.DataFrame:
    """Return margins and the steps above them, at levels of the KL in nats.

    Returns:
        One row a level and source: eps, by (its theorem), margin, share of steps with a larger
        margin, and the share certified, R > eps.
    """
    eps = np.asarray(levels, dtype=np.float64)
    found = {
        PINSKER: bounds.pinsker_margin(eps),
        SUFFICIENT: bounds.g_inverse(eps),
        EXPANSION: bounds.g_inverse_series(eps),
        NEEDED: bounds.greedy_necessary_margin(eps),
    }
    return pd.DataFrame(
        [
            {
                "eps": level,
                "by": by,
                "margin": float(margin[at]),
                "share": float(np.mean(greedy.p0 - greedy.b > margin[at])),
                "certified": float(np.mean(greedy.certificate > level)),
            }
            for at, level in enumerate(levels)
            for by, margin in found.items()
        ]
    )
