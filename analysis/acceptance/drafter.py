"""Statistics of acceptance over all steps: shares, tokens per call, and the KL that a rule needs.

Of certificates that are intervals the statistics count the lower ends. A row has a statistic's
value and its interval over prompts, ci_low and ci_high.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..prompts import prompt_bootstrap
from ..report.text import limits
from ..rules import Rule
from ..statistics.bootstrap import Flags, PromptBootstrap
from ..statistics.trajectories import Trajectories, count_calls
from ..topk import Floats
from .judgement import Judgement, Steps, judge, slacks
from .typical import usual_statistics

Row = dict[str, Any]
MARGINS = (-np.inf, -2, -1, -0.5, -0.25, -0.1, 0, 0.1, 0.25, 0.5, np.inf)  # nats, ends of bins
SPECULATIVE = "speculative sampling"
RACES, RACES_LOWER = "exponential races", "exponential races, lower bound"


def rule_statistics(steps: Steps, judgement: Judgement, bootstrap: PromptBootstrap) -> list[Row]:
    """Return the statistics of one rule on one drafter.

    Returns:
        Shares of all steps: acceptance, certified, departure (accepted, but not the target's
        argmax), empty (nothing is rejected), inexact (the certificate is an interval). coverage:
        certified among accepted. probability_given_up: target probability given up by emitted
        drafts, mean over all steps. slack_median: median of R - KL, nats. measured_per_call,
        certified_per_call: tokens per call for drafts of unlimited length, with `cut`, the share of
        calls that a trajectory's end cuts; for a head by depth, and certified if so at this and all
        smaller depths. All other statistics refer to depth 1.
    """
    accepted, certified = judgement.accepted, judgement.certified
    departs = accepted & (steps.draft_rank > 1) & judgement.rule.judges_tokens
    trajectories = steps.trajectories
    rows = [
        _row("acceptance", *bootstrap.ratio_interval(accepted)),
        _row("certified", *bootstrap.ratio_interval(certified)),
        _row("coverage", *bootstrap.ratio_interval(certified, accepted)),
        _row("departure", *bootstrap.ratio_interval(departs)),
        _row(
            "probability_given_up",
            *bootstrap.ratio_interval(np.where(departs, steps.given_up, 0.0)),
        ),
        _row("empty", *bootstrap.ratio_interval(np.isinf(judgement.lower))),
        _row("inexact", *bootstrap.ratio_interval(judgement.lower < judgement.upper)),
        _row("slack_median", *_quantile(bootstrap, slacks(judgement.lower, steps.kl))),
        _per_call("measured_per_call", judgement.accepted_by_depth, trajectories, bootstrap),
        _per_call("certified_per_call", judgement.certified_by_depth, trajectories, bootstrap),
    ]
    return [{"rule": judgement.rule.label, **row} for row in rows]


def acceptance_table(steps: Steps, rules: Sequence[Rule]) -> pd.DataFrame:
    """Return the `rule_statistics` of rules on one drafter: a row a rule, a column a statistic.

    Before them `usual_drafter`, what the model of `typical` predicts at the KLs of the steps.
    """
    bootstrap = prompt_bootstrap(steps.trajectories.prompts)
    usual = usual_statistics(steps.target, rules, steps.kl, bootstrap)
    rows = []
    for predicted, judgement in zip(usual, judge(steps, rules), strict=True):
        row: Row = {"rule": judgement.rule.label, "steps": len(steps)}
        for found in (predicted, *rule_statistics(steps, judgement, bootstrap)):
            row[found["statistic"]] = found["value"]
            if bootstrap.count > 1:
                ends = (found["ci_low"], found["ci_high"])
                row |= dict(zip(limits(found["statistic"]), ends, strict=True))
        rows.append(row)
    return pd.DataFrame(rows).set_index("rule")


def margins(slack: Floats, accepted: NDArray[np.bool_]) -> pd.DataFrame:
    """Return the steps, and the accepted ones, by bins of `MARGINS` (low, high] of (N,) slacks."""
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
) -> list[Row]:
    """Return the expected acceptance of a drafted token by stochastic verification.

    At the temperature at which the text was sampled, (N,) each: the total variation (speculative
    sampling accepts with 1 - tv), the first acceptance of exponential races, and its lower bound.
    """
    schemes = {SPECULATIVE: 1 - tv, RACES: races, RACES_LOWER: harmonic}
    return [
        {"rule": scheme, **_row("acceptance", *bootstrap.ratio_interval(accepted))}
        for scheme, accepted in schemes.items()
    ]


def depth_statistics(
    depth: int, steps: Steps, judgements: Sequence[Judgement], bootstrap: PromptBootstrap
) -> list[Row]:
    """Return the statistics of a drafter at one depth d, behind d - 1 drafted tokens.

    acceptance and certified of each rule; with an empty rule kl_median (nats) and finite (share of
    steps with a finite KL).
    """
    drafter = {"rule": "", "depth": depth}
    rows = [
        drafter | _row("kl_median", *_quantile(bootstrap, steps.kl)),
        finite_share(steps, bootstrap) | drafter,
    ]
    for found in judgements:
        keys = {"rule": found.rule.label, "depth": depth}
        rows.append(keys | _row("acceptance", *bootstrap.ratio_interval(found.accepted)))
        rows.append(keys | _row("certified", *bootstrap.ratio_interval(found.certified)))
    return rows


def finite_share(steps: Steps, bootstrap: PromptBootstrap) -> Row:
    """Return the share of steps with a finite KL, with an empty rule and depth 0.

    A drafter with a reduced vocabulary has an infinite KL(p || q) where p has other tokens.
    """
    return {"rule": "", "depth": 0} | _row(
        "finite", *bootstrap.ratio_interval(np.isfinite(steps.kl))
    )


def kl_needed(
    lower: Floats, share: float, bootstrap: PromptBootstrap
) -> tuple[float, float, float]:
    """Return the KL below which a drafter is certified on a share of the steps, nats.

    For a share f of N steps it is the n-th largest certificate R, n = ceil(f N): a drafter whose KL
    is below this value at every step is certified at n steps or more. No larger value guarantees n
    steps, nor does a KL equal to it. It is +inf if n rejection regions are empty.

    Returns:
        The value, from the (N,) lower ends of the certificates, and the ends of its interval.
    """
    # the n-th largest of R is minus the n-th smallest of -R
    value, low, high = _quantile(bootstrap, -lower, share)
    return -value, -high, -low


def _per_call(
    name: str, accepted: Flags, trajectories: Trajectories, bootstrap: PromptBootstrap
) -> Row:
    calls, tokens, cut = count_calls(accepted, trajectories, None)
    share = cut.sum() / calls.sum() if calls.any() else np.nan
    return _row(name, *bootstrap.ratio(tokens, calls)) | {"cut": float(share)}


def _row(statistic: str, value: Any, low: Any, high: Any) -> Row:
    ends = {"value": value, "ci_low": low, "ci_high": high}
    return {"statistic": statistic, **{name: float(end) for name, end in ends.items()}}


def _quantile(bootstrap: PromptBootstrap, values: Floats, level: float = 0.5) -> list[float]:
    points, draws = bootstrap.quantiles(values, [level])
    return [float(part[0]) for part in (points, *bootstrap.interval(draws))]
