"""Sentences below a table: certificates that are infinite or intervals, and few prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pandas as pd

from ..statistics.bootstrap import FEW_PROMPTS, few
from .records import Results, Table, select, sentence
from .text import share_text


def coverage_notes(empty: pd.Series, inexact: pd.Series, meaning: str) -> list[str]:
    """Explain empty rejection regions and ranges, where a table has any.

    The notes hold no number of a table: where several tables have the same one, a page prints it
    once (`shared_notes`).

    Args:
        empty: shares of steps with an empty rejection region, of the rules that the table shows.
        inexact: shares of steps whose certificate is known as an interval, likewise.
        meaning: name of the sentence on what the table takes an empty region for.
    """
    return [
        *[f"{sentence('empty')} {sentence(meaning)}"] * bool((empty > 0).any()),
        *[sentence("inexact")] * bool((inexact > 0).any()),
    ]


def shared_notes(tables: Iterable[Table]) -> list[str]:
    """Return the notes that stand below more than one table, in the order of their appearance."""
    counts = Counter(note for table in tables for note in dict.fromkeys(table.notes))
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
    """Name the divergences that are infinite somewhere, as those of a reduced vocabulary are.

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
    said = f"Steps with a finite divergence: {', '.join(parts)}. {sentence('infinite')}"
    return [said] * bool(parts)
