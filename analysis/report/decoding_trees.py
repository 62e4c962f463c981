"""Table of the draft trees that were decoded: acceptance by sibling index, prediction, bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..decoding.metrics import Decoded
from ..trees.acceptance import measured
from ..trees.bounds import least_residual_upper
from ..trees.topology import Floats, Topology, tokens_per_call
from .decoding_tables import method_sections, together
from .table import Table
from .text import number_text


def trees_table(decoded: Sequence[Decoded]) -> Table | None:
    """Tokens a call of every tree, measured and predicted; None where no method drafted trees."""
    frames = [_trees(one) for one in decoded]
    data = together(decoded, frames)
    if data.empty:
        return None

    def texts(row: pd.Series) -> list[str]:
        return [
            f"{row['temperature']:g}",
            str(row["nodes"]),
            str(row["levels"]),
            number_text(row["tokens_per_call"]),
            number_text(row["whole"]),
            number_text(row["predicted"]),
            number_text(row["bound"]),
            row["acceptance"],
        ]

    return Table(
        "decoding_trees",
        "Trees",
        "Draft trees: nodes and levels of the whole tree; τ, tokens emitted by a target call, of "
        "all calls and of those that drafted the whole tree (near the limit of an answer levels "
        "are cut); predicted from R, if every level accepted child i with probability R(i) "
        "whatever came before; the bound of Lemma 4.3 (ends counted as in (29)) on this "
        "prediction, for any tree of so many nodes. R(i): share of levels that accepted their i-th "
        "child, estimated from nodes with any numbers of children.",
        "Method",
        [("", 3), ("τ", 4), ("", 1)],
        ["T", "nodes", "levels", "all calls", "whole trees", "predicted", "bound", "R"],
        [section for section in method_sections(decoded, frames, texts) if section.rows],
        data,
        [
            "R is ready for `acceptance` of `tree: optimal`. Acceptance that comes in runs emits "
            "more than predicted, and can exceed the bound. An answer that ends inside a draft "
            "emits less."
        ],
    )


def _trees(one: Decoded) -> pd.DataFrame:
    """Return a row for each run that drafted trees."""
    rows: list[dict[str, Any]] = []
    for run in one.runs.index[one.of_trees]:
        tree = Topology(tuple(map(int, one.runs["tree"][run]["parents"])))
        calls = one.calls[one.calls["run"] == run]
        levels = one.levels[one.levels["run"] == run]
        rates = measured(levels["accepted"].to_numpy(), levels["children"].to_numpy())
        whole = calls[calls["drafted"] == len(tree)]
        rows.append(
            {
                **one.runs.loc[run, ["method", "temperature"]].to_dict(),
                "nodes": len(tree),
                "levels": tree.depth,
                "tokens_per_call": _per_call(calls),
                "whole": _per_call(whole),
                "predicted": _predicted(tree, rates),
                "bound": least_residual_upper(rates, len(tree), tight=True)[1],
                "acceptance": " ".join(f"{rate:.3g}" for rate in rates),
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS)


COLUMNS = [
    *("method", "temperature", "nodes", "levels", "tokens_per_call", "whole", "predicted"),
    *("bound", "acceptance"),
]


def _per_call(calls: pd.DataFrame) -> float:
    return float(calls["emitted"].mean()) if len(calls) else math.nan


def _predicted(tree: Topology, rates: Floats) -> float:
    """Return the zero-order tokens a call; NaN where an index of the tree was never tested."""
    return tokens_per_call(tree, rates) if max(tree.siblings) <= len(rates) else math.nan
