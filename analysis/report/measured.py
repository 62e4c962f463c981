"""Results of a study: frames of statistics, and the steps of each target.

Frame `runs` holds `analysis.statistics.run_lengths.run_lengths` of every target and rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..acceptance.judgement import Judgement
from ..rules import Rule
from ..statistics.bootstrap import Flags, Floats, PromptBootstrap, summarise
from ..statistics.trajectories import Trajectories
from .records import Column, Row, Table, records_of, select, worded


@dataclass(frozen=True, eq=False)
class Results:
    """The results of a study: named tidy frames that share their key columns.

    Key columns are `target` (printed name) and `rule` (label); a long frame also has `statistic`
    and `value`. Intervals over prompts are `ci_low` and `ci_high`, with `prompts`. Statistics of
    certificates that are intervals count the lower ends. Each section names the frames that it
    reads.

    Attributes:
        targets: printed names, in order.
        rules: every rule in a frame, by label; those of the study first, in order.
        frames: by name. Every study has `top`, `certificates` and `runs`; the others need a
            drafter, decoding, ...
        drafter: its printed name; empty without a drafter.
        facts: further values for captions: the temperature of sampled answers.
    """

    targets: Sequence[str]
    rules: Mapping[str, Rule]
    frames: Mapping[str, pd.DataFrame]
    drafter: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    _indexed: dict[tuple[str, ...], dict[tuple[Any, ...], Row]] = field(
        default_factory=dict, repr=False
    )

    def __contains__(self, name: str) -> bool:
        """Whether the study has a frame of this name that is not empty."""
        return name in self.frames and not self.frames[name].empty

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Return a frame, empty if the study has none of this name."""
        return self.frames.get(name, pd.DataFrame())

    @cached_property
    def certified(self) -> list[Rule]:
        """The rules whose certificates were computed."""
        return [self.rules[label] for label in self["certificates"]["rule"].unique()]

    @cached_property
    def names(self) -> dict[str, str]:
        """Printed name of every rule, by label."""
        return {label: rule.title for label, rule in self.rules.items()}

    def select(self, name: str, **conditions: Any) -> pd.DataFrame:
        """Return the rows of a frame whose columns equal a value, or one of a list of values."""
        return select(self[name], **conditions) if name in self else self[name]

    def rows(self, name: str, *keys: str) -> dict[tuple[Any, ...], Row]:
        """Return the rows of a frame, indexed by the values of some columns."""
        if (name, *keys) not in self._indexed:
            rows = records_of(self[name])
            self._indexed[name, *keys] = {tuple(row[key] for key in keys): row for row in rows}
        return self._indexed[name, *keys]

    def row(self, target: str, rule: str, statistic: str, name: str = "certificates") -> Row:
        """Return the row of a rule's statistic, with NaN if there is none."""
        row = self.rows(name, "target", "rule", "statistic").get((target, rule, statistic))
        return dict.fromkeys(self[name].columns, math.nan) if row is None else row

    def table(
        self,
        name: str,
        data: pd.DataFrame,
        more: Sequence[Column] = (),
        notes: Sequence[str] = (),
        order: Any = None,
        shown: pd.DataFrame | None = None,
        **facts: Any,
    ) -> Table:
        """Return a table with a copy of its columns for each target.

        Args:
            name: of its entry in `texts.toml`.
            data: the tidy frame, as written to the CSV file.
            more: columns after those of the entry.
            notes: sentences below.
            order: of the rows, as in `Table`.
            shown: the frame to print, if it differs.
            facts: values for its texts, besides the drafter's name.
        """
        return Table(
            **worded(name, self.targets, more, drafter=self.drafter, **facts),
            data=data,
            order=order,
            names=self.names,
            notes=notes,
            shown=shown,
        )


# (N,) lower and upper ends of the certificates of a rule over the N steps of a target, in nats;
# lower ends are +inf where the rejection region is empty
Ends = tuple[Floats, Floats]
Certified = Mapping[Rule, Ends]


@dataclass(frozen=True, eq=False)
class Target:
    """The N steps of a target in P answers, as the report and its page read them.

    Attributes:
        label: printed name of the target.
        certificates: by rule of the study.
        bootstrap: over the prompts of the steps.
        tokens: (N,) the token emitted.
        prompts: (P,) id and text of each prompt.
        top: by k, the (N,) probability of the k most probable tokens.
        repeated: (N,) whether each step lies inside a repeated passage of its answer.
        undefined: by rule label, the number of steps at which the rule's test is undefined.
        words: text of tokens, by id.
        draft: one row for each step: the `kl`, and the rank of the drafted token (the drafter's
            argmax) under the target; None without a drafter.
        judged: by rule label, the judgement of the drafter's steps.
        completed: whether the drafter is a head with a reduced vocabulary, whose KL is that of its
            completed q'.
    """

    label: str
    certificates: Certified
    bootstrap: PromptBootstrap
    tokens: NDArray[np.int32]
    prompts: Sequence[tuple[str, str]]
    top: Mapping[int, Floats] = field(default_factory=dict)
    repeated: Flags = field(default_factory=lambda: np.zeros(0, dtype=bool))
    undefined: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[int, str] = field(default_factory=dict)
    draft: pd.DataFrame | None = None
    judged: Mapping[str, Judgement] = field(default_factory=dict)
    completed: bool = False

    @property
    def trajectories(self) -> Trajectories:
        """The steps of each answer."""
        steps = self.bootstrap.steps
        return Trajectories(np.cumsum(steps) - steps, self.bootstrap.prompts)


def certificate_statistics(
    target: str,
    rule: Rule,
    lower: Floats,
    upper: Floats,
    bootstrap: PromptBootstrap,
    undefined: float = math.nan,
) -> pd.DataFrame:
    """Return the rows of frame `certificates` for (N,) certificates of one rule in nats.

    Columns: target, rule (label), statistic, value, ci_low, ci_high, prompts, empty, inexact,
    undefined, steps.

    `undefined` is the number of steps at which the rule's test is undefined (MARS: z1 <= 0); NaN
    for rules whose test is always defined.
    """
    keys = {"target": target, "rule": rule.label}
    return _tidy(keys, lower, rule.ceiling, bootstrap).assign(
        empty=float(np.mean(np.isinf(lower))),
        inexact=float(np.mean(lower < upper)),
        undefined=undefined,
        steps=len(lower),
    )


def top_statistics(
    target: str, top: Mapping[int, Floats], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Return the rows of frame `top` from the (N,) probabilities of the k most probable tokens."""
    frames = [
        _tidy({"target": target, "k": k}, values, math.inf, bootstrap) for k, values in top.items()
    ]
    return pd.concat(frames, ignore_index=True)


def _tidy(keys: Row, values: Floats, ceiling: float, bootstrap: PromptBootstrap) -> pd.DataFrame:
    statistics = summarise(values, ceiling, bootstrap)
    return pd.DataFrame(
        [
            {**keys, "statistic": x, **ends, "prompts": bootstrap.count}
            for x, ends in statistics.items()
        ]
    )
