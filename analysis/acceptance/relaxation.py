"""The smallest relaxation of a rule that reaches a wanted acceptance length."""

from __future__ import annotations

import math

import numpy as np

from ..rules import Rule
from ..rules.dials import Dial
from .realised import Steps, judge

ENDS = {"realised": ["accepted"], "certified": ["certified", "certifiable"]}  # of a Verdict


def smallest_relaxation(
    dial: Dial, steps: Steps, wanted: float, kind: str
) -> dict[str, str | float]:
    """Find the strictest setting of a dial whose acceptance length reaches `wanted`.

    The length grows with the relaxation: a more relaxed rule accepts, and certifies, a superset
    of the steps. So the settings of the dial are tried in order, and the last interval is halved
    until `analysis.rules.dials.RESOLUTION` (m: until the next integer).

    Args:
        dial: what is turned.
        steps: a drafter beside its target.
        wanted: tokens per verification call, the estimator long_run, which no trajectory's end
            cuts short.
        kind: realised or certified.

    Returns:
        dial, parameter, kind, wanted; `value`, the setting (NaN when none reaches it), `length`
        and the share of steps whose region is `empty`, there or at the most relaxed setting;
        `optimistic` and `optimistic_length` from the upper ends of certificates known as
        intervals, equal to value and length for kind realised.
    """
    ends = [_search(dial, steps, wanted, flags) for flags in ENDS[kind]]
    (value, length, rule), (optimistic, optimistic_length, _) = ends[0], ends[-1]
    return {
        "dial": dial.name,
        "parameter": dial.parameter,
        "kind": kind,
        "wanted": wanted,
        "value": value,
        "length": length,
        "optimistic": optimistic,
        "optimistic_length": optimistic_length,
        "empty": float(np.mean(np.isinf(judge(steps, [rule])[0].lower))),
    }


def _search(dial: Dial, steps: Steps, wanted: float, flags: str) -> tuple[float, float, Rule]:
    """Return the setting, NaN when none reaches it, with the length and the rule it stopped at."""

    def length(rule: Rule) -> float:
        return long_run(steps, rule, flags)

    before, reached = None, None
    for rule in dial.rules:
        if (found := length(rule)) >= wanted:
            reached = rule
            break
        before = rule
    while reached is not None and before is not None:
        middle = dial.between(before, reached)
        if middle is None:
            break
        if (here := length(middle)) >= wanted:
            reached, found = middle, here
        else:
            before = middle
    if reached is None:
        return np.nan, found, dial.rules[-1]
    return dial.value(reached), found, reached


def long_run(steps: Steps, rule: Rule, flags: str) -> float:
    """Return the acceptance length, estimator long_run, of some `flags` of a Verdict."""
    chosen = getattr(judge(steps, [rule])[0], flags)
    failures = len(chosen) - np.count_nonzero(chosen)
    return len(chosen) / failures if failures else math.inf
