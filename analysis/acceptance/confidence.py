"""What a drafter knows of its own acceptance, before the target is called.

Five measures from q alone, larger where more is promised:

| certified | C(q) of `analysis.beyond.drafter_side`, nats |
| certified_tv | the same of total variation, which is finite for a reduced vocabulary as well |
| max_q | q0, the largest probability |
| entropy | -H(q), nats |
| calibrated | the probability of acceptance, a logistic function of the log-odds of q0 |

A drafter drafts a token where its measure exceeds a threshold. That of a certificate is the KL, or
total variation, that a new prompt's steps stay below (`stopping.level`), so that what is drafted is
sure to be accepted wherever they do. All that is calibrated is calibrated on other prompts than
those it is measured on: those of even number serve those of odd number, and the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..beyond.drafter_side import certify_draft
from ..certificates.certify import certify
from ..rules.builtin import StrictGreedy
from ..rules.tree import Tree
from ..statistics.bootstrap import Flags, Floats, Integers, PromptBootstrap
from ..statistics.trajectories import Trajectories
from ..topk import TopK
from .ranking import areas
from .stopping import depths_tested, level, stopped_calls
from .summary import Row, share_row

CERTIFIED = ("certified", "certified_tv")
OFTEN = ("max_q", "entropy")  # with thresholds that draft as often as the certified ones
MEASURES = (*CERTIFIED, *OFTEN, "calibrated")
ODDS = 40.0  # largest log-odds that count
RIDGE = 1e-3  # on the coefficients of a logistic function: finite where classes are apart
NEWTON = 50  # steps at most


@dataclass(frozen=True, eq=False)
class DraftedSteps:
    """What a drafter would draft at the N steps of P trajectories, and what it says of it.

    Attributes:
        q: the drafter's distributions.
        kl: (N,) KL(p || q).
        tv: (N,) total variation.
        accepted: (N,) whether its most probable token is accepted.
        trajectories: of the steps.
    """

    q: TopK
    kl: Floats
    tv: Floats
    accepted: Flags
    trajectories: Trajectories

    def distance(self, measure: str) -> Floats:
        """Return the (N,) distances that a certificate is held against."""
        return self.kl if measure == "certified" else self.tv

    def measures(self) -> dict[str, Floats]:
        """Return the (N,) measures that need no calibration."""
        return measures(self.q)

    def part(self, prompts: Flags) -> DraftedSteps:
        """Return the steps of some of the P prompts."""
        steps = np.flatnonzero(prompts[self.trajectories.prompts])
        lengths = np.bincount(self.trajectories.prompts)[prompts]
        starts = np.cumsum(lengths) - lengths
        own = Trajectories(starts, np.repeat(np.arange(len(lengths)), lengths))
        return DraftedSteps(
            self.q[steps], self.kl[steps], self.tv[steps], self.accepted[steps], own
        )


def measures(
    q: TopK,
    wanted: Sequence[str] = (*CERTIFIED, *OFTEN),
    rule: StrictGreedy | Tree = StrictGreedy(),  # noqa: B008  frozen
) -> dict[str, Floats]:
    """Return the (N,) measures of a drafter's distributions that need no calibration.

    Certificates are of `rule`; total variation is the same from either side.
    """
    ways: dict[str, Callable[[], Floats]] = {
        "certified": lambda: certify_draft(q, rule),
        "certified_tv": lambda: certify(q, rule, divergence="tv").lower[:, 0],
        "max_q": lambda: np.minimum(q.top_probability, 1.0),
        "entropy": lambda: -q.entropy,
    }
    return {name: ways[name]() for name in wanted}


def odds(measure: str, values: Floats) -> Floats:
    """Return what a logistic function is fitted to: log-odds of q0, 1 - e^-C or 2 C_TV, or -H."""
    if measure == "entropy":
        return values
    with np.errstate(divide="ignore", over="ignore"):
        if measure == "certified":
            found = values + np.log(-np.expm1(-values))  # log(e^C - 1)
        else:
            share = np.minimum(2.0 * values if measure == "certified_tv" else values, 1.0)
            found = np.log(share) - np.log1p(-share)
    return np.asarray(np.clip(found, -ODDS, ODDS))


def fit_logistic(x: Floats, accepted: Flags) -> tuple[float, float]:
    """Return (a, b) with which 1 / (1 + e^-(a + b x)) fits acceptance best, by Newton's method.

    Example:
        >>> x, accepted = np.array([-1.0, -1.0, 1.0, 1.0]), np.array([False, True, True, True])
        >>> round(fit_logistic(x, accepted)[0], 1) > 0
        True
    """
    design = np.column_stack([np.ones_like(x), x])
    coefficients = np.zeros(2)
    for _ in range(NEWTON):
        p = _logistic(design @ coefficients)
        slope = design.T @ (accepted - p) - RIDGE * coefficients
        curve = design.T @ (design * (p * (1.0 - p))[:, None]) + RIDGE * np.eye(2)
        step = np.linalg.solve(curve, slope)
        coefficients += np.clip(step, -5.0, 5.0)
        if np.all(np.abs(step) < 1e-10):
            break
    return float(coefficients[0]), float(coefficients[1])


def _logistic(x: Floats) -> Floats:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


@dataclass(frozen=True)
class Calibrated:
    """What was learned from some prompts.

    Attributes:
        levels: of each certificate, the distance that a new prompt's steps stay below, by the share
            of its steps.
        often: of each of `OFTEN`, the threshold that drafts as often as the certificate that drafts
            more, by that share.
        curves: (a, b) of the logistic function of each measure.
    """

    levels: Mapping[str, Mapping[float, float]]
    often: Mapping[str, Mapping[float, float]]
    curves: Mapping[str, tuple[float, float]]

    @classmethod
    def on(cls, steps: DraftedSteps, shares: Sequence[float], confidence: float) -> Calibrated:
        """Calibrate on steps; `shares` and `confidence` as `stopping.level` takes them."""
        found = steps.measures()
        levels = {
            name: {
                one: level(steps.distance(name), steps.trajectories, one, confidence)
                for one in shares
            }
            for name in CERTIFIED
        }
        kept = {
            one: max(float(np.mean(found[name] > levels[name][one])) for name in CERTIFIED)
            for one in shares
        }
        often = {
            name: {one: _exceeded(found[name], share) for one, share in kept.items()}
            for name in OFTEN
        }
        curves = {
            name: fit_logistic(odds(name, values), steps.accepted) for name, values in found.items()
        }
        return cls(levels, often, curves | {"calibrated": curves["max_q"]})

    def largest_refused(self, threshold: float) -> float:
        """Return the q0 up to which the calibrated probability does not exceed a threshold."""
        a, b = self.curves["calibrated"]
        if not 0 < threshold < 1:
            return -math.inf if threshold <= 0 else math.inf
        at = math.log(threshold / (1.0 - threshold))
        if b <= 0:  # the probability does not grow with q0
            return -math.inf if a > at else math.inf
        return float(_logistic(np.asarray((at - a) / b)))

    def probabilities(self, found: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return what each measure says of acceptance, as a probability: q0 itself, else fitted."""
        values = {**found, "calibrated": found["max_q"]}
        fitted = {
            name: _logistic(a + b * odds(name, values[name]))
            for name, (a, b) in self.curves.items()
        }
        return fitted | {"max_q": found["max_q"]}


