"""Statistics of a drafter's acceptance: shares of steps, tokens per call, the KL that a rule needs.

Where a certificate is an interval, its lower end counts. A row has a statistic's value and its
interval over prompts, ci_low and ci_high.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..rules import Rule
from ..statistics.bootstrap import Flags, Integers, PromptBootstrap, Resampling
from ..statistics.estimate import Estimate
from ..statistics.prompts import prompt_bootstrap
from ..statistics.trajectories import Trajectories, count_calls
from ..topk import Floats
from .judgement import Judgement, Steps, judge, slacks
from .usual_drafter import usual_statistics

Row = dict[str, Any]
# by statistic the (A,) numerators and denominators, one for each answer
SourceCounts = Mapping[str, tuple[Integers, Integers]]
SLACK_EDGES = (-np.inf, -2, -1, -0.5, -0.25, -0.1, 0, 0.1, 0.25, 0.5, np.inf)  # nats
SPECULATIVE = "speculative sampling"
RACES = "exponential races"
RACES_LOWER = "exponential races, lower bound"


def rule_statistics(steps: Steps, judgement: Judgement, bootstrap: PromptBootstrap) -> list[Row]:
    """Return the statistics of one rule on one drafter.

    Returns:
        Shares of all steps: acceptance, certified, departure (accepted, but not the target's
        argmax), empty (nothing is rejected), inexact (the certificate is an interval). coverage:
        certified among accepted. probability_given_up: target probability given up by emitted
        drafts, mean over all steps. slack_median: median of R - KL, nats. measured_per_call,
        certified_per_call: tokens per call for drafts of unlimited length, with `cut`, the share of
        calls that a trajectory's end cuts. For a head these use the depth of each drafted token; a
        step counts as certified at a depth if it is at all depths up to it. All other statistics
        refer to depth 1.
    """
    accepted = judgement.accepted
    certified = judgement.certified
    departs = accepted & (steps.draft_rank > 1) & judgement.rule.judges_tokens
    share = bootstrap.ratio_interval
    slack = slacks(judgement.lower, steps.kl)
    estimates = {
        "acceptance": share(accepted),
        "certified": share(certified),
        "coverage": share(certified, accepted),
        "departure": share(departs),
        "probability_given_up": share(np.where(departs, steps.given_up, 0.0)),
        "empty": share(np.isinf(judgement.lower)),
        "inexact": share(judgement.lower < judgement.upper),
        "slack_median": bootstrap.quantile_interval(slack),
    }
    trajectories = steps.trajectories
    rows = [
        *(_row(name, estimate) for name, estimate in estimates.items()),
        _per_call("measured_per_call", judgement.accepted_by_depth, trajectories, bootstrap),
        _per_call("certified_per_call", judgement.certified_by_depth, trajectories, bootstrap),
    ]
    return [{"rule": judgement.rule.label, **row} for row in rows]


def statistics_table(steps: Steps, rules: Sequence[Rule]) -> pd.DataFrame:
    """Return a table of `rule_statistics`: a row for each rule, a column for each statistic.

    The first statistic is `usual_drafter`, what the model of that name predicts at these KLs.
    """
    if not len(steps):
        raise ValueError("there are no steps")
    bootstrap = prompt_bootstrap(steps.trajectories.answer_index)
    usual = usual_statistics(steps.target, rules, steps.kl, bootstrap)
    rows = []
    for predicted, judgement in zip(usual, judge(steps, rules), strict=True):
        row: Row = {"rule": judgement.rule.label, "steps": len(steps)}
        for statistic in (predicted, *rule_statistics(steps, judgement, bootstrap)):
            name = statistic["statistic"]
            estimate = Estimate.read(statistic)
            row |= estimate.columns(name) if bootstrap.count > 1 else {name: estimate.value}
        rows.append(row)
    return pd.DataFrame(rows).set_index("rule")


def source_counts(judgement: Judgement, trajectories: Trajectories) -> SourceCounts:
    """Return the numerators and denominators of `source_statistics` for one rule, by answer."""
    steps = np.bincount(trajectories.answer_index)
    calls = count_calls(judgement.accepted_by_depth, trajectories, None)
    return {
        "acceptance": (trajectories.total(judgement.accepted), steps),
        "certified": (trajectories.total(judgement.certified), steps),
        "measured_per_call": (calls.tokens, calls.calls),
    }


def source_statistics(
    by_rule: Mapping[str, SourceCounts], sources: Sequence[str], statistics: Resampling
) -> list[Row]:
    """Return the acceptance of each rule over the answers of each source; each has its own prompt.

    `by_rule` has the `source_counts` by the label of the rule, `sources` (A,) is the source of each
    answer. Rows have rule, source, the number of its prompts, and the statistics acceptance,
    certified and measured_per_call of `rule_statistics` over these prompts alone.
    """
    rows = []
    for source in sorted(set(sources)):
        chosen = np.flatnonzero([source == other for other in sources])
        bootstrap = PromptBootstrap(np.arange(len(chosen)), *statistics)
        for label, counts in by_rule.items():
            keys = {"rule": label, "source": source, "prompts": len(chosen)}
            for statistic, (counted, among) in counts.items():
                share = bootstrap.ratio(counted[chosen], among[chosen])
                rows.append(keys | _row(statistic, share))
    return rows


def margins(
    slack: Floats, accepted: NDArray[np.bool_], predicted: Mapping[str, Floats] | None = None
) -> pd.DataFrame:
    """Count steps, and accepted steps, in bins (low, high] of the slack R - KL, (N,).

    `predicted` has acceptance probabilities of the steps by name, (N,) each; they are summed in the
    same bins.
    """
    bins = np.digitize(slack, SLACK_EDGES[1:-1], right=True)
    size = len(SLACK_EDGES) - 1
    sums = {
        name: np.bincount(bins, shares, minlength=size)
        for name, shares in (predicted or {}).items()
    }
    return pd.DataFrame(
        {
            "low": SLACK_EDGES[:-1],
            "high": SLACK_EDGES[1:],
            "steps": np.bincount(bins, minlength=size),
            "accepted": np.bincount(bins[accepted], minlength=size),
            **sums,
        }
    )


def stochastic_statistics(
    tv: Floats, races: Floats, harmonic: Floats, bootstrap: PromptBootstrap
) -> list[Row]:
    """Return the expected acceptance of a drafted token by stochastic verification.

    All arguments are (N,), at the temperature at which the text was sampled. `tv` is the total
    variation; speculative sampling accepts with probability 1 - tv. `races` is the acceptance of
    the first draft by exponential races (the Gumbel-max trick), and `harmonic` its lower bound.
    """
    schemes = {SPECULATIVE: 1 - tv, RACES: races, RACES_LOWER: harmonic}
    return [
        {"rule": scheme, **_row("acceptance", bootstrap.ratio_interval(accepted))}
        for scheme, accepted in schemes.items()
    ]


def depth_statistics(depth: int, steps: Steps, bootstrap: PromptBootstrap) -> list[Row]:
    """Return the statistics of a drafter alone at one depth d, after d - 1 drafted tokens.

    With an empty rule they are kl_median (nats) and finite (the share of steps with a finite KL).
    """
    drafter = {"rule": "", "depth": depth}
    return [
        drafter | _row("kl_median", bootstrap.quantile_interval(steps.kl)),
        finite_share(steps, bootstrap) | drafter,
    ]


def depth_shares(depth: int, judgement: Judgement, bootstrap: PromptBootstrap) -> list[Row]:
    """Return acceptance and certified of a rule, judged at one depth."""
    keys = {"rule": judgement.rule.label, "depth": depth}
    return [
        keys | _row("acceptance", bootstrap.ratio_interval(judgement.accepted)),
        keys | _row("certified", bootstrap.ratio_interval(judgement.certified)),
    ]


def finite_share(steps: Steps, bootstrap: PromptBootstrap) -> Row:
    """Return the share of steps with a finite KL, with an empty rule and depth 0.

    KL(p || q) is infinite where the target can emit a token that the drafter lacks.
    """
    finite = bootstrap.ratio_interval(np.isfinite(steps.kl))
    return {"rule": "", "depth": 0} | _row("finite", finite)


def kl_needed(lower: Floats, share: float, bootstrap: PromptBootstrap) -> Estimate:
    """Return the KL below which a drafter is certified on a share of the steps, nats.

    For a share f of N steps it is the n-th largest certificate R, n = ceil(f N): a drafter whose KL
    is below this value at every step is certified at n steps or more. No larger value guarantees n
    steps, nor does a KL equal to it. It is +inf if n rejection regions are empty.

    Returns:
        The value, from the (N,) lower ends of the certificates, with its interval.
    """
    # the n-th largest of R is minus the n-th smallest of -R
    value, low, high = bootstrap.quantile_interval(-lower, share)
    return Estimate(-value, -high, -low)


def _per_call(
    name: str, accepted: Flags, trajectories: Trajectories, bootstrap: PromptBootstrap
) -> Row:
    calls, tokens, cut = count_calls(accepted, trajectories, None)
    share = cut.sum() / calls.sum() if calls.any() else np.nan
    return _row(name, bootstrap.ratio(tokens, calls)) | {"cut": float(share)}


def _row(statistic: str, estimate: Estimate) -> Row:
    return {"statistic": statistic, **Estimate(*map(float, estimate)).columns()}
