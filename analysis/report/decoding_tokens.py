"""Table of the tokens that a target call emits: the closed form beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from ..decoding import metrics as decoding
from ..decoding import speed_laws
from ..decoding.metrics import Decoded
from .decoding_tables import together
from .table import Cell, Section, Table
from .text import UNDEFINED, number_text

# expected tokens a call by acceptance rate, (1 - a^(gamma+1)) / (1 - a), as printed elsewhere
KNOWN_LENGTHS = (3, 5, 7, 10)
KNOWN_TOKENS = {
    0.5: (1.88, 1.97, 1.99, 2.00),
    0.7: (2.53, 2.94, 3.14, 3.27),
    0.8: (2.95, 3.69, 4.16, 4.57),
    0.9: (3.44, 4.69, 5.70, 6.86),
    0.95: (3.71, 5.30, 6.73, 8.62),
}


def tokens_table(decoded: Sequence[Decoded]) -> Table:
    """The closed form over acceptance rates and draft lengths, beside what was measured."""
    data = pd.DataFrame(
        [
            (a, gamma, speed_laws.tokens_per_call(a, gamma), known)
            for a, row in KNOWN_TOKENS.items()
            for gamma, known in zip(KNOWN_LENGTHS, row, strict=True)
        ],
        columns=["a", "draft_length", "expected", "published"],
    )
    found = [decoding.acceptance(one) for one in decoded]
    drafting = [table[table["draft_length"] > 0] for table in found]
    measured = together(decoded, drafting).rename(
        columns={"rate": "a", "tokens_per_call": "measured"}
    )
    columns = ["target", "method", "temperature", "draft_length", "a", "measured"]
    expected = [
        (
            f"a = {a:g}",
            [
                Cell(number_text(ours), number_text(known))
                for ours, known in zip(group["expected"], group["published"], strict=True)
            ],
        )
        for a, group in data.groupby("a", sort=False)
    ]
    return Table(
        "decoding_tokens",
        "Tokens a target call",
        "Tokens emitted by a target call, by draft length γ: expected under "
        "independent tests with acceptance rate a, and measured. For low a a longer draft gains "
        "little.",
        "",
        [("γ", len(KNOWN_LENGTHS))],
        [str(gamma) for gamma in KNOWN_LENGTHS],
        [
            Section("expected at a", expected),
            *(
                Section(f"measured, {one.target}", _measured_tokens(table))
                for one, table in zip(decoded, drafting, strict=True)
            ),
        ],
        pd.concat([data, measured[columns]], ignore_index=True),
    )


def _measured_tokens(drafting: pd.DataFrame) -> list[tuple[str, list[Cell]]]:
    """Return a row for each setting that was decoded at one of `KNOWN_LENGTHS` or more."""
    rows = []
    for (method, t), group in drafting.groupby(["method", "temperature"], sort=False):
        by_length = group.set_index("draft_length")["tokens_per_call"]
        texts = [number_text(by_length.get(gamma, math.nan)) for gamma in KNOWN_LENGTHS]
        if set(texts) != {UNDEFINED}:
            rate = group["accepted"].sum() / group["tested"].sum()
            rows.append((f"{method}, T = {t:g}, a = {rate:.2f}", [*map(Cell, texts)]))
    return rows
