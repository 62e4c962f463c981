"""Measurements of a study: frames of statistics, and the steps of each target.

Frame `runs` has `analysis.statistics.run_lengths.run_lengths` of every target and rule.
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

from ..rules import Rule
from ..statistics.bootstrap import Flags, Floats, PromptBootstrap, summarise
from .records import Column, Row, Table, records_of, select, worded
from .text import PRESETS, few_notes


@dataclass(frozen=True, eq=False)
class Results:
    """What a study measured: named tidy frames that share their key columns.

    Key columns are `target` (printed name) and `rule` (label); a long frame has `statistic` and
    `value` as well. Wherever there are intervals over prompts they are `ci_low` and `ci_high`,
    with `prompts` and `few_prompts`; `optimistic` is a statistic from the upper ends of
    certificates that are known as intervals, equal to `value` elsewhere. Each section names the
    frames that it reads.

    Attributes:
        targets: printed names, in order.
        rules: every rule that a frame names, by its label; those of the study first, in order.
        frames: by name. `top`, `certificates` and `runs` (`analysis.report.measured`) are of every
            study; one without a drafter, without decoding, ... lacks others.
        drafter: its printed name; empty without one.
        facts: what captions name beside frames: the temperature of sampled answers.
    """

    targets: Sequence[str]
    rules: Mapping[str, Rule]
    frames: Mapping[str, pd.DataFrame]
    drafter: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    _found: dict[tuple[str, ...], dict[tuple[Any, ...], Row]] = field(
        default_factory=dict, repr=False
    )

    def __contains__(self, name: str) -> bool:
        """Whether there is a frame of this name with a row."""
        return name in self.frames and not self.frames[name].empty

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Return a frame; without any row or column where the study has none of this name."""
        return self.frames.get(name, pd.DataFrame())

    @cached_property
    def certified(self) -> list[Rule]:
        """The study's own rules, whose certificates were computed."""
        return [self.rules[label] for label in self["certificates"]["rule"].unique()]

    @cached_property
    def names(self) -> dict[str, str]:
        """Printed name of every rule, by label."""
        return {label: rule.title for label, rule in self.rules.items()}

    @cached_property
    def presets(self) -> dict[str, str]:
        """Printed name of every engine's preset, by the label of its rule."""
        listing = self.select("listing", group="preset")
        names = [PRESETS.get(name, name) for name in listing["name"]]
        return dict(zip(listing["rule"], names, strict=True))

    def select(self, name: str, **wanted: Any) -> pd.DataFrame:
        """Return the rows of a frame whose columns have a value, or one of several (a list)."""
        return select(self[name], **wanted) if name in self else self[name]

    def rows(self, name: str, *keys: str) -> dict[tuple[Any, ...], Row]:
        """Return the rows of a frame by their values in some columns."""
        if (name, *keys) not in self._found:
            rows = records_of(self[name])
            self._found[name, *keys] = {tuple(row[key] for key in keys): row for row in rows}
        return self._found[name, *keys]

    def row(self, target: str, rule: str, statistic: str, name: str = "certificates") -> Row:
        """Return the row of a rule's statistic; its numbers are NaN where it does not exist."""
        found = self.rows(name, "target", "rule", "statistic").get((target, rule, statistic))
        return dict.fromkeys(self[name].columns, math.nan) if found is None else found

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
        """Return a table of frames with intervals, its columns below each target.

        Args:
            name: of its entry in `texts.toml`.
            data: the tidy frame, as the CSV file has it.
            more: columns behind those of the entry.
            notes: a warning follows where the intervals are from few prompts.
            order: of the rows, as of `Table`.
            shown: the frame that is laid out, where it is another.
            facts: for its texts, beside the drafter.
        """
        return Table(
            **worded(name, self.targets, more, drafter=self.drafter, **facts),
            data=data,
            order=order,
            names=self.names,
            notes=[*notes, *few_notes(data["prompts"])],
            shown=shown,
        )


