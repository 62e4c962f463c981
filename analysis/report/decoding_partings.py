"""Table of the answers of strict greedy verification that differ from those of the target alone."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ..decoding.metrics import Decoded, greedy_runs, partings
from .decoding_tables import together
from .table import Cell, Section, Table
from .text import UNDEFINED, number_text


def partings_table(decoded: Sequence[Decoded]) -> Table | None:
    """Count answers that part from the target's own; None where nothing is verified strictly."""
    if not any(greedy_runs(one) for one in decoded):
        return None
    frames = [partings(one) for one in decoded]
    return Table(
        "decoding_partings",
        "Where strict greedy parts from the target alone",
        "Answers under strict greedy verification that differ from those of the target alone, and "
        "the largest difference of the target's two largest logits at the first token that "
        "differs. Passes over several tokens round differently than passes over one: where two "
        "logits are nearly equal either may come first. A large difference would be a fault. The "
        "CSV file has every such answer.",
        "Method",
        [("", 4)],
        ["γ", "answers", "differ", "largest gap"],
        [
            Section(one.target, _rows(one, frame))
            for one, frame in zip(decoded, frames, strict=True)
        ],
        together(decoded, frames),
    )


def _rows(one: Decoded, frame: pd.DataFrame) -> list[tuple[str, list[Cell]]]:
    rows = []
    for run in greedy_runs(one):
        row, mine = one.runs.iloc[run], frame[frame["run"] == run]
        texts = [
            str(row["draft_length"]),
            str(one.prompts),
            str(len(mine)),
            number_text(mine["gap"].max()) if len(mine) else UNDEFINED,
        ]
        rows.append((row["method"], [*map(Cell, texts)]))
    return rows
