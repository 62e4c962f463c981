"""Certified probabilities of acceptance where something is sampled, and the measured ones.

Three ways to draft and verify, at the temperature at which the text of the steps was sampled:

- `SPECULATIVE`: a token drawn from q, kept by speculative sampling;
- `ARGMAX`: q's argmax, kept by speculative sampling, as most engines do;
- `SAMPLED` and a rule: a token drawn from q, kept if the rule accepts it.

Each as a mean over the steps, certified from the KL of every step, from a bound of them all, and
from their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ..beyond import probability
from ..beyond.coins import Hulls
from ..certificates.certify import certify
from ..rules.rule import Rule
from ..statistics.bootstrap import Floats, PromptBootstrap
from ..topk import TopK
from .divergences import kl_rounding

SPECULATIVE, ARGMAX = "speculative sampling", "argmax drafted, speculative sampling"
SAMPLED = "sampled draft, "  # before the label of a rule
ROUNDING = 1e-9  # of a probability, by which a computed one may miss its certificate


@dataclass(frozen=True, eq=False)
class SampledSteps:
    """A drafter beside its target at N steps, both at the temperature of the text.

    Attributes:
        target: the target's distributions there.
        kl: (N,) KL(p||q), nats.
        tv: (N,) total variation.
        draft_prob: (N,) target probability of the drafter's argmax.
    """

    target: TopK
    kl: Floats
    tv: Floats
    draft_prob: Floats

    @cached_property
    def measured(self) -> dict[str, Floats]:
        """(N,) acceptance of each law that the drafter decides."""
        return {SPECULATIVE: 1.0 - self.tv, ARGMAX: self.draft_prob}

    @cached_property
    def costs(self) -> Floats:
        """(N, K) KL at which each stored token can be q's argmax."""
        return probability.mode_costs(self.target)

    @cached_property
    def hulls(self) -> Hulls:
        """The least p of q's argmax by what is spent."""
        return probability.argmax_hulls(self.target, self.costs)

    def certified(self, eps: Floats | float) -> dict[str, Floats]:
        """Return (N,) lower bounds of the measured ones at a KL of eps, a number or (N,)."""
        return {
            SPECULATIVE: probability.lossless_least(self.target, eps),
            ARGMAX: probability.argmax_draft(self.target, eps, self.costs)[0],
        }

    def budgets(self, mean_kl: float) -> dict[str, float]:
        """Return lower bounds of their means at a mean KL."""
        return {
            SPECULATIVE: probability.lossless_mean(self.target, mean_kl),
            ARGMAX: probability.argmax_draft_mean(self.target, mean_kl, self.hulls),
        }

    @cached_property
    def certified_by_step(self) -> dict[str, Floats]:
        """(N,) lower bounds from the KL of every step, and its rounding."""
        return self.certified(self.kl + kl_rounding(self.kl))

    def violations(self) -> dict[str, int]:
        """Return at how many steps each law accepts with less than its certificate: none."""
        found = self.certified_by_step
        return {
            law: int(np.sum(values < found[law] - ROUNDING))
            for law, values in self.measured.items()
        }


def accepted_mass(dist: TopK, rule: Rule, sums: Floats | None = None) -> Floats:
    """Return p(S), (N,), of the tokens that a rule accepts, at least of the stored ones.

    `sums` (N, K) are those of the probabilities up to each rank, where they are known already.

    Raises:
        ValueError: the rule does not judge tokens one by one.
    """
    if not rule.judges_tokens:
        raise ValueError(f"rule {rule.label!r} does not accept a set of tokens")
    count = certify(dist, rule).accepted_count[:, 0]
    last = np.where((count < 0) | (count > dist.k), dist.k, count) - 1
    mass = (np.cumsum(dist.probs, axis=1) if sums is None else sums)[np.arange(len(dist)), last]
    return np.asarray(np.where(count >= dist.vocab_size, 1.0, np.minimum(mass, 1.0)))


def sampling_statistics(
    steps: SampledSteps, rules: Sequence[Rule], levels: Sequence[float], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Certify the mean acceptance of every law, beside the measured one.

    Args:
        steps: a drafter beside its target.
        rules: those that judge tokens are held against sampled drafts.
        levels: of the KL, nats, of the curves.
        bootstrap: over prompts.

    Returns:
        Rows with law, at, kind, eps, value, ci_low, ci_high (NaN of a budget, whose worst case is
        over all steps at once). at drafter, eps its mean KL: kind step (from the KL of each step),
        uniform (each at most the mean), budget (their mean), measured. at curve, of the two laws of
        speculative sampling: uniform and budget.
    """
    mean = float(steps.kl.mean())
    rows = [
        _row(law, "drafter", "measured", mean, values, bootstrap)
        for law, values in steps.measured.items()
    ]
    for kind, found in (("step", steps.certified_by_step), ("uniform", steps.certified(mean))):
        for law, values in found.items():
            rows.append(_row(law, "drafter", kind, mean, values, bootstrap))
    rows += [_bound(law, "drafter", mean, value) for law, value in steps.budgets(mean).items()]
    sums = np.cumsum(steps.target.probs, axis=1)
    for rule in (rule for rule in rules if rule.judges_tokens):
        law, mass = f"{SAMPLED}{rule.label}", accepted_mass(steps.target, rule, sums)
        for kind, eps in (("step", steps.kl), ("uniform", mean)):
            values = probability.sampled_draft(mass, eps)
            rows.append(_row(law, "drafter", kind, mean, values, bootstrap))
        rows.append(_bound(law, "drafter", mean, probability.sampled_draft_mean(mass, mean)))
    for eps in levels:
        for law, values in steps.certified(eps).items():
            rows.append(_row(law, "curve", "uniform", eps, values, bootstrap))
        rows += [_bound(law, "curve", eps, value) for law, value in steps.budgets(eps).items()]
    return pd.DataFrame(rows)


def _row(
    law: str, at: str, kind: str, eps: float, values: Floats, bootstrap: PromptBootstrap
) -> dict[str, str | float]:
    value, draws = bootstrap.mean(values)
    low, high = bootstrap.interval(draws)
    limits = {"ci_low": float(low), "ci_high": float(high)}
    return {"law": law, "at": at, "kind": kind, "eps": eps, "value": value, **limits}


def _bound(law: str, at: str, eps: float, value: float) -> dict[str, str | float]:
    limits = {"ci_low": np.nan, "ci_high": np.nan}
    return {"law": law, "at": at, "kind": "budget", "eps": eps, "value": value, **limits}
