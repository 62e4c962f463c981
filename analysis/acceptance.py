"""What a rule accepts of a drafter, and what of it the certificates promised.

At a step, a rule *accepts* the drafter's most probable token (a tree: has the target's argmax
among the drafter's top m), and the step is *certified* when KL(p||q) lies below the rule's
certificate R. Certified implies accepted (Theorems 4.4, 5.1); the converse need not hold, and
how far it does is the coverage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.certificates import certify
from analysis.criteria import Rule, Tree
from analysis.distributions import TopK
from analysis.divergences import kl_rounding
from analysis.run_lengths import Flags, Trajectories, run_lengths
from analysis.statistics import Floats, PromptBootstrap

CHUNK = 8192  # steps certified at once
CERTIFICATE_ROUNDING = 1e-12  # relative error allowed to a computed certificate


@dataclass(frozen=True, eq=False)
class Steps:
    """A drafter beside its target at the N steps of P trajectories, in order.

    Attributes:
        target: the target's distributions.
        position: (N,) 0-based, within each trajectory.
        kl: (N,) KL(p||q) over the full vocabulary, nats.
        draft_rank: (N,) target rank of the drafter's most probable token, from 1.
        draft_log_prob: (N,) its target log-probability.
        argmax_rank: (N,) rank of the target's argmax under the drafter, from 1.
    """

    target: TopK
    position: NDArray[np.int32]
    kl: Floats
    draft_rank: NDArray[np.int32]
    draft_log_prob: Floats
    argmax_rank: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.kl)

    @cached_property
    def trajectories(self) -> Trajectories:
        """Where each prompt's trajectory lies."""
        return Trajectories.from_positions(self.position)

    @cached_property
    def margin(self) -> Floats:
        """(N,) p(rank 1) - p(rank 2) of the target."""
        top = self.target
        head = [np.exp(top[i : i + CHUNK].log_probs[:, :2]) for i in range(0, len(self), CHUNK)]
        both = np.concatenate(head)
        return np.asarray(both[:, 0] - both[:, 1])

    @cached_property
    def given_up(self) -> Floats:
        """(N,) p(x0) - p(y): target probability that emitting the drafted token y gives up."""
        given = self.target.top_probability - np.exp(self.draft_log_prob)
        return np.asarray(np.where(self.draft_rank == 1, 0.0, given))


@dataclass(frozen=True, eq=False)
class Verdict:
    """One rule on every step.

    Attributes:
        rule: the rule.
        lo: (N,) lower ends of the certificates, nats; +inf where nothing is rejected.
        hi: (N,) upper ends; equal to `lo` where exact.
        accepted: (N,) whether the drafter is accepted.
        certified: (N,) whether its KL lies below `lo` by more than both numbers' rounding.
        certifiable: (N,) the same of `hi`; differs where the certificate is not exact.
    """

    rule: Rule
    lo: Floats
    hi: Floats
    accepted: Flags
    certified: Flags
    certifiable: Flags

    @property
    def violations(self) -> NDArray[np.intp]:
        """Steps that are certified and rejected: none, unless something is wrong."""
        return np.flatnonzero(self.certified & ~self.accepted)


def judge(steps: Steps, rules: Sequence[Rule]) -> list[Verdict]:
    """Apply `rules` to all steps.

    KL = R does not guarantee acceptance, and both are known up to rounding only: a step counts
    as certified when KL + kl_rounding(KL) < (1 - 1e-12) lo. A KL of exactly 0 has no rounding.
    """
    size = (len(steps), len(rules))
    lo, hi, accepted = np.empty(size), np.empty(size), np.empty(size, dtype=bool)
    for start in range(0, len(steps), CHUNK):
        part = slice(start, start + CHUNK)
        dist = steps.target[part]
        found = certify(dist, rules)
        lo[part], hi[part] = found.lo, found.hi
        for at, rule in enumerate(rules):
            rank = steps.argmax_rank if isinstance(rule, Tree) else steps.draft_rank
            accepted[part, at] = rule.accepts(dist, rank[part], steps.draft_log_prob[part])
    kl = (steps.kl + kl_rounding(steps.kl))[:, None]
    certified = kl < (1 - CERTIFICATE_ROUNDING) * lo
    certifiable = kl < (1 - CERTIFICATE_ROUNDING) * hi
    return [
        Verdict(
            rule,
            *(np.ascontiguousarray(a[:, at]) for a in (lo, hi, accepted, certified, certifiable)),
        )
        for at, rule in enumerate(rules)
    ]


