"""Certified probabilities of acceptance where something is sampled, and the measured ones.

Three ways to draft and verify, at the temperature at which the text of the steps was sampled:

- `SPECULATIVE`: a token drawn from q, kept by speculative sampling;
- `ARGMAX`: q's argmax, kept by speculative sampling, as most engines do;
- `SAMPLED` and a rule: a token drawn from q, kept if the rule accepts it.

Each as a mean over the steps, certified from the KL of every step, from a bound of them all, and
from their mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from ..beyond import probability
from ..certificates.certify import certify
from ..rules.rule import Rule
from ..statistics.bootstrap import Floats, PromptBootstrap
from ..topk import TopK
from .divergences import kl_rounding

SPECULATIVE, ARGMAX = "speculative sampling", "argmax drafted, speculative sampling"
SAMPLED = "sampled draft, "  # before the label of a rule
ROUNDING = 1e-9  # of a probability, by which a computed one may miss its certificate


def certified_acceptance(
    target: TopK, eps: Floats | float, costs: Floats | None = None
) -> dict[str, Floats]:
    """Return (N,) lower bounds of the acceptance of both laws at a KL of eps, a number or (N,).

    `costs` are `probability.mode_costs` of the target, where they are known already.
    """
    return {
        SPECULATIVE: probability.lossless_least(target, eps),
        ARGMAX: probability.argmax_draft(target, eps, costs)[0],
    }


def violations(target: TopK, kl: Floats, measured: Mapping[str, Floats]) -> dict[str, int]:
    """Return at how many steps each law accepts with less than its certificate: none.

    Args:
        target: N steps.
        kl: (N,) of the drafter.
        measured: (N,) acceptance by law.
    """
    found = certified_acceptance(target, kl + kl_rounding(kl))
    return {law: int(np.sum(measured[law] < found[law] - ROUNDING)) for law in found}


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
    target: TopK,
    kl: Floats,
    measured: Mapping[str, Floats],
    rules: Sequence[Rule],
    levels: Sequence[float],
    bootstrap: PromptBootstrap,
) -> pd.DataFrame:
    """Certify the mean acceptance of every law, beside the measured one.

    Args:
        target: N steps of the target, at the temperature of the text.
        kl: (N,) KL(p||q) there, nats.
        measured: (N,) acceptance by law.
        rules: those that judge tokens are held against sampled drafts.
        levels: of the KL, nats, of the curves.
        bootstrap: over prompts.

    Returns:
        Rows with rule (the law), at, kind, eps, value, ci_low, ci_high (NaN of a budget, whose
        worst case is over all steps at once). at drafter, eps its mean KL: kind step (from the KL
        of each step), uniform (each at most the mean), budget (their mean), measured. at curve, of
        the two laws of speculative sampling: uniform and budget.
    """
    mean = float(kl.mean())
    costs = probability.mode_costs(target)
    hulls = probability.argmax_hulls(target, costs)

    def certified(at: str, eps: float) -> Iterator[dict[str, str | float]]:
        for law, values in certified_acceptance(target, eps, costs).items():
            yield _row(law, at, "uniform", eps, values, bootstrap)
        yield _bound(SPECULATIVE, at, eps, probability.lossless_mean(target, eps))
        yield _bound(ARGMAX, at, eps, probability.argmax_draft_mean(target, eps, hulls))

    def drafter(law: str, kind: str, values: Floats) -> dict[str, str | float]:
        return _row(law, "drafter", kind, mean, values, bootstrap)

    rows = [drafter(law, "measured", values) for law, values in measured.items()]
    by_step = certified_acceptance(target, kl + kl_rounding(kl), costs)
    rows += [drafter(law, "step", values) for law, values in by_step.items()]
    rows += certified("drafter", mean)
    sums = np.cumsum(target.probs, axis=1)
    for rule in (rule for rule in rules if rule.judges_tokens):
        law, mass = f"{SAMPLED}{rule.label}", accepted_mass(target, rule, sums)
        for kind, eps in (("step", kl), ("uniform", mean)):
            rows.append(drafter(law, kind, probability.sampled_draft(mass, eps)))
        rows.append(_bound(law, "drafter", mean, probability.sampled_draft_mean(mass, mean)))
    return pd.DataFrame([*rows, *(row for eps in levels for row in certified("curve", eps))])


def _row(
    law: str, at: str, kind: str, eps: float, values: Floats, bootstrap: PromptBootstrap
) -> dict[str, str | float]:
    value, draws = bootstrap.mean(values)
    low, high = bootstrap.interval(draws)
    limits = {"ci_low": float(low), "ci_high": float(high)}
    return {"rule": law, "at": at, "kind": kind, "eps": eps, "value": value, **limits}


def _bound(law: str, at: str, eps: float, value: float) -> dict[str, str | float]:
    limits = {"ci_low": np.nan, "ci_high": np.nan}
    return {"rule": law, "at": at, "kind": "budget", "eps": eps, "value": value, **limits}
