"""What is said below a table of certificates: where they are infinite or known as intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..rules import Rule
from ..statistics.bootstrap import FEW_PROMPTS, few
from ..statistics.trajectories import CENSORED
from .records import Results, Table, select
from .render import notes
from .text import share_text

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
    results: Results, rules: Sequence[Rule], targets: Sequence[str], meaning: str
) -> list[str]:
    """Say of the frame `certificates` what `share_notes` says."""

    def share(target: str, rule: str, column: str) -> float:
        return float(results.row(target, rule, "mean")[column])

    return share_notes(share, [rule.label for rule in rules], targets, meaning)


def share_notes(
    share: Shares, rules: Iterable[str], targets: Sequence[str], meaning: str
) -> list[str]:
    """Say what a table takes an empty region for, and what a range is, where there are any.

    The notes hold no number of a table: where several tables have the same one, a page says it
    once (`shared_notes`).

    Args:
        share: of steps, by target, rule's label, and empty or inexact.
        rules: labels of those the table shows.
        targets: those the table shows.
        meaning: what the table takes an empty region for, a sentence.
    """
    labels = list(rules)

    def any_of(column: str) -> bool:
        return any(share(target, rule, column) > 0 for rule in labels for target in targets)

    return [*[f"{EMPTY} {meaning}"] * any_of("empty"), *[INEXACT] * any_of("inexact")]


def shared_notes(tables: Iterable[Table]) -> list[str]:
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


def infinite_notes(results: Results, divergences: Mapping[str, str]) -> list[str]:
    """Say which divergences are infinite somewhere, as those of a reduced vocabulary are.

    Args:
        results: the study, with the frame `breakdown`.
        divergences: printed name of those that a table is about.
    """
    finite = select(results["breakdown"], depth=0, rule="", statistic="finite")
    parts = []
    for name, shown in divergences.items():
        shares = select(finite, divergence=name)["value"]
        if (shares < 1).any():
            parts.append(f"{shown} {' / '.join(map(share_text, shares))}")
    return [
        f"Steps with a finite divergence: {', '.join(parts)}. At the others the target gives "
        "probability to tokens that the drafter can't draft: nothing that can be rejected is "
        "certified by it there, R − KL is -∞ where R is finite, and its mean is infinite."
    ] * bool(parts)


def undefined_notes(results: Results, rules: Sequence[Rule]) -> list[str]:
    """Count the steps at which a rule's test means nothing; rules that say the same, once."""
    said = []
    for rule in rules:
        if rule.undefined_means:
            rows = [results.row(target, rule.label, "mean") for target in results.targets]
            counts = [f"{row['undefined']:.0f} of {row['steps']}" for row in rows]
            said.append(f"{rule.undefined_means}: {' / '.join(counts)}")
    return [
        f"{text}{_titles(results.targets)}; undefined in the CSV file."
        for text in dict.fromkeys(said)
    ]


def _titles(targets: Sequence[str]) -> str:
    return f" ({' / '.join(targets)})" if len(targets) > 1 else ""
