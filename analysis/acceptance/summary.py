"""Statistics of acceptance over all steps: shares, tokens a call, and the KL that a rule needs.

Of certificates that are intervals the statistics count the lower ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..statistics.bootstrap import Floats, PromptBootstrap
from ..statistics.trajectories import CallCounts, count_calls
from .judgement import Judgement, Steps

Row = dict[str, Any]
Weights = NDArray[Any]  # numbers or booleans
MARGINS = (-np.inf, -2, -1, -0.5, -0.25, -0.1, 0, 0.1, 0.25, 0.5, np.inf)  # nats, ends of bins
SPECULATIVE = "speculative sampling"
RACES, RACES_LOWER = "exponential races", "exponential races, lower bound"


def rule_statistics(steps: Steps, judgement: Judgement, bootstrap: PromptBootstrap) -> pd.DataFrame:
    """Return the statistics of one rule on one drafter.

    Returns:
        One row for each statistic: value, ci_low and ci_high. Shares of all steps: acceptance,
        certified, departure (accepted, but not the target's argmax), empty (nothing is rejected),
        inexact (the certificate is an interval). coverage: certified among accepted.
        probability_given_up: target probability given up by emitted drafts, mean over all steps.
        slack_median: median of R - KL, nats. measured_per_call, certified_per_call: tokens a call
        as in `length_row`; for a head by depth, and certified if so at this and all smaller depths.
        All other statistics refer to depth 1.
    """
    accepted, certified = judgement.accepted, judgement.certified
    departs = accepted & (steps.draft_rank > 1) & judgement.rule.judges_tokens
    counts = count_calls(judgement.accepted_by_depth[..., None], steps.trajectories, None)
    certified_counts = count_calls(
        judgement.certified_by_depth[..., None], steps.trajectories, None
    )
    rows = [
        share_row("acceptance", bootstrap, accepted),
        share_row("certified", bootstrap, certified),
        share_row("coverage", bootstrap, certified, accepted),
        share_row("departure", bootstrap, departs),
        share_row("probability_given_up", bootstrap, np.where(departs, steps.given_up, 0.0)),
        share_row("empty", bootstrap, np.isinf(judgement.lower)),
        share_row("inexact", bootstrap, judgement.lower < judgement.upper),
        _quantile("slack_median", bootstrap, steps.slack(judgement.lower)),
        length_row("measured_per_call", bootstrap, counts),
        length_row("certified_per_call", bootstrap, certified_counts),
    ]
    frame = pd.DataFrame(rows)
    frame.insert(0, "rule", judgement.rule.label)
    return frame


def margins(slack: Floats, accepted: NDArray[np.bool_]) -> pd.DataFrame:
    """Return the accepted steps by the margin R - KL of each step.

    Args:
        slack: (N,) R - KL in nats, as of `Steps.slack`.
        accepted: (N,) whether the draft is accepted.

    Returns:
        One row for each bin of `MARGINS` from low (exclusive) to high (inclusive): low, high, steps
        and accepted steps.
    """
    place = np.digitize(slack, MARGINS[1:-1], right=True)
    size = len(MARGINS) - 1
    return pd.DataFrame(
        {
            "low": MARGINS[:-1],
            "high": MARGINS[1:],
            "steps": np.bincount(place, minlength=size),
            "accepted": np.bincount(place[accepted], minlength=size),
        }
    )


def stochastic_statistics(
    tv: Floats, races: Floats, harmonic: Floats, bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Return the expected acceptance of a drafted token by stochastic verification.

    All refer to the temperature at which the text of the steps was sampled.

    Args:
        tv: (N,) total variation; speculative sampling accepts a sampled draft with 1 - tv.
        races: (N,) acceptance of the first draft of exponential races.
        harmonic: (N,) lower bound of `races`.
        bootstrap: over prompts.

    Returns:
        Rows like those of `rule_statistics`: acceptance.
    """
    schemes = {SPECULATIVE: 1 - tv, RACES: races, RACES_LOWER: harmonic}
    return pd.DataFrame(
        [
            {"rule": scheme, **share_row("acceptance", bootstrap, accepted)}
            for scheme, accepted in schemes.items()
        ]
    )


def depth_statistics(
    depth: int, steps: Steps, judgements: Sequence[Judgement], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Return the statistics of a drafter at one depth of its drafts.

    Args:
        depth: from 1; a draft of depth d follows d - 1 drafted tokens.
        steps: the drafter's steps at this depth.
        judgements: of the rules at this depth.
        bootstrap: over prompts.

    Returns:
        Rows like those of `rule_statistics`, with depth: acceptance and certified for each rule,
        and kl_median (nats) and finite (share of steps with a finite KL) with an empty rule.
    """
    rows = [
        ("", _quantile("kl_median", bootstrap, steps.kl)),
        ("", share_row("finite", bootstrap, np.isfinite(steps.kl))),
    ]
    for judgement in judgements:
        certified = share_row("certified", bootstrap, judgement.certified)
        rows.append((judgement.rule.label, share_row("acceptance", bootstrap, judgement.accepted)))
        rows.append((judgement.rule.label, certified))
    return pd.DataFrame([{"rule": rule, **row} for rule, row in rows]).assign(depth=depth)


def finite_share(steps: Steps, bootstrap: PromptBootstrap) -> pd.DataFrame:
    """Return the share of steps with a finite KL, with an empty rule and depth 0.

    A drafter with a reduced vocabulary has an infinite KL(p || q) where p has other tokens.
    """
    return pd.DataFrame(
        [{"rule": "", "depth": 0, **share_row("finite", bootstrap, np.isfinite(steps.kl))}]
    )


def kl_needed(lower: Floats, share: float, bootstrap: PromptBootstrap) -> Row:
    """Return the KL below which a drafter is certified on a share of the steps, nats.

    For a share f of N steps it is the n-th largest certificate R, n = ceil(f N): a drafter whose KL
    is below this value at every step is certified at n steps or more. No larger value guarantees n
    steps, nor does a KL equal to it.

    Args:
        lower: (N,) lower ends of the certificates.
        share: in (0, 1].
        bootstrap: over prompts.

    Returns:
        value, ci_low and ci_high; +inf if n rejection regions are empty.
    """
    # the n-th largest of R is minus the n-th smallest of -R
    row = _quantile("kl_needed", bootstrap, -lower, share)
    return _row("kl_needed", -row["value"], -row["ci_high"], -row["ci_low"])


def _row(statistic: str, value: Any, low: Any, high: Any) -> Row:
    ends = {"value": value, "ci_low": low, "ci_high": high}
    return {"statistic": statistic, **{name: float(end) for name, end in ends.items()}}


def share_row(
    name: str, bootstrap: PromptBootstrap, counted: Weights, below: Weights | None = None
) -> Row:
    """Return the ratio of two sums over all steps, with its interval over prompts.

    Args:
        name: of the statistic.
        bootstrap: over prompts.
        counted: (N,) numerator.
        below: (N,) denominator; None for the number of steps.
    """
    over = np.bincount(bootstrap.prompts, weights=counted)
    under = bootstrap.steps if below is None else np.bincount(bootstrap.prompts, weights=below)
    with np.errstate(invalid="ignore", divide="ignore"):
        draws = bootstrap.sums(over) / bootstrap.sums(under)
        return _row(name, over.sum() / under.sum(), *bootstrap.interval(draws))


def length_row(name: str, bootstrap: PromptBootstrap, counts: CallCounts) -> Row:
    """Return tokens a call for drafts of unlimited length, with the interval over prompts.

    `cut` is the share of calls cut by a trajectory's end.

    Args:
        name: of the statistic.
        bootstrap: over prompts.
        counts: calls of each prompt under one setting.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        draws = bootstrap.sums(counts.tokens) / bootstrap.sums(counts.calls[:, 0])
        value = counts.tokens.sum() / counts.calls.sum()
        cut = counts.cut.sum() / counts.calls.sum()
    return _row(name, value, *bootstrap.interval(draws)) | {"cut": float(cut)}


def _quantile(name: str, bootstrap: PromptBootstrap, values: Floats, level: float = 0.5) -> Row:
    """Return a quantile of (N,) values."""
    (value,), draws = bootstrap.quantiles(values, [level])
    low, high = bootstrap.interval(draws)
    return _row(name, value, low[0], high[0])
