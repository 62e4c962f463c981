"""A drafter beside the targets of a study: what was measured of every rule, by its label."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from ..acceptance.summary import UNION
from ..rules import Rule


@dataclass(frozen=True)
class Pairs:
    """A drafter beside each target of a study; the frames are those of the stage acceptance.

    Attributes:
        drafter: its printed name.
        targets: printed names, in order.
        rules: every rule, by label.
        listing: group, name, parameter, setting, rule; the same for all targets.
        statistics: target, rule, statistic, value, optimistic, ci_low, ci_high, cut, cut_optimistic
            (NaN where it is no length), prompts, few_prompts.
        sampled: temperature at which the targets' answers were sampled; None where they were not,
            or not from the whole distribution.
        depths: target, depth, rule, statistic, value, optimistic, ci_low, ci_high, prompts,
            few_prompts; empty where the drafter is no head.
        divergences: target, rule (empty: the drafter alone), divergence (or union), statistic,
            value, optimistic, ci_low, ci_high, prompts, few_prompts.
        budgets: target, rule, at (curve or drafter), kind (uniform, budget, realised), eps,
            statistic, value, ci_low, ci_high, prompts, few_prompts.
        sampling: target, law, at (curve or drafter), kind (step, uniform, budget, measured), eps,
            value, ci_low, ci_high, prompts, few_prompts; empty where no answers were sampled.
        frontier: target, rule, cost (departure or nats), nodes, tokens, tokens_low, tokens_high,
            cut, value, ci_low, ci_high, frontier, better, prompts, few_prompts.
    """

    drafter: str
    targets: Sequence[str]
    rules: Mapping[str, Rule]
    listing: pd.DataFrame
    statistics: pd.DataFrame
    sampled: float | None = None
    depths: pd.DataFrame = field(default_factory=pd.DataFrame)
    divergences: pd.DataFrame = field(default_factory=pd.DataFrame)
    budgets: pd.DataFrame = field(default_factory=pd.DataFrame)
    sampling: pd.DataFrame = field(default_factory=pd.DataFrame)
    frontier: pd.DataFrame = field(default_factory=pd.DataFrame)

    @cached_property
    def names(self) -> dict[str, str]:
        """Printed name of every rule, by label."""
        return {label: rule.title for label, rule in self.rules.items()}

    @cached_property
    def _rows(self) -> dict[tuple[str, str, str], dict[Any, Any]]:
        return rows_by(self.statistics, "target", "rule", "statistic")

    @cached_property
    def divergence_rows(self) -> dict[tuple[Any, ...], dict[Any, Any]]:
        """Rows of `divergences` by target, rule, divergence and statistic."""
        return rows_by(self.divergences, "target", "rule", "divergence", "statistic")

    def certified_by_any(self, target: str) -> dict[str, dict[Any, Any]]:
        """Return the rows of the share that some divergence certifies, by rule; may be empty."""
        return {
            rule: row
            for (whose, rule, name, statistic), row in self.divergence_rows.items()
            if (whose, name, statistic) == (target, UNION, "certified")
        }

    def row(self, target: str, rule: str, statistic: str) -> dict[Any, Any]:
        """Return the row of a rule's statistic; its numbers are NaN where it does not exist."""
        missing = dict.fromkeys(self.statistics.columns, math.nan)
        return self._rows.get((target, rule, statistic), missing)

    def ends(self, target: str, rule: str, statistic: str) -> tuple[float, float]:
        """Return value and optimistic of a rule's statistic; NaN where it does not exist."""
        row = self.row(target, rule, statistic)
        return row["value"], row["optimistic"]

    def value(self, target: str, rule: str, statistic: str) -> float:
        """Return what is certain of a rule's statistic; NaN where it does not exist."""
        return self.ends(target, rule, statistic)[0]

    def labels(self, *groups: str) -> list[str]:
        """Return the labels of groups of the listing, each label once."""
        found = (self.listing.loc[self.listing["group"] == group, "rule"] for group in groups)
        return list(dict.fromkeys(label for labels in found for label in labels))

    def of(self, rules: Sequence[str], statistics: Sequence[str]) -> pd.DataFrame:
        """Return the tidy rows of some rules and statistics."""
        table = self.statistics
        return table[table["rule"].isin(rules) & table["statistic"].isin(statistics)]


def rows_by(frame: pd.DataFrame, *keys: str) -> dict[tuple[Any, ...], dict[Any, Any]]:
    """Return the rows of a tidy frame by their values in some columns."""
    return {tuple(row[key] for key in keys): row for row in frame.to_dict("records")}
