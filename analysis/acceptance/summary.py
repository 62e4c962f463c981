"""Statistics of acceptance over all steps: shares, lengths, and the KL that a rule needs.

Certificates can be known as intervals. A statistic of them is computed at the end that is
certain and at the other one, which differ only then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..statistics.bootstrap import Floats, PromptBootstrap
from ..statistics.proportions import calibration_error, reliability
from ..statistics.trajectories import CallCounts, Trajectories, count_calls
from .realised import Steps, Verdict
from .sampling import ARGMAX, SPECULATIVE

Row = dict[str, Any]
Weights = NDArray[Any]  # numbers or truth values
UNION = "union"  # of divergences: the steps that at least one of them certifies


def rule_statistics(steps: Steps, verdict: Verdict, bootstrap: PromptBootstrap) -> pd.DataFrame:
    """Measure one rule on one drafter.

    Returns:
        One row a statistic: `value`, `optimistic` and the limits `ci_low` of value, `ci_high` of
        optimistic. Where certificates are intervals, value is the least and optimistic the most
        that they allow; elsewhere both are equal. Shares of all steps: acceptance,
        certified, departure (accepted, but not the target's argmax), empty (nothing is rejected),
        inexact (the certificate is an interval). coverage: certified among accepted.
        probability_given_up: target probability an emitted draft gives up, mean over all steps.
        slack_median: of R - KL, nats. realised_per_call, certified_per_call: tokens a call of
        `length_row`; of a head by depth, and certified where it is so at every depth. All others
        are of depth 1.
    """
    accepted, certified = verdict.accepted, verdict.certified
    departs = accepted & (steps.draft_rank > 1) & verdict.rule.judges_tokens
    empty = np.isinf(verdict.lower), np.isinf(verdict.upper)
    made = count_calls(verdict.accepted_by_depth[..., None], steps.trajectories, None)
    most = count_calls(np.stack(verdict.certified_throughout, axis=1), steps.trajectories, None)
    rows = [
        share_row("acceptance", bootstrap, accepted),
        share_row("certified", bootstrap, certified, verdict.certifiable),
        share_row("coverage", bootstrap, certified, verdict.certifiable & accepted, accepted),
        share_row("departure", bootstrap, departs),
        share_row("probability_given_up", bootstrap, np.where(departs, steps.given_up, 0.0)),
        share_row("empty", bootstrap, *empty),
        share_row("inexact", bootstrap, verdict.lower < verdict.upper),
        _quantile(
            "slack_median", bootstrap, steps.slack(verdict.lower), steps.slack(verdict.upper)
        ),
        length_row("realised_per_call", bootstrap, made),
        length_row("certified_per_call", bootstrap, most),
    ]
    frame = pd.DataFrame(rows)
    frame.insert(0, "rule", verdict.rule.label)
    return frame


def calibration_statistics(
    confidence: Floats, verdicts: Sequence[Verdict], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Measure how far the drafter's confidence is from how often each rule accepts its tokens.

    Args:
        confidence: (N,) the drafter's probability of its most probable token.
        verdicts: of the rules; those that judge no tokens are left out.
        bootstrap: over prompts.

    Returns:
        A row like those of `rule_statistics` for each rule: calibration_error.
    """
    rows = []
    for one in verdicts:
        if one.rule.judges_tokens:
            sums = reliability(confidence, one.accepted, bootstrap.prompts)
            value = calibration_error(sums.sum(axis=0))
            ends = bootstrap.interval(calibration_error(bootstrap.sums(sums)))
            rows.append({"rule": one.rule.label, **_row("calibration_error", value, value, *ends)})
    return pd.DataFrame(rows)


def stochastic_statistics(
    tv: Floats,
    races: Floats,
    harmonic: Floats,
    argmax: Floats,
    trajectories: Trajectories,
    bootstrap: PromptBootstrap,
    head: bool = False,
) -> pd.DataFrame:
    """Measure the expected acceptance of stochastic verification, (N,) probabilities each.

    All are at the temperature at which the text of the steps was sampled.

    Args:
        tv: total variation; speculative sampling of a drafted draw accepts with 1 - tv.
        races: acceptance of the first draft of exponential races.
        harmonic: its lower bound.
        argmax: p of the drafter's argmax: speculative sampling of a drafter that does not draw.
        trajectories: of the steps.
        bootstrap: over prompts.
        head: whether the drafter is one: its acceptance at deeper depths is not known here, and
            there are no lengths.

    Returns:
        Rows like those of `rule_statistics`: acceptance, and realised_per_call with expected
        numbers of rejections and of trajectories that end accepted.
    """
    laws = {
        SPECULATIVE: 1 - tv,
        ARGMAX: argmax,
        "exponential races": races,
        "exponential races, lower bound": harmonic,
    }
    rows = [
        {"rule": law, **row}
        for law, accepted in laws.items()
        for calls in [expected_calls(accepted, trajectories)]
        for row in (
            share_row("acceptance", bootstrap, accepted),
            *([] if head else [length_row("realised_per_call", bootstrap, calls)]),
        )
    ]
    return pd.DataFrame(rows)


def depth_statistics(
    depth: int, steps: Steps, verdicts: Sequence[Verdict], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Measure a drafter at one depth of its drafts.

    Args:
        depth: from 1; a draft of depth d follows d - 1 drafted tokens.
        steps: with what the drafter says at this depth.
        verdicts: of the rules there.
        bootstrap: over prompts.

    Returns:
        Rows with depth and those of `rule_statistics`: acceptance and certified of each rule;
        kl_median (nats) and finite (share of steps with a finite KL), of no rule.
    """
    rows = [
        ("", _quantile("kl_median", bootstrap, steps.kl)),
        ("", share_row("finite", bootstrap, np.isfinite(steps.kl))),
    ]
    for one in verdicts:
        certified = share_row("certified", bootstrap, one.certified, one.certifiable)
        rows.append((one.rule.label, share_row("acceptance", bootstrap, one.accepted)))
        rows.append((one.rule.label, certified))
    return pd.DataFrame([{"rule": rule, **row} for rule, row in rows]).assign(depth=depth)


def coverage(found: Mapping[str, Verdict], bootstrap: PromptBootstrap) -> pd.DataFrame:
    """Return what one rule's certificates cover, by divergence and by their union.

    No divergence is stronger than the others, so the steps that at least one of them certifies are
    more than those of any one. Each certifies accepted steps only.

    Args:
        found: the rule's verdict by the name of the divergence; at least one.
        bootstrap: over prompts.

    Returns:
        Rows with rule, divergence (the name, or union), statistic, value, optimistic, ci_low and
        ci_high. certified: share of all steps; coverage: certified among accepted. value takes the
        lower ends of certificates, optimistic the upper ones.
    """
    verdicts = list(found.values())
    accepted = verdicts[0].accepted
    ends = {name: (one.certified, one.certifiable) for name, one in found.items()}
    ends[UNION] = (
        np.any([one.certified for one in verdicts], axis=0),
        np.any([one.certifiable for one in verdicts], axis=0),
    )
    rows: list[Row] = [
        {"rule": verdicts[0].rule.label, "divergence": name, **row}
        for name, (sure, maybe) in ends.items()
        for row in (
            share_row("certified", bootstrap, sure, maybe),
            share_row("coverage", bootstrap, sure, maybe & accepted, accepted),
        )
    ]
    return pd.DataFrame(rows)


def finite_shares(distances: Mapping[str, Floats], bootstrap: PromptBootstrap) -> pd.DataFrame:
    """Return the share of steps at which each divergence is finite, in rows of no rule.

    A drafter with a reduced vocabulary has an infinite KL(p || q) wherever p has other tokens.
    """
    rows = [
        {"rule": "", "divergence": name, **share_row("finite", bootstrap, np.isfinite(values))}
        for name, values in distances.items()
    ]
    return pd.DataFrame(rows)


def kl_needed(lower: Floats, upper: Floats, share: float, bootstrap: PromptBootstrap) -> Row:
    """Return the KL below which a drafter is certified on a share of the steps, nats.

    For a share f of N steps it is the n-th largest certificate R, n = ceil(f N): at least n steps
    have an R of at least this value, so that a drafter whose KL stays below it at every step is
    certified there, and no larger value has as many. The value itself guarantees nothing.

    Args:
        lower: (N,) lower ends of the certificates.
        upper: (N,) upper ends.
        share: in (0, 1].
        bootstrap: over prompts.

    Returns:
        `value` from the lower ends, `optimistic` from the upper ends, the limits `ci_low` of value
        and `ci_high` of optimistic; +inf where so many regions are empty.
    """
    # the n-th largest of R is minus the n-th smallest of -R
    row = _quantile("kl_needed", bootstrap, -upper, -lower, share)
    return _row("kl_needed", -row["optimistic"], -row["value"], -row["ci_high"], -row["ci_low"])


def _row(statistic: str, value: Any, optimistic: Any, low: Any, high: Any) -> Row:
    return {
        "statistic": statistic,
        "value": float(value),
        "optimistic": float(optimistic),
        "ci_low": float(low),
        "ci_high": float(high),
    }


def share_row(
    name: str,
    bootstrap: PromptBootstrap,
    sure: Weights,
    maybe: Weights | None = None,
    below: Weights | None = None,
) -> Row:
    """Return the ratio of two sums over all steps, with its interval over prompts.

    Args:
        name: of the statistic.
        bootstrap: over prompts.
        sure: (N,) what is summed up, by the lower ends of the certificates.
        maybe: (N,) the same by their upper ends; None where both are equal.
        below: (N,) what it is divided by; None is the number of steps.
    """

    def ratio(above: Weights) -> tuple[Any, Any, Any]:
        over = np.bincount(bootstrap.prompts, weights=above)
        under = bootstrap.steps if below is None else np.bincount(bootstrap.prompts, weights=below)
        with np.errstate(invalid="ignore", divide="ignore"):
            draws = bootstrap.sums(over) / bootstrap.sums(under)
            return over.sum() / under.sum(), *bootstrap.interval(draws)

    value, low, high = ratio(sure)
    optimistic = value
    if maybe is not None and not np.array_equal(sure, maybe):
        optimistic, _, high = ratio(maybe)
    return _row(name, value, optimistic, low, high)


def expected_calls(accepted: Floats, trajectories: Trajectories) -> CallCounts:
    """Return the expected calls of drafts of any length, of (N,) probabilities of acceptance.

    A call ends at a rejected step, or at a last step that is accepted; the first step of each
    trajectory is not drafted.
    """
    last, tested = trajectories.ends - 1, np.ones(len(accepted))
    tested[trajectories.starts] = 0.0
    rejected = np.bincount(trajectories.prompts, weights=tested * (1.0 - accepted))
    cut = tested[last] * accepted[last]
    return CallCounts((rejected + cut)[:, None], last - trajectories.starts, cut[:, None])


def length_row(name: str, bootstrap: PromptBootstrap, made: CallCounts) -> Row:
    """Return tokens a call of drafts of any length, with the interval over prompts.

    `cut`, and of the optimistic end `cut_optimistic`, is the share of calls that ends of
    trajectories cut.

    Args:
        name: of the statistic.
        bootstrap: over prompts.
        made: calls of each prompt under one setting, or under two: where the fewest steps are
            accepted, and where the most are.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        draws = bootstrap.sums(made.tokens)[:, None] / bootstrap.sums(made.calls)
        values = made.tokens.sum() / made.calls.sum(axis=0)
        cut = made.cut.sum(axis=0) / made.calls.sum(axis=0)
    low, high = bootstrap.interval(draws)
    row = _row(name, values[0], values[-1], low[0], high[-1])
    return row | {"cut": float(cut[0]), "cut_optimistic": float(cut[-1])}


def _quantile(
    name: str,
    bootstrap: PromptBootstrap,
    lower: Floats,
    upper: Floats | None = None,
    level: float = 0.5,
) -> Row:
    """Return a quantile of (N,) values, known as intervals if `upper` is given."""
    (value,), draws = bootstrap.quantiles(lower, [level])
    low, high = bootstrap.interval(draws)
    optimistic = value
    if upper is not None and not np.array_equal(lower, upper):
        (optimistic,), draws = bootstrap.quantiles(upper, [level])
        high = bootstrap.interval(draws)[1]
    return _row(name, value, optimistic, low[0], high[0])
