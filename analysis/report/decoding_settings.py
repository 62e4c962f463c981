"""Tables of the speed of decoding over temperature and draft length, and the best draft length.

Temperature x draft length is laid out as Table 2 of MARS (arXiv 2601.15498), with agreement with
the baseline's tokens in the place of task accuracy. `speeds` holds `analysis.decoding.speed.speed`
of each target.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ..decoding import speed
from ..decoding.metrics import Decoded
from .decoding_speed_tables import WALL_CLOCK, times
from .decoding_tables import method_sections, together
from .table import Cell, Section, Table
from .text import number_text, share_text


def temperature_table(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Table | None:
    """Temperature x draft length, for methods decoded at several temperatures."""
    groups = {
        f"{one.target}, {method}": group
        for one, table in zip(decoded, speeds, strict=True)
        for method, group in table[table["draft_length"] > 0].groupby("method", sort=False)
        if len(set(group["temperature"])) > 1
    }
    if not groups:
        return None
    temperatures = sorted({t for group in groups.values() for t in group["temperature"]})

    def cells(group: pd.DataFrame, gamma: int) -> list[Cell]:
        rows = group[group["draft_length"] == gamma].set_index("temperature")
        found = [_effect(rows.loc[t]) if t in rows.index else [""] * 3 for t in temperatures]
        return [Cell(text) for texts in found for text in texts]

    sections = [
        Section(
            title,
            [(f"γ = {gamma}", cells(group, gamma)) for gamma in sorted(set(group["draft_length"]))],
        )
        for title, group in groups.items()
    ]
    return Table.side_by_side(
        "decoding_temperature",
        "Temperature and draft length",
        f"Effects of temperature T and draft length γ. {WALL_CLOCK}",
        "",
        [f"T = {t:g}" for t in temperatures],
        ["speedup", "τ", "agreement"],
        sections,
        pd.concat(
            [group.assign(section=title) for title, group in groups.items()], ignore_index=True
        ),
    )


def _effect(row: pd.Series) -> list[str]:
    return [
        times(row["speedup"]),
        number_text(row["tokens_per_call"]),
        share_text(row["agreement"]),
    ]


def length_table(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Table | None:
    """The best draft length, predicted and found."""
    frames = [speed.draft_lengths(one, table) for one, table in zip(decoded, speeds, strict=True)]
    data = together(decoded, frames)
    if data.empty:
        return None

    def texts(row: pd.Series) -> list[str]:
        return [
            f"{row['temperature']:g}",
            number_text(row["rate"], 3),
            str(row["predicted"]),
            times(row["predicted_speedup"]),
            str(row["found"]),
            times(row["found_speedup"]),
            row["tried"],
        ]

    sections = method_sections(decoded, frames, texts)
    return Table(
        "decoding_draft_length",
        "The best draft length",
        "Draft length γ with the largest speedup. Predicted: the maximum of "
        "(1 − aᵞ⁺¹)/(1 − a) times c_p over the cost of a call, a the acceptance rate of all "
        "drafts, the cost as measured at the lengths tried and on a line between them; γ from 0 "
        "to the longest tried. Found: among those tried and 0, whole answers. 0: the target "
        "alone, drafting does not pay.",
        "Method",
        [("", 2), ("predicted", 2), ("found", 2), ("", 1)],
        ["T", "a", "γ", "speedup", "γ", "speedup", "tried"],
        [section for section in sections if section.rows],
        data,
    )
