"""What is said below a table of certificates: where they are infinite or known as intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..rules import Rule
from ..statistics.bootstrap import FEW_PROMPTS, few
from ..statistics.trajectories import CENSORED
from .render import notes

if TYPE_CHECKING:
    from .measured import Measured

AT_LEAST = (
    f"≥: a lower bound; ends of trajectories cut more than {100 * CENSORED:g} % of the calls or "
    "runs there. Of long_run they cut none."
)
EMPTY = (
    "At some steps nothing can be rejected, and the certificate is +∞ (table determined: Empty)."
)
INEXACT = (
    "Two numbers with a dash: both ends of certificates known as intervals, where the first "
    "rejected token lies beyond the stored ones (table determined)."
)
Shares = Callable[[str, str, str], float]  # of a target, a rule's label, and empty or inexact


def coverage_notes(
    measured: Measured, rules: Sequence[Rule], targets: Sequence[str], meaning: str
) -> list[str]:
    """Say what a table takes an empty region for, and what a range is, where there are any.

    Args:
        measured: the study.
        rules: those the table shows.
        targets: those the table shows.
        meaning: what the table takes an empty region for, a sentence.
    """

    def share(target: str, rule: str, column: str) -> float:
        return float(measured.row(target, rule, "mean")[column])

    return share_notes(share, [rule.label for rule in rules], targets, meaning)


def share_notes(
    share: Shares, rules: Iterable[str], targets: Sequence[str], meaning: str
) -> list[str]:
    """Say the same of rules given by label, whose shares `share` knows.

    The notes hold no number of a table: where several tables have the same one, a page says it
    once (`shared_notes`).
    """
    labels = list(rules)

    def any_of(column: str) -> bool:
        return any(share(target, rule, column) > 0 for rule in labels for target in targets)

    return [*[f"{EMPTY} {meaning}"] * any_of("empty"), *[INEXACT] * any_of("inexact")]


def shared_notes(tables: Iterable[Any]) -> list[str]:
    """Return the notes that stand below more than one table, in the order of their appearance."""
    counts = Counter(note for table in tables for note in dict.fromkeys(notes(table)))
    return [note for note, count in counts.items() if count > 1]


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


def _titles(targets: Sequence[str]) -> str:
    return f" ({' / '.join(targets)})" if len(targets) > 1 else ""
