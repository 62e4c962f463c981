"""Table and figure of certificates in several divergences: which accepted steps they cover."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ..acceptance.summary import UNION
from .dots import dots
from .figure import Figure
from .notes import few_notes
from .pairs import Pairs
from .style import percent, styled
from .table import Cell, Section, Table
from .text import range_text, share_text

PRINTED = {
    "kl": "KL",
    "tv": "TV",
    "hellinger": "Hellinger",
    "reverse_kl": "reverse KL",
    UNION: "union",
}


def by_divergence(pairs: Pairs) -> Table:
    """Coverage of accepted steps by each divergence and by their union, rule by rule."""
    frame, found = pairs.divergences, pairs.divergence_rows
    names = _names(frame)
    rules = [rule for rule in pairs.labels("baseline", "criteria") if rule in set(frame["rule"])]

    def cell(target: str, rule: str, name: str) -> Cell:
        row = found[target, rule, name, "coverage"]
        return Cell(range_text(share_text(row["value"]), share_text(row["optimistic"])))

    rows = [
        (
            pairs.names[rule],
            [cell(target, rule, name) for target in pairs.targets for name in names],
        )
        for rule in rules
    ]
    return Table.side_by_side(
        "divergences",
        "Coverage by other divergences",
        "Share of the accepted steps that certificates promise to accept, by the divergence of "
        "target and draft that they bound. A step is certified if the divergence of "
        f"{pairs.drafter} there lies below the certificate. Union: at least one of them certifies "
        "the step. A range is the least and the most that certificates known as intervals allow.",
        "Rule",
        pairs.targets,
        [PRINTED[name] for name in names],
        [Section("", rows)],
        frame[frame["rule"].isin([*rules, ""])],
        [*_infinite_notes(pairs, names), *few_notes(frame["prompts"])],
    )


@styled
def divergence_figure(pairs: Pairs, rules: Sequence[str]) -> Figure:
    """Draw the coverage of some rules by each divergence, and by their union, with intervals.

    Args:
        pairs: the targets and what was measured.
        rules: labels of the rules drawn.
    """
    frame, found = pairs.divergences, pairs.divergence_rows
    names = {name: PRINTED[name] for name in _names(frame)}
    drawing, axes = dots(pairs, rules, names, lambda *key: found[(*key, "coverage")], last=UNION)
    for axis in axes:
        percent(axis, "x")
        axis.set_xlabel("of accepted steps")
    return Figure(
        "divergences",
        "Coverage by other divergences, drawn",
        "Accepted steps that certificates promised to accept, by the divergence they bound and by "
        "the union of all, from the lower ends where certificates are intervals; bars are "
        "intervals over prompts.",
        drawing,
        frame[frame["rule"].isin(rules) & (frame["statistic"] == "coverage")],
    )


def _names(frame: pd.DataFrame) -> list[str]:
    return [str(name) for name in frame["divergence"].unique()]


def _infinite_notes(pairs: Pairs, names: Sequence[str]) -> list[str]:
    """Say which divergences are infinite somewhere, as under a reduced vocabulary."""
    parts = []
    for name in names:
        shares = [
            pairs.divergence_rows[target, "", name, "finite"]["value"]
            for target in pairs.targets
            if name != UNION
        ]
        if any(share < 1 for share in shares):
            parts.append(f"{PRINTED[name]} {' / '.join(map(share_text, shares))}")
    if not parts:
        return []
    return [
        f"Steps with a finite divergence: {', '.join(parts)}. At the others the target gives "
        "probability to tokens that the drafter can't draft, and this divergence certifies nothing "
        "that can be rejected. TV and Hellinger are finite always."
    ]
