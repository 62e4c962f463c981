"""The table of draft trees: predicted, measured and bounded tokens per call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..decoding.metrics import Decoded
from ..decoding.tree_runs import tree_statistics
from ..statistics.estimate import Estimate
from .table import Table, rows_by_method
from .text import estimate_texts, number_text, percent_text

ENTROPIES = {"kl": "KL", "entropy": "H[R]", "entropy_upper": "at most (8)", "theorem": "τ (5)"}


def trees_table(decoded: Sequence[Decoded], runs: Sequence[pd.DataFrame]) -> Table | None:
    """Return the measured and predicted tokens per call of every tree; None without trees."""
    frames = [tree_statistics(pair, table) for pair, table in zip(decoded, runs, strict=True)]
    data = pd.concat(frames, ignore_index=True)
    if data.empty:
        return None
    columns: dict[Any, Any] = {
        ("", "T"): [f"{temperature:g}" for temperature in data["temperature"]],
        ("", "nodes"): list(map(str, data["nodes"])),
        ("", "levels"): list(map(str, data["levels"])),
        ("τ", "measured"): estimate_texts(
            Estimate.read(data, "tokens_per_call", ("ci_low", "ci_high"))
        ),
        ("τ", "predicted"): [number_text(value) for value in data["predicted"]],
        ("τ", "bound"): [number_text(value) for value in data["bound"]],
        ("levels", "first"): [percent_text(share) for share in data["first_level"]],
        ("levels", "later"): [percent_text(share) for share in data["later_levels"]],
        ("", "R"): data["acceptance"],
    }
    if "kl" in data:
        for name, heading in ENTROPIES.items():
            digits = 2 if name == "theorem" else 3
            columns["nats", heading] = [number_text(value, digits) for value in data[name]]
    return Table(
        "decoding_trees",
        "Trees",
        "Draft trees. τ: tokens per call that drafted the whole tree; predicted from R(i), the "
        "share of levels that accepted their child i; bounded by Lemma 4.3 of arXiv 2504.15475. "
        "Levels that accepted a child: first and later ones. KL ≤ H[R] ≤ (8), and the bound (5) on "
        "τ of the largest tree.",
        data,
        rows_by_method(data, columns),
    )