def _exceeded(values: Floats, share: float) -> float:
    """Return the value that a share of the values exceeds, or a little less."""
    ordered = np.sort(values)[::-1]
    count = round(share * len(values))
    return float(ordered[count]) if count < len(values) else -math.inf


@dataclass(frozen=True)
class Asked:
    """Thresholds that are compared.

    Attributes:
        draft_length: the most tokens of a draft.
        shares: of a prompt's steps, for certified levels.
        confidence: over prompts, of these.
        max_q: thresholds of the largest probability.
        calibrated: thresholds of the calibrated probability.
    """

    draft_length: int
    shares: Sequence[float]
    confidence: float
    max_q: Sequence[float]
    calibrated: Sequence[float]


def stopping_statistics(
    steps: DraftedSteps, asked: Asked, bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Compare what tells a drafter to stop.

    Args:
        steps: of at least two prompts.
        asked: the thresholds.
        bootstrap: over prompts.

    Returns:
        Rows with measure, setting, at (its value), depth, statistic, value, ci_low, ci_high.
        Of a measure (setting empty, at NaN), over the drafted tokens that are tested at each depth
        of drafts of the whole length, depth 0 all of them: auc, and brier of its probability. Of a
        setting (depth 0; `whole`: drafts of the whole length): kept, the share of steps at which a
        token is drafted, precision, the accepted among them, recall, the kept among accepted,
        tokens, drafted and wasted (not accepted) a call, and of a certified level covered, the
        share of prompts that keep what it promises.
    """
    fold = np.arange(bootstrap.count) % 2 == 0
    learned = [
        Calibrated.on(steps.part(~mine), asked.shares, asked.confidence) for mine in (fold, ~fold)
    ]
    of = np.where(fold[steps.trajectories.prompts], 0, 1)  # whose calibration serves a step
    found = steps.measures()
    both = [each.probabilities(found) for each in learned]
    sure = {name: np.where(of == 0, both[0][name], both[1][name]) for name in MEASURES}
    depths = depths_tested(steps.accepted, steps.trajectories, asked.draft_length)
    rows = list(_known(steps.accepted, found, sure, depths, bootstrap))
    whole = np.ones(len(of), dtype=bool)
    rows += _stopped(steps, whole, "whole", "whole", math.nan, asked.draft_length, bootstrap)
    for measure, setting, value, kept in _settings(asked, learned, of, found, sure):
        rows += _stopped(steps, kept, measure, setting, value, asked.draft_length, bootstrap)
        if measure in CERTIFIED:
            eps = np.array([each.levels[measure][value] for each in learned])[of]
            rows.append(_covered(measure, steps, eps, value, bootstrap))
    return pd.DataFrame(rows)


def _settings(
    asked: Asked,
    learned: Sequence[Calibrated],
    of: Integers,
    found: Mapping[str, Floats],
    sure: Mapping[str, Floats],
) -> Iterator[tuple[str, str, float, Flags]]:
    """Yield measure, setting, its value and the steps at which it drafts."""
    for share in asked.shares:
        for name in CERTIFIED:
            eps = np.array([each.levels[name][share] for each in learned])[of]
            yield name, "share", share, found[name] > eps
        for name in OFTEN:
            limit = np.array([each.often[name][share] for each in learned])[of]
            yield name, "as often", share, found[name] > limit
    for threshold in asked.max_q:
        yield "max_q", "threshold", threshold, found["max_q"] > threshold
    for threshold in asked.calibrated:
        yield "calibrated", "threshold", threshold, sure["calibrated"] > threshold


def _known(
    accepted: Flags,
    found: Mapping[str, Floats],
    sure: Mapping[str, Floats],
    depths: Integers,
    bootstrap: PromptBootstrap,
) -> Iterator[Row]:
    """Yield area and Brier score of every measure, over all tested tokens and by depth."""
    for depth in range(int(depths.max()) + 1):
        chosen = depths == depth if depth else depths > 0
        for name in MEASURES:
            draws = areas(found.get(name, sure[name]), accepted, chosen, bootstrap)
            low, high = bootstrap.interval(draws[1:])
            limits = {"ci_low": float(low), "ci_high": float(high)}
            row: Row = {"statistic": "auc", "value": float(draws[0]), **limits}
            off = np.where(chosen, (sure[name] - accepted) ** 2, 0.0)
            brier = share_row("brier", off, chosen, bootstrap)
            for one in (row, {key: brier[key] for key in row}):
                yield {"measure": name, "setting": "", "at": math.nan, "depth": depth, **one}


def _stopped(
    steps: DraftedSteps,
    kept: Flags,
    measure: str,
    setting: str,
    value: float,
    draft_length: int,
    bootstrap: PromptBootstrap,
) -> Iterator[Row]:
    """Yield what a setting drafts, wastes and gains."""
    every = np.ones(len(kept), dtype=bool)
    both = kept & steps.accepted
    calls, drafted, hits = stopped_calls(steps.accepted, kept, steps.trajectories, draft_length)
    sums = {"tokens": bootstrap.steps, "drafted": drafted, "wasted": drafted - hits}
    rows = [
        share_row("kept", kept, every, bootstrap),
        share_row("precision", both, kept, bootstrap),
        share_row("recall", both, steps.accepted, bootstrap),
    ]
    for name, amount in sums.items():
        low, high = bootstrap.interval(bootstrap.sums(amount) / bootstrap.sums(calls))
        limits = {"ci_low": float(low), "ci_high": float(high)}
        rows.append({"statistic": name, "value": float(amount.sum() / calls.sum()), **limits})
    for row in rows:
        found = {key: row[key] for key in ("statistic", "value", "ci_low", "ci_high")}
        yield {"measure": measure, "setting": setting, "at": value, "depth": 0, **found}


def _covered(
    measure: str, steps: DraftedSteps, eps: Floats, share: float, bootstrap: PromptBootstrap
) -> Row:
    """Return the share of prompts of which so many steps stay within their level."""
    below = np.bincount(bootstrap.prompts, weights=steps.distance(measure) <= eps)
    kept = below >= share * bootstrap.steps - 1e-9
    draws = bootstrap.sums(kept.astype(np.float64)) / bootstrap.count
    low, high = bootstrap.interval(draws)
    limits = {"ci_low": float(low), "ci_high": float(high)}
    row: Row = {"statistic": "covered", "value": float(kept.mean()), **limits}
    return {"measure": measure, "setting": "share", "at": share, "depth": 0, **row}