def rule_statistics(
    steps: Steps, verdict: Verdict, bootstrap: PromptBootstrap, window: int
) -> pd.DataFrame:
    """Measure one rule on one drafter.

    Returns:
        One row a statistic: `value`, `optimistic` (from the upper ends of certificates that are
        not exact) and the limits `low`, `high`. Shares of all steps: acceptance, certified,
        departure (accepted, but not the target's argmax). coverage: certified among accepted.
        given_up: target probability an emitted draft gives up, mean over all steps.
        slack_median, slack_p5: of R - KL, nats. rank_correlation: of R - KL and acceptance over
        steps; ordered: how often an accepted step has a larger R - KL than a rejected one (ties
        half). realised_<estimator>, certified_<estimator>: acceptance lengths, see
        analysis.run_lengths. tightest_certified, tightest_rejected: the least |R - KL| on
        certified and on rejected steps, nats. violations: certified and rejected steps.
    """
    accepted, certified = verdict.accepted, verdict.certified
    tree = isinstance(verdict.rule, Tree)
    departs = accepted & (steps.draft_rank > 1) & (not tree)
    everywhere = np.ones(len(steps), dtype=bool)
    rows = [
        _share("acceptance", accepted, everywhere, bootstrap),
        _between("certified", certified, verdict.certifiable, everywhere, bootstrap),
        _between("coverage", certified, verdict.certifiable & accepted, accepted, bootstrap),
        _share("departure", departs, everywhere, bootstrap),
        _share("given_up", np.where(departs, steps.given_up, 0.0), everywhere, bootstrap),
    ]
    slack = verdict.lo - steps.kl
    points, draws = bootstrap.quantiles(slack, [0.5, 0.05])
    low, high = bootstrap.interval(draws)
    rows += [
        _row(name, points[at], points[at], low[at], high[at])
        for at, name in enumerate(("slack_median", "slack_p5"))
    ]
    for name, value in (
        *_association(slack, accepted),
        *_tightest(slack, verdict),
        ("violations", float(len(verdict.violations))),
    ):
        rows.append(_row(name, value, value, np.nan, np.nan))
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
            _row(
                f"{kind}_{row['estimator']}",
                row["value"],
                row["optimistic"],
                row["low"],
                row["high"],
            )
            for row in lengths.to_dict("records")
        ]
    frame = pd.DataFrame(rows)
    frame.insert(0, "rule", verdict.rule.label)
    return frame


