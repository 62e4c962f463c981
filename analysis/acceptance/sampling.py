"""Certified and measured probabilities of acceptance with sampling.

Three schemes, at the temperature at which the text of the steps was sampled:

- `SPECULATIVE`: a token drawn from q, kept by speculative sampling;
- `ARGMAX`: q's argmax, kept by speculative sampling, as most engines do;
- `SAMPLED` and a rule: a token drawn from q, kept if the rule accepts it.

Each is a mean over the steps, certified from the KL of every step, and from their mean as a bound
for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ..beyond import probability
from ..certificates.certify import certify
from ..rules.readings import ALGORITHM_1, READINGS, Integers, relaxed
from ..rules.rule import Rule
from ..statistics.bootstrap import Floats, PromptBootstrap
from ..topk import TopK
from .judgement import rounding

SPECULATIVE, ARGMAX = "speculative sampling", "argmax drafted, speculative sampling"
SAMPLED = "sampled draft, "  # before the label of a rule
DRAFTED = "argmax drafted, "  # before a rule that samples and its reading
ROUNDING = 1e-9  # by which a computed probability may fall below its certificate


def certified_acceptance(
    target: TopK, eps: Floats | float, costs: Floats | None = None
) -> dict[str, Floats]:
    """Return (N,) lower bounds of acceptance by scheme, at a KL of eps, a number or (N,).

    `costs` are `probability.mode_costs` of the target, if already computed.
    """
    return {
        SPECULATIVE: probability.lossless(target, eps),
        ARGMAX: probability.argmax_draft(target, eps, costs),
    }


def violations(target: TopK, kl: Floats, measured: Mapping[str, Floats]) -> dict[str, int]:
    """Return the number of steps at which a scheme accepts less than certified: always 0.

    Args:
        target: N steps.
        kl: (N,) KL(p||q) of the drafter.
        measured: (N,) acceptance by scheme.
    """
    certified = certified_acceptance(target, kl + rounding(kl))
    return {
        name: int(np.sum(measured[name] < least - ROUNDING)) for name, least in certified.items()
    }


def accepted_mass(dist: TopK, rule: Rule, sums: Floats | None = None) -> Floats:
    """Return p(S), (N,), the mass of the tokens that a rule accepts, or of the stored ones of them.

    `sums` (N, K) are the cumulative probabilities, if already computed.

    Raises:
        ValueError: the rule does not judge single tokens.
    """
    if not rule.judges_tokens:
        raise ValueError(f"rule {rule.label!r} does not accept a set of tokens")
    count = certify(dist, rule).accepted_count[:, 0]
    last = np.where((count < 0) | (count > dist.k), dist.k, count) - 1
    mass = (np.cumsum(dist.probs, axis=1) if sums is None else sums)[np.arange(len(dist)), last]
    return np.asarray(np.where(count >= dist.vocab_size, 1.0, np.minimum(mass, 1.0)))


def readings(rule: Rule, target: TopK, rank: Integers, argmax: Floats) -> dict[str, Floats]:
    """Return (N,) probabilities that an argmax draft is accepted, for each reading of MARS.

    Args:
        rule: MARS.
        target: N steps with raw logits.
        rank: (N,) target ranks of the drafts.
        argmax: (N,) their target probabilities at the temperature.
    """
    count = rule.accepted_count(target)
    kept = {name: relaxed(name, rank <= count, rank, count) for name in READINGS}
    return {
        f"{DRAFTED}{rule.label}, {name}": np.where(of, 1.0, 0.0 if name == ALGORITHM_1 else argmax)
        for name, of in kept.items()
    }


def sampling_statistics(
    target: TopK,
    kl: Floats,
    measured: Mapping[str, Floats],
    rules: Sequence[Rule],
    bootstrap: PromptBootstrap,
) -> pd.DataFrame:
    """Return certified and measured mean acceptance by scheme.

    Args:
        target: N steps of the target, at the temperature of the text.
        kl: (N,) KL(p||q) at that temperature, nats.
        measured: (N,) acceptance by scheme.
        rules: the token rules among them are applied to sampled drafts.
        bootstrap: over prompts.

    Returns:
        Rows with rule (the scheme), kind, eps (the mean KL), value, ci_low, ci_high. The kind is
        step (from the KL of each step), uniform (each KL at most the mean) or measured.
    """
    mean, costs = float(kl.mean()), probability.mode_costs(target)
    rows: list[tuple[str, str, Floats]] = [
        *((scheme, "measured", values) for scheme, values in measured.items()),
        *(
            (scheme, kind, values)
            for kind, eps in (("step", kl + rounding(kl)), ("uniform", mean))
            for scheme, values in certified_acceptance(target, eps, costs).items()
        ),
    ]
    sums = np.cumsum(target.probs, axis=1)
    for rule in (rule for rule in rules if rule.judges_tokens):
        scheme, mass = f"{SAMPLED}{rule.label}", accepted_mass(target, rule, sums)
        rows += [
            (scheme, "step", probability.sampled_draft(mass, kl)),
            (scheme, "uniform", probability.sampled_draft(mass, mean)),
        ]
    frame = pd.DataFrame(
        [(scheme, kind, *_mean(values, bootstrap)) for scheme, kind, values in rows]
    )
    frame.columns = pd.Index(["rule", "kind", "value", "ci_low", "ci_high"])
    return frame.assign(eps=mean)


def _mean(values: Floats, bootstrap: PromptBootstrap) -> tuple[float, float, float]:
    value, draws = bootstrap.mean(values)
    low, high = map(float, bootstrap.interval(draws))
    return value, low, high
