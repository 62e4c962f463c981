"""The smallest relaxation of a rule that reaches a wanted acceptance length."""

from __future__ import annotations

import numpy as np

from analysis.acceptance import Steps, judge
from analysis.criteria import Rule
from analysis.dials import Dial
from analysis.run_lengths import Counts


def smallest_relaxation(
    dial: Dial, steps: Steps, wanted: float, kind: str
) -> dict[str, str | float]:
    """Find the strictest setting of a dial whose acceptance length reaches `wanted`.

    The length grows with the relaxation: a more relaxed rule accepts, and certifies, a superset
    of the steps. So the settings of the dial are tried in order, and the last interval is halved
    until `analysis.dials.RESOLUTION` (m: until the next integer).

    Args:
        dial: what is turned.
        steps: a drafter beside its target.
        wanted: tokens per verification call, the estimator per_call.
        kind: realised or certified.

    Returns:
        dial, parameter, kind, wanted, value (NaN when no setting reaches it) and length there,
        or the length at the most relaxed setting.
    """

    def length(rule: Rule) -> float:
        return tokens_per_call(steps, rule, kind)

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
    value = np.nan if reached is None else dial.value(reached)
    return {
        "dial": dial.name,
        "parameter": dial.parameter,
        "kind": kind,
        "wanted": wanted,
        "value": value,
        "length": found,
    }


def tokens_per_call(steps: Steps, rule: Rule, kind: str) -> float:
    """Return the acceptance length, estimator per_call; `kind` is realised or certified."""
    verdict = judge(steps, [rule])[0]
    flags = verdict.accepted if kind == "realised" else verdict.certified
    window = 1  # of another estimator
    counts = Counts.of(flags.astype(np.float64), [0.5], steps.trajectories, window)
    above, below = counts.ratios(window)["per_call"]
    return float(above.sum() / below.sum())