def stochastic_statistics(
    tv: Floats,
    races: Floats,
    harmonic: Floats,
    trajectories: Trajectories,
    bootstrap: PromptBootstrap,
) -> pd.DataFrame:
    """Measure the expected acceptance of stochastic verification, (N,) probabilities each.

    Returns:
        Rows like those of `rule_statistics`: acceptance, and realised_per_call with expected
        numbers of rejections and of trajectories that end accepted.
    """
    ends = np.append(trajectories.starts[1:], len(tv)) - 1
    frames = []
    for name, accepted in (
        ("speculative sampling", 1 - tv),
        ("exponential races", races),
        ("exponential races, lower bound", harmonic),
    ):
        calls = 1 - accepted
        calls[ends] += accepted[ends]
        every = np.ones(len(tv))
        rows = [
            _share("acceptance", accepted, every, bootstrap),
            _share("realised_per_call", every, calls, bootstrap),
        ]
        frame = pd.DataFrame(rows)
        frame.insert(0, "rule", name)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def kl_needed(
    verdict: Verdict, fractions: Sequence[float], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Return the largest KL at which a fraction of the steps is certified, for each fraction.

    A drafter whose KL stays at or below it is certified on at least this fraction.
    """
    points, draws = bootstrap.quantiles(verdict.lo, [1 - fraction for fraction in fractions])
    low, high = bootstrap.interval(draws)
    return pd.DataFrame(
        {
            "rule": verdict.rule.label,
            "fraction": list(fractions),
            "kl": points,
            "low": low,
            "high": high,
        }
    )


def profile(steps: Steps, verdict: Verdict, width: int, parts: int) -> pd.DataFrame:
    """Count accepted and certified steps by position and by the target's margin.

    Args:
        steps: all steps.
        verdict: of one rule.
        width: positions in a bin.
        parts: quantile bins of the margin p(rank 1) - p(rank 2); 10 gives deciles.

    Returns:
        One row a bin: rule, by (position, margin), bin, low and high end, steps, accepted and
        certified shares.
    """
    cuts = np.quantile(steps.margin, np.linspace(0, 1, parts + 1))
    last = int(steps.position.max()) // width
    bins: dict[str, tuple[NDArray[np.integer], Floats]] = {
        "position": (steps.position // width, np.arange(0.0, (last + 2) * width, width)),
        "margin": (np.searchsorted(cuts[1:-1], steps.margin, side="right"), cuts),
    }
    frames = []
    for by, (index, edges) in bins.items():
        count = np.bincount(index, minlength=len(edges) - 1)
        shares = {
            name: np.bincount(index, weights=flags, minlength=len(count)) / np.maximum(count, 1)
            for name, flags in (("accepted", verdict.accepted), ("certified", verdict.certified))
        }
        frames.append(
            pd.DataFrame(
                {
                    "rule": verdict.rule.label,
                    "by": by,
                    "bin": np.arange(len(count), dtype=np.int32),
                    "low": edges[:-1],
                    "high": edges[1:],
                    "steps": count.astype(np.int64),
                    **shares,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


Row = dict[str, str | float]
Weights = Floats | Flags


def _row(statistic: str, value: float, optimistic: float, low: float, high: float) -> Row:
    return {
        "statistic": statistic,
        "value": float(value),
        "optimistic": float(optimistic),
        "low": float(low),
        "high": float(high),
    }


def _share(name: str, above: Weights, below: Weights, bootstrap: PromptBootstrap) -> Row:
    """Return the ratio of two sums over all steps, with its interval over prompts."""
    over = np.bincount(bootstrap.prompts, weights=above)
    under = np.bincount(bootstrap.prompts, weights=below)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = over.sum() / under.sum()
        low, high = bootstrap.interval(bootstrap.sums(over) / bootstrap.sums(under))
    return _row(name, value, value, float(low), float(high))


def _between(name: str, sure: Flags, maybe: Flags, below: Flags, bootstrap: PromptBootstrap) -> Row:
    """Return the share of certified steps, from both ends of the certificates."""
    lower = _share(name, sure, below, bootstrap)
    upper = lower if np.array_equal(sure, maybe) else _share(name, maybe, below, bootstrap)
    return lower | {"optimistic": upper["value"], "high": upper["high"]}


def _association(slack: Floats, accepted: Flags) -> list[tuple[str, float]]:
    """Return Spearman's rank correlation, and the ordering probability (Mann-Whitney)."""
    ranks = pd.Series(slack).rank().to_numpy()
    ahead, behind = int(accepted.sum()), int((~accepted).sum())
    if ahead == 0 or behind == 0:
        return [("rank_correlation", np.nan), ("ordered", np.nan)]
    correlation = np.corrcoef(ranks, accepted)[0, 1] if np.ptp(ranks) > 0 else np.nan
    larger = ranks[accepted].sum() - ahead * (ahead + 1) / 2
    return [("rank_correlation", float(correlation)), ("ordered", float(larger / ahead / behind))]


def _tightest(slack: Floats, verdict: Verdict) -> list[tuple[str, float]]:
    certified = slack[verdict.certified]
    rejected = -slack[~verdict.accepted]
    return [
        ("tightest_certified", float(certified.min(initial=np.inf))),
        ("tightest_rejected", float(rejected.min(initial=np.inf))),
    ]
