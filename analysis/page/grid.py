"""Data of the page's calculator for every rule, level of eps and draft length.

The numbers are those that ``python -m pipeline.solve`` prints, rounded as the page shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..report.measured import Target
from ..rules import Rule
from ..statistics.bootstrap import Flags, Floats, Numbers, PromptBootstrap
from ..statistics.trajectories import Trajectories, count_calls
from .steps import LEVELS

LONGEST = 12  # draft length
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
            judged = np.stack(target.judged[rule.label], axis=1)
            by_depth = np.repeat(judged[None], len(target.accepted[rule.label]), axis=0)
            by_depth[..., 0] = target.accepted[rule.label]
            row |= {"shares": _shares(judged, *by), "calls": _tokens(by_depth, *by)}
        rows.append(row)
    return {"steps": len(target.tokens), "rules": rows}


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
