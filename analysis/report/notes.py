"""What is said below a table of certificates: where they are infinite or known as intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..rules import Rule
from ..statistics.bootstrap import FEW_PROMPTS, few
from ..statistics.run_lengths import CENSORED
from .measured import Measured
from .text import share_text

AT_LEAST = (
    f"≥: a lower bound; ends of trajectories cut more than {100 * CENSORED:g} % of the calls or "
    "runs there. Of long_run they cut none."
)
Shares = Callable[[str, str, str], float]  # of a target, a rule's label, and empty or inexact


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

    def share(target: str, rule: str, column: str) -> float:
        return float(measured.row(target, rule, "mean")[column])

    return share_notes(share, {rule.label: rule.title for rule in rules}, targets, meaning)


def share_notes(
    share: Shares, names: Mapping[str, str], targets: Sequence[str], meaning: str
) -> list[str]:
    """Say the same of rules given by label and printed name, whose shares `share` knows."""
    empty = _shares(share, names, targets, "empty")
    inexact = _shares(share, names, targets, "inexact")
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


def few_notes(prompts: Iterable[int]) -> list[str]:
    """Warn below a table whose intervals come from few prompts; nothing where there are enough.

    Args:
        prompts: number of prompts of each target or run that the table shows.
    """
    least = min(prompts, default=FEW_PROMPTS)
    if not few(least):
        return []
    counted = "1 prompt" if least == 1 else f"{least} prompts"
    return [
        f"Few prompts: intervals come from {counted}, fewer than {FEW_PROMPTS}, and are too "
        "narrow (few_prompts in the CSV file)."
    ]


def undefined_notes(measured: Measured, rules: Sequence[Rule]) -> list[str]:
    """Count the steps at which a rule's test means nothing; rules that say the same, once."""
    said = []
    for rule in rules:
        if rule.undefined_means:
            rows = [measured.row(target, rule.label, "mean") for target in measured.targets]
            counts = [f"{row['undefined']:.0f} of {row['steps']}" for row in rows]
            said.append(f"{rule.undefined_means}: {' / '.join(counts)}")
    return [
        f"{text}{_titles(measured.targets)}; undefined in the CSV file."
        for text in dict.fromkeys(said)
    ]


def _shares(share: Shares, names: Mapping[str, str], targets: Sequence[str], column: str) -> str:
    parts = []
    for rule, name in names.items():
        values = [share(target, rule, column) for target in targets]
        if any(values):
            parts.append(f"{name} " + " / ".join(share_text(v) for v in values))
    return ", ".join(parts) + (_titles(targets) if parts else "")


def _titles(targets: Sequence[str]) -> str:
    return f" ({' / '.join(targets)})" if len(targets) > 1 else ""