# (N,) lower and upper ends of the certificates of a rule over the N steps of a target, in nats;
# lower ends are +inf where the rejection region is empty
Ends = tuple[Floats, Floats]
Certified = Mapping[Rule, Ends]


@dataclass(frozen=True, eq=False)
class Target:
    """The N steps of a target, along P answers, as the report and its page read them.

    Attributes:
        label: printed name of the target.
        certificates: by rule of the study.
        bootstrap: over the prompts of the steps.
        tokens: (N,) the token emitted.
        candidates: (N, C) the target's most probable tokens.
        probabilities: (N, C) theirs.
        prompts: (P,) the id, the text and the category (else the source) of each.
        top: by k, the (N,) probability of the k most probable tokens.
        repeated: (N,) whether each step lies inside a repeated passage of its answer.
        undefined: steps at which the test of a rule, by its label, means nothing.
        words: text of the tokens that are known, by id.
        draft: the drafter's side, a row a step: its divergences by name, token, its most probable
            one, the rank of it under the target, and its probabilities, q under the drafter and
            p_draft under the target; None without a drafter.
        judged: by a rule's label, the (N,) steps that accept the draft, and those certified at the
            drafter's own distance.
        accepted: likewise, the (D, N) steps that accept the draft, by depth of a head's draft.
        divergence: name of that of this distance: the one that certifies most of strict greedy.
    """

    label: str
    certificates: Certified
    bootstrap: PromptBootstrap
    tokens: NDArray[np.int32]
    candidates: NDArray[np.int32]
    probabilities: Floats
    prompts: Sequence[tuple[str, str, str]]
    top: Mapping[int, Floats] = field(default_factory=dict)
    repeated: Flags = field(default_factory=lambda: np.zeros(0, dtype=bool))
    undefined: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[int, str] = field(default_factory=dict)
    draft: pd.DataFrame | None = None
    judged: Mapping[str, tuple[Flags, Flags]] = field(default_factory=dict)
    accepted: Mapping[str, Flags] = field(default_factory=dict)
    divergence: str = "kl"


def certificate_statistics(
    target: str,
    rule: Rule,
    lower: Floats,
    upper: Floats,
    bootstrap: PromptBootstrap,
    undefined: float = math.nan,
) -> pd.DataFrame:
    """Return the rows of frame `certificates` for (N,) certificates of one rule in nats.

    Columns: target, rule (label), statistic, value, optimistic, ci_low, ci_high, prompts,
    few_prompts, empty, inexact, undefined, steps.

    `undefined` counts the steps at which the rule's test means nothing (MARS: z1 <= 0); NaN for
    rules whose test always does.
    """
    keys = {"target": target, "rule": rule.label}
    return _tidy(keys, lower, upper, rule.ceiling, bootstrap).assign(
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
        _tidy({"target": target, "k": k}, values, values, math.inf, bootstrap)
        for k, values in top.items()
    ]
    return pd.concat(frames, ignore_index=True)


def _tidy(
    keys: Row, lower: Floats, upper: Floats, ceiling: float, bootstrap: PromptBootstrap
) -> pd.DataFrame:
    found = summarise(lower, upper, ceiling, bootstrap)
    return pd.DataFrame(
        [{**keys, "statistic": x, **values, **bootstrap.counted} for x, values in found.items()]
    )


def survival_band(
    values: Floats, grid: Floats, bootstrap: PromptBootstrap
) -> tuple[Floats, Floats]:
    """Return the pointwise interval of the share of (N,) values above each of (G,) levels."""
    cell = np.searchsorted(grid, values, side="left")  # number of levels below the value
    width = len(grid) + 1
    counts = np.bincount(bootstrap.prompts * width + cell, minlength=bootstrap.count * width)
    above = np.cumsum(counts.reshape(-1, width)[:, ::-1], axis=1)[:, ::-1][:, 1:]
    draws = bootstrap.sums(above) / bootstrap.sums(bootstrap.steps[:, None])
    return bootstrap.interval(draws)
