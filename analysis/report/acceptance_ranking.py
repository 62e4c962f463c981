"""Table and figure of how well certificates rank the acceptance of steps that none certifies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .dots import dots
from .figure import Figure
from .notes import few_notes
from .pairs import Pairs, rows_by
from .style import LEVEL, styled
from .table import Cell, Section, Table
from .text import number_text, share_text

PRINTED = {  # of analysis.acceptance.ranking.SCORES
    "slack": "R − KL",
    "tv_slack": "R_TV − TV",
    "margin": "margin",
    "kl": "KL",
    "tv": "TV",
}
Found = dict[tuple[Any, ...], dict[Any, Any]]


def ranking_table(pairs: Pairs) -> Table | None:
    """Areas under the curve of acceptance, rule by rule; None where they were not computed."""
    if pairs.ranking.empty:
        return None
    frame, found = pairs.ranking, _found(pairs)
    rules = [rule for rule in pairs.labels("baseline", "criteria") if rule in set(frame["rule"])]

    def cells(target: str, rule: str) -> list[Cell]:
        row = found[target, rule, "uncertified", "slack"]
        pooled = found[target, rule, "all", "slack"]
        texts = [str(row["steps"]), share_text(row["accepted"])]
        texts += [number_text(found[target, rule, "uncertified", s]["value"]) for s in PRINTED]
        return [Cell(text) for text in (*texts, number_text(pooled["value"]))]

    rows = [
        (pairs.names[rule], [cell for target in pairs.targets for cell in cells(target, rule)])
        for rule in rules
    ]
    return Table.side_by_side(
        "ranking",
        "What certificates predict of steps that they do not certify",
        "Steps that no certificate covers, the share of them that is accepted all the same, and "
        "how often an accepted one of them ranks above a rejected one (AUC, ties half): by R − KL; "
        "by the certificate of total variation less TV, for strict greedy half the margin less TV; "
        "by the target's margin p₀ − p₁; by a small KL; by a small TV. 0.5 says nothing. All: by "
        "R − KL over all steps, where certified ones are accepted by proof.",
        "Rule",
        pairs.targets,
        ["steps", "accepted", *PRINTED.values(), "R − KL, all"],
        [Section("", rows)],
        frame[frame["rule"].isin(rules)],
        few_notes(frame["prompts"]),
    )


@styled
def ranking_figure(pairs: Pairs, rules: Sequence[str]) -> Figure | None:
    """Draw the areas of some rules over uncertified steps, with intervals.

    Args:
        pairs: the targets and what was measured.
        rules: labels of the rules drawn.
    """
    if pairs.ranking.empty:
        return None
    found = _found(pairs)
    drawing, axes = dots(
        pairs, rules, PRINTED, lambda target, rule, score: found[target, rule, "uncertified", score]
    )
    for axis in axes:
        axis.axvline(0.5, **LEVEL)
        axis.set_xlabel("AUC, uncertified steps")
    frame = pairs.ranking
    return Figure(
        "ranking",
        "What certificates predict, drawn",
        "How often an accepted step ranks above a rejected one, among the steps that no "
        "certificate covers; bars are intervals over prompts.",
        drawing,
        frame[frame["rule"].isin(rules) & (frame["over"] == "uncertified")],
    )


def _found(pairs: Pairs) -> Found:
    return rows_by(pairs.ranking, "target", "rule", "over", "score")
