"""What is said below a table of certificates: where they are infinite or known as intervals."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.criteria import Rule
from analysis.measured import Measured
from analysis.printing import rule_text, share_text


def coverage_notes(
    measured: Measured, rules: Sequence[Rule], targets: Sequence[str], meaning: str
) -> list[str]:
    """Say which share of the steps has an empty region, and which is known as an interval.

    Args:
        measured: the study.
        rules: those the table shows.
        targets: those the table shows.
        meaning: what the table takes an empty region for, a sentence.
    """
    empty = _shares(measured, rules, targets, "empty")
    inexact = _shares(measured, rules, targets, "inexact")
    notes = []
    if empty:
        notes.append(
            f"Steps with an empty rejection region, whose certificate is +∞: {empty}. {meaning}"
        )
    if inexact:
        notes.append(
            "Steps whose certificate is known as an interval, the first rejected token "
            f"lying beyond the stored ones: {inexact}. A range gives the statistic at "
            "both ends where they print differently."
        )
    return notes or ["Every certificate is exact and no rejection region is empty."]


def _shares(measured: Measured, rules: Sequence[Rule], targets: Sequence[str], column: str) -> str:
    parts = []
    for rule in rules:
        values = [measured.row(target, rule.label, "mean")[column] for target in targets]
        if any(values):
            parts.append(f"{rule_text(rule)} " + " / ".join(share_text(v) for v in values))
    names = f" ({' / '.join(targets)})" if parts and len(targets) > 1 else ""
    return ", ".join(parts) + names
