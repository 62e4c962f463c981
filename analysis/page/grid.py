"""Data of the page's calculator for every rule, level of eps and draft length.

The numbers are those that ``python -m pipeline.solve`` prints, rounded as the page shows them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ..acceptance.judgement import Judgement
from ..acceptance.summary import margins
from ..certificates.certify import certify
from ..report.measured import Target
from ..report.style import family
from ..report.text import symbol
from ..rules import Rule
from ..rules.build import ParameterRange
from ..statistics.bootstrap import Flags, Floats, Integers, Numbers, PromptBootstrap
from ..statistics.trajectories import Trajectories, count_calls
from ..topk import TopK
from .steps import LEVELS

LONGEST = 12  # draft length
SETTINGS = 200  # of a continuous parameter
SHARES, TOKENS = 1_000, 100  # units of what the page shows: 0.1 % and 0.01 tokens


def grid(target: Target, rules: Sequence[Rule]) -> dict[str, Any]:
    """Return the certified and accepted shares and tokens a call of each rule, as integers.

    Returns:
        `steps`, their number, and a list `rules`. Each entry has `share`, (L,), the share of steps
        certified at each of `LEVELS`, and `tokens`, (G, L), the tokens a call that are guaranteed
        to a drafter within the level, with drafts of 1 to `LONGEST`. A rule that judged the drafter
        also has `shares`, (2,), of accepted and of certified steps, and `calls`, (G, 2), the tokens
        a call if these are accepted. Every number has value, low and high, the ends of its interval
        over prompts, in units of 1 / `SHARES` or 1 / `TOKENS`. The value of a share is the exact
        number of steps.
    """
    bootstrap = target.bootstrap
    starts = np.cumsum(bootstrap.steps) - bootstrap.steps
    by = Trajectories(starts, bootstrap.prompts), bootstrap
    rows = []
    for rule in rules:
        within = target.certificates[rule][0][:, None] > LEVELS
        row = {"share": _shares(within, *by), "tokens": _tokens(within, *by)}
        if rule.label in target.judged:
            judged = target.judged[rule.label]
            ends = judged.accepted_by_depth, judged.certified_by_depth
            by_depth = np.stack(ends, axis=2)
            row |= {"shares": _shares(by_depth[0], *by), "calls": _tokens(by_depth, *by)}
        rows.append(row)
    return {"steps": len(target.tokens), "rules": rows}


def margin_rows(target: Target, rules: Sequence[Rule]) -> list[Any]:
    """Return [steps, accepted] by bin of `MARGINS` for each rule; None where it judged nothing."""
    judged = [target.judged.get(rule.label) for rule in rules]
    return [
        None if own is None else drafted_margins(target, own)[["steps", "accepted"]].values.tolist()
        for own in judged
    ]


def drafted_margins(target: Target, judged: Judgement) -> pd.DataFrame:
    """Return `margins` of a rule's judgement; where nothing is rejected, R - KL is +inf."""
    assert target.draft is not None
    endless = np.isinf(judged.lower)
    slack = np.where(endless, 0.0, judged.lower) - target.draft["kl"].to_numpy()
    return margins(np.where(endless, np.inf, slack), judged.accepted)


def settings(searched: ParameterRange, k: int) -> ParameterRange:
    """Return a range with the values that the calculator knows, as far as K tokens suffice.

    They are all whole numbers between its ends, or `SETTINGS` values, denser near 0.
    """
    first, last = searched.rules[0], searched.value(searched.rules[-1])
    values: list[Any]
    if isinstance(first.parameters[searched.parameter], int):
        values = list(range(int(searched.value(first)), int(last) + 1))
    else:
        roots = np.linspace(math.sqrt(searched.value(first)), math.sqrt(last), SETTINGS)
        values = [*(roots[:-1] ** 2).round(6).tolist(), last]
    rules = [replace(first, **{searched.parameter: value}) for value in values]
    return ParameterRange(searched.parameter, tuple(x for x in rules if x.minimum_k <= k))


def certified_steps(dist: TopK, searched: ParameterRange) -> Integers:
    """Return the number of certified steps, (S, L), at each of S settings and of `LEVELS`."""
    below = np.searchsorted(LEVELS, certify(dist, searched.rules).lower, side="left")
    counts = np.stack([np.bincount(column, minlength=len(LEVELS) + 1) for column in below.T])
    return counts[:, ::-1].cumsum(axis=1)[:, -2::-1]


def solved(target: Target) -> list[dict[str, Any]]:
    """Return, range by range, name, parameter, values and certified steps by value and level."""
    return [
        {
            "name": family(searched.rules[0].name)[0],
            "rule": searched.name,
            "parameter": symbol(searched.parameter),
            "whole": isinstance(searched.rules[0].parameters[searched.parameter], int),
            "values": [searched.value(rule) for rule in searched.rules],
            "steps": counts.tolist(),
        }
        for searched, counts in target.swept.items()
    ]


def strictest(target: Target, name: str, eps: float, share: float) -> float | None:
    """Return the strictest value of a range's parameter that certifies a share of the steps.

    Between the values of `settings` it is interpolated. None if no value does.

    Args:
        target: its steps.
        name: of the range.
        eps: one of `LEVELS`.
        share: of the steps.
    """
    for searched, counts in target.swept.items():
        if searched.name == name:
            steps = np.asarray(counts, dtype=float)[:, LEVELS.tolist().index(eps)]
            wanted = share * len(target.tokens)
            if steps[-1] < wanted:
                return None
            return float(np.interp(wanted, steps, [searched.value(x) for x in searched.rules]))
    return None


def _shares(flags: Flags, steps: Trajectories, bootstrap: PromptBootstrap) -> list[list[int]]:
    """Return the number of steps with each flag, (N, G), and the ends of its share, (G,) each."""
    passed = steps.total(flags.T)
    _, low, high = _ratio(passed, bootstrap.steps[:, None], bootstrap)
    return [passed.sum(axis=0).tolist(), *_rounded(SHARES, low, high)]


def _tokens(flags: Flags, steps: Trajectories, bootstrap: PromptBootstrap) -> list[list[list[int]]]:
    """Return value, low and high, (lengths, G) each, of the tokens a call if drafts are accepted.

    `flags` are (N, G), or (D, N, G) by depth of a head's draft.
    """
    counts = [count_calls(flags, steps, length) for length in range(1, LONGEST + 1)]
    calls = np.stack([count.calls.astype(float) for count in counts], axis=1)
    return _rounded(TOKENS, *_ratio(counts[0].tokens[:, None, None], calls, bootstrap))


def _ratio(
    above: Numbers, below: Numbers, bootstrap: PromptBootstrap
) -> tuple[Floats, Floats, Floats]:
    """Return the ratio of two sums over prompts, (P, ...) each, and the ends of its interval."""
    low, high = bootstrap.interval(bootstrap.sums(above) / bootstrap.sums(below))
    return above.sum(axis=0) / below.sum(axis=0), low, high


def _rounded(unit: int, *values: Floats) -> list[Any]:
    return [np.rint(unit * value).astype(int).tolist() for value in values]
