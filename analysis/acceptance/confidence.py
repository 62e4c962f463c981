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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..beyond.drafter_side import certify_draft
from ..certificates.certify import certify
from ..rules.builtin import StrictGreedy
from ..rules.tree import Tree
from ..statistics.bootstrap import Flags, Floats
from ..statistics.trajectories import Trajectories
from ..topk import TopK
from .stopping import level

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
