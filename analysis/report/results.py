"""Results of a study: tidy frames of statistics, from which tables and figures are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from ..rules import Rule
from ..statistics.estimate import Estimate

# nats; without a drafter a step counts as certified if its certificate exceeds this KL
ASSUMED_KL = 0.1


@dataclass(frozen=True, eq=False)
class Results:
    """The results of a study: named tidy frames that share their key columns.

    Key columns are `target` (printed name) and `rule` (label); a long frame also has `statistic`
    and `value`. Intervals over prompts are `ci_low` and `ci_high`, with `prompts`. Where a
    certificate is an interval, its lower end counts.
    """

    targets: Sequence[str]  # printed names, in order
    rules: Mapping[str, Rule]  # every rule in a frame, by label; those of the study first, in order
    # the frames by name. Every study has `top`, `certificates`, `run_lengths` and `parts`; with a
    # drafter there are `acceptance`, `sources` and `breakdown`, of stage acceptance
    frames: Mapping[str, pd.DataFrame]
    drafter: str = ""  # its printed name; empty without a drafter

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Return a frame, empty if the study has none of this name."""
        return self.frames.get(name, pd.DataFrame())

    def select(self, name: str, **conditions: Any) -> pd.DataFrame:
        """Return the rows of a frame whose columns equal a value, or one of a list of values."""
        frame = self[name]
        if frame.empty:
            return frame
        for column, values in conditions.items():
            several = values if isinstance(values, list) else [values]
            frame = frame[frame[column].isin(several)]
        return frame

    @cached_property
    def acceptance(self) -> dict[tuple[str, str, str], Estimate]:
        """The statistics of stage acceptance by target, rule label and statistic."""
        return {
            (row["target"], row["rule"], row["statistic"]): Estimate.read(row)
            for row in self["acceptance"].to_dict("records")
        }

    @cached_property
    def certified_rules(self) -> list[Rule]:
        """The rules whose certificates were computed."""
        return [self.rules[label] for label in self["certificates"]["rule"].unique()]

    @cached_property
    def titles(self) -> dict[str, str]:
        """Printed name of every rule, by label."""
        return {label: rule.title for label, rule in self.rules.items()}
