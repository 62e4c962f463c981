"""Table of what a head drafts by the depth of its drafts: its distribution depends on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from .notes import few_notes
from .pairs import Pairs
from .table import Cell, Section, Table
from .text import number_text, range_text, share_text

Print = Callable[[float], str]


def by_depth(pairs: Pairs, rules: Sequence[str]) -> Table | None:
    """Lay out KL, acceptance and certification over depth; None for a drafter that is no head."""
    table = pairs.depths
    if table.empty:
        return None
    depths = sorted(table["depth"].unique())
    key = ["target", "depth", "rule", "statistic"]
    rows = {tuple(row[name] for name in key): row for row in table.to_dict("records")}

    def cells(rule: str, statistic: str, text: Print) -> list[Cell]:
        found = [
            rows[target, depth, rule, statistic] for target in pairs.targets for depth in depths
        ]
        return [Cell(range_text(text(row["value"]), text(row["optimistic"]))) for row in found]

    def section(statistic: str) -> list[tuple[str, list[Cell]]]:
        return [(pairs.names[rule], cells(rule, statistic, share_text)) for rule in rules]

    alone = [
        ("KL(p‖q), median, nats", cells("", "kl_median", number_text)),
        ("finite KL(p‖q)", cells("", "finite", share_text)),
    ]
    return Table.side_by_side(
        "depths",
        "By depth of the draft",
        f"What {pairs.drafter} drafts after none, one, two, ... drafted tokens, teacher-forced on "
        "the target's own trajectories: it reads the target's hidden states as far as they are "
        "known, and its own output after that. All other tables are of depth 1.",
        "",
        pairs.targets,
        [f"depth {depth}" for depth in depths],
        [
            Section("", alone),
            Section("Accepted", section("acceptance")),
            Section("Certified", section("certified")),
        ],
        _tidy(table, rules),
        few_notes(table["prompts"]),
    )


def _tidy(table: pd.DataFrame, rules: Sequence[str]) -> pd.DataFrame:
    return table[table["rule"].isin(["", *rules])]
