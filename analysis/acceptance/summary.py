"""What acceptance comes to over all steps: shares, lengths, and the KL that a rule needs.

Certificates can be known as intervals. A statistic of them is computed at the end that is
certain and at the other one, which differ only then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ..statistics.bootstrap import Flags, Floats, PromptBootstrap
from ..statistics.run_lengths import run_lengths
from ..statistics.trajectories import Trajectories
from .realised import Steps, Verdict

Row = dict[str, str | float]
Weights = Floats | Flags
UNION = "union"  # of divergences: the steps that at least one of them certifies
LENGTH_COLUMNS = ["value", "optimistic", "ci_low", "ci_high", "cut", "cut_optimistic"]


def rule_statistics(
    steps: Steps, verdict: Verdict, bootstrap: PromptBootstrap, window: int
) -> pd.DataFrame:
    """Measure one rule on one drafter.

    Returns:
        One row a statistic: `value`, `optimistic` and the limits `ci_low` of value, `ci_high` of
        optimistic. Where certificates are intervals, value is the least and optimistic the most
        that they allow; elsewhere both are equal. Shares of all steps: acceptance,
        certified, departure (accepted, but not the target's argmax), empty (nothing is rejected),
        inexact (the certificate is an interval). coverage: certified among accepted.
        given_up: target probability an emitted draft gives up, mean over all steps.
        slack_median: of R - KL, nats. realised_<estimator>, certified_<estimator>: acceptance
        lengths with `cut` and `cut_optimistic`, NaN elsewhere, see analysis.statistics.run_lengths.
    """
    accepted, certified = verdict.accepted, verdict.certified
    departs = accepted & (steps.draft_rank > 1) & verdict.rule.judges_tokens
    everywhere = np.ones(len(steps), dtype=bool)
    empty, possibly_empty = np.isinf(verdict.lower), np.isinf(verdict.upper)
    rows = [
        share_row("acceptance", accepted, everywhere, bootstrap),
        between_row("certified", certified, verdict.certifiable, everywhere, bootstrap),
        between_row("coverage", certified, verdict.certifiable & accepted, accepted, bootstrap),
        share_row("departure", departs, everywhere, bootstrap),
        share_row("given_up", np.where(departs, steps.given_up, 0.0), everywhere, bootstrap),
        between_row("empty", empty, possibly_empty, everywhere, bootstrap),
        share_row("inexact", verdict.lower < verdict.upper, everywhere, bootstrap),
    ]
    slack = _quantiles(steps.slack(verdict.lower), steps.slack(verdict.upper), [0.5], bootstrap)
    rows.append(_row("slack_median", *(column[0] for column in slack)))
    for kind, sure, maybe in (
        ("realised", accepted, accepted),
        ("certified", certified, verdict.certifiable),
    ):
        lengths = run_lengths(
            sure.astype(np.float64),
            maybe.astype(np.float64),
            [0.5],
            steps.trajectories,
            bootstrap,
            window,
        )
        rows += [
            {"statistic": f"{kind}_{row['estimator']}"}
            | {column: row[column] for column in LENGTH_COLUMNS}
            for row in lengths.to_dict("records")
        ]
    frame = pd.DataFrame(rows)
    frame.insert(0, "rule", verdict.rule.label)
    return frame


def stochastic_statistics(
    tv: Floats,
    races: Floats,
    harmonic: Floats,
    argmax: Floats,
    trajectories: Trajectories,
    bootstrap: PromptBootstrap,
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

    Returns:
        Rows like those of `rule_statistics`: acceptance, and realised_per_call with expected
        numbers of rejections and of trajectories that end accepted.
    """
    ends = np.append(trajectories.starts[1:], len(tv)) - 1
    frames = []
    for name, accepted in (
        ("speculative sampling", 1 - tv),
        ("argmax drafted, speculative sampling", argmax),
        ("exponential races", races),
        ("exponential races, lower bound", harmonic),
    ):
        calls = 1 - accepted
        calls[ends] += accepted[ends]
        every, cut = np.ones(len(tv)), accepted[ends].sum() / calls.sum()
        length = share_row("realised_per_call", every, calls, bootstrap)
        rows = [
            share_row("acceptance", accepted, every, bootstrap),
            length | {"cut": cut, "cut_optimistic": cut},
        ]
        frame = pd.DataFrame(rows)
        frame.insert(0, "rule", name)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


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
    everywhere = np.ones(len(steps), dtype=bool)
    ends = _quantiles(steps.kl, steps.kl, [0.5], bootstrap)
    median = _row("kl_median", *(column[0] for column in ends))
    rows: list[Row] = [
        {"rule": "", **median},
        {"rule": "", **share_row("finite", np.isfinite(steps.kl), everywhere, bootstrap)},
    ]
    for one in verdicts:
        rule = one.rule.label
        shares = (
            share_row("acceptance", one.accepted, everywhere, bootstrap),
            between_row("certified", one.certified, one.certifiable, everywhere, bootstrap),
        )
        rows += [{"rule": rule, **share} for share in shares]
    return pd.DataFrame(rows).assign(depth=depth)


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
    accepted, everywhere = verdicts[0].accepted, np.ones(len(verdicts[0].accepted), dtype=bool)
    ends = {name: (one.certified, one.certifiable) for name, one in found.items()}
    ends[UNION] = (
        np.any([one.certified for one in verdicts], axis=0),
        np.any([one.certifiable for one in verdicts], axis=0),
    )
    rows: list[Row] = [
        {"rule": verdicts[0].rule.label, "divergence": name, **row}
        for name, (sure, maybe) in ends.items()
        for row in (
            between_row("certified", sure, maybe, everywhere, bootstrap),
            between_row("coverage", sure, maybe & accepted, accepted, bootstrap),
        )
    ]
    return pd.DataFrame(rows)


def finite_shares(distances: Mapping[str, Floats], bootstrap: PromptBootstrap) -> pd.DataFrame:
    """Return the share of steps at which each divergence is finite, in rows of no rule.

    A drafter with a reduced vocabulary has an infinite KL(p || q) wherever p has other tokens.
    """
    rows: list[Row] = []
    for name, values in distances.items():
        everywhere = np.ones(len(values), dtype=bool)
        row = share_row("finite", np.isfinite(values), everywhere, bootstrap)
        rows.append({"rule": "", "divergence": name, **row})
    return pd.DataFrame(rows)


def kl_needed(lower: Floats, upper: Floats, share: float, bootstrap: PromptBootstrap) -> Row:
    """Return the KL below which a drafter is certified on a share of the steps, nats.

    For a share f of N steps it is the n-th largest certificate R, n = ceil(f N): at least n steps
    have an R of at least this value, so that a drafter whose KL stays below it at every step is
    certified there, and no larger value has as many. At the value itself nothing is promised.

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
    negated = _quantiles(-upper, -lower, [share], bootstrap)
    optimistic, value, high, low = (-column[0] for column in negated)
    return _row("kl_needed", value, optimistic, low, high)


def _row(statistic: str, value: float, optimistic: float, low: float, high: float) -> Row:
    return {
        "statistic": statistic,
        "value": float(value),
        "optimistic": float(optimistic),
        "ci_low": float(low),
        "ci_high": float(high),
    }


def share_row(name: str, above: Weights, below: Weights, bootstrap: PromptBootstrap) -> Row:
    """Return the ratio of two sums over all steps, with its interval over prompts."""
    over = np.bincount(bootstrap.prompts, weights=above)
    under = np.bincount(bootstrap.prompts, weights=below)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = over.sum() / under.sum()
        low, high = bootstrap.interval(bootstrap.sums(over) / bootstrap.sums(under))
    return _row(name, value, value, float(low), float(high))


def between_row(
    name: str, sure: Flags, maybe: Flags, below: Flags, bootstrap: PromptBootstrap
) -> Row:
    """Return the share of certified steps, from both ends of the certificates."""
    lower = share_row(name, sure, below, bootstrap)
    upper = lower if np.array_equal(sure, maybe) else share_row(name, maybe, below, bootstrap)
    return lower | {"optimistic": upper["value"], "ci_high": upper["ci_high"]}


def _quantiles(
    lower: Floats, upper: Floats, levels: Sequence[float], bootstrap: PromptBootstrap
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return value, optimistic, ci_low, ci_high of values known as intervals, a number a level."""
    value, draws = bootstrap.quantiles(lower, levels)
    low, high = bootstrap.interval(draws)
    optimistic = value
    if not np.array_equal(lower, upper):
        optimistic, draws = bootstrap.quantiles(upper, levels)
        high = bootstrap.interval(draws)[1]
    return value, optimistic, low, high
