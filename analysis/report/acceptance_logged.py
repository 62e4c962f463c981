"""The table of a drafter's acceptance, where target and drafter were logged by engines."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ..rules.rule import Rule
from .table import Cell, Section, Table
from .text import number_text, range_text, share_text

COLUMNS = {
    "acceptance": "accepted",
    "certified_tv": "certified by TV",
    "certified_kl": "certified by KL",
}


def logged_table(statistics: pd.DataFrame, rules: Sequence[Rule], drafter: str) -> Table:
    """Return accepted beside certified, rule by rule; every cell is a range of what is known.

    Args:
        statistics: rows of `analysis.acceptance.logged.logged_statistics` with their target.
        rules: in the order of the rows.
        drafter: its printed name.
    """
    values = {
        (row["target"], row["rule"], row["statistic"]): (row["value"], row["optimistic"])
        for row in statistics.to_dict("records")
    }
    sections, notes = [], []
    for target in statistics["target"].unique():
        rows = [
            (
                rule.title,
                [
                    Cell(range_text(*map(share_text, values[target, rule.label, name])))
                    for name in COLUMNS
                ],
            )
            for rule in rules
        ]
        sections.append(Section(target, rows))
        kl, tv = (
            range_text(*(number_text(end, 3) for end in values[target, "", name]))
            for name in ("kl", "tv")
        )
        share = range_text(*map(share_text, values[target, "", "acceptance"]))
        notes.append(
            f"{target}: mean KL(p‖q) {kl} nats, mean total variation {tv}; speculative sampling "
            f"of a drafted draw accepts {share} of the tokens, at temperature 1."
        )
    return Table(
        "acceptance_logged",
        "What is accepted, and what was certified",
        f"What each rule accepts of {drafter}'s most probable token, by the log-probabilities that "
        "both engines logged, and what certificates promised: in total variation, and in KL. "
        "Cells are the least and the most that both logs allow. The KL has no upper end where the "
        "target may have mass on a token that the drafter did not list, so certificates in KL "
        "can't be sure there; those in total variation can.",
        "Criterion",
        [("", len(COLUMNS))],
        list(COLUMNS.values()),
        sections,
        statistics[["target", *(name for name in statistics if name != "target")]],
        notes,
    )
