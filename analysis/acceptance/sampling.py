"""Certified probabilities of acceptance where something is sampled, and the measured ones.

Three ways to draft and verify, at the temperature at which the text of the steps was sampled:

- `SPECULATIVE`: a token drawn from q, kept by speculative sampling;
- `ARGMAX`: q's argmax, kept by speculative sampling, as most engines do;
- `SAMPLED` and a rule: a token drawn from q, kept if the rule accepts it.

Each as a mean over the steps, certified from the KL of every step, and from a bound of them all.
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
from .realised import rounding

SPECULATIVE, ARGMAX = "speculative sampling", "argmax drafted, speculative sampling"
SAMPLED = "sampled draft, "  # before the label of a rule
DRAFTED = "argmax drafted, "  # before a rule that samples and its reading
ROUNDING = 1e-9  # of a probability, by which a computed one may miss its certificate


def certified_acceptance(
    target: TopK, eps: Floats | float, costs: Floats | None = None
) -> dict[str, Floats]:
    """Return (N,) lower bounds of the acceptance of both laws at a KL of eps, a number or (N,).

    `costs` are `probability.mode_costs` of the target, where they are known already.
    """
    return {
        SPECULATIVE: probability.lossless(target, eps),
        ARGMAX: probability.argmax_draft(target, eps, costs),
    }


def violations(target: TopK, kl: Floats, measured: Mapping[str, Floats]) -> dict[str, int]:
    """Return at how many steps each law accepts with less than its certificate: none.

    Args:
        target: N steps.
        kl: (N,) of the drafter.
        measured: (N,) acceptance by law.
    """
    found = certified_acceptance(target, kl + rounding("kl", kl))
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
    """Certify the mean acceptance of every law, beside the measured one.

    Args:
        target: N steps of the target, at the temperature of the text.
        kl: (N,) KL(p||q) there, nats.
        measured: (N,) acceptance by law.
        rules: those that judge tokens are applied to sampled drafts.
        bootstrap: over prompts.

    Returns:
        Rows with rule (the law), kind, eps (the mean KL), value, ci_low, ci_high: kind step (from
        the KL of each step), uniform (each at most the mean), measured.
    """
    mean, costs = float(kl.mean()), probability.mode_costs(target)
    rows: list[tuple[str, str, Floats]] = [
        *((law, "measured", values) for law, values in measured.items()),
        *(
            (law, kind, values)
            for kind, eps in (("step", kl + rounding("kl", kl)), ("uniform", mean))
            for law, values in certified_acceptance(target, eps, costs).items()
        ),
    ]
    sums = np.cumsum(target.probs, axis=1)
    for rule in (rule for rule in rules if rule.judges_tokens):
        law, mass = f"{SAMPLED}{rule.label}", accepted_mass(target, rule, sums)
        rows += [
            (law, "step", probability.sampled_draft(mass, kl)),
            (law, "uniform", probability.sampled_draft(mass, mean)),
        ]
    frame = pd.DataFrame([(law, kind, *_mean(values, bootstrap)) for law, kind, values in rows])
    frame.columns = pd.Index(["rule", "kind", "value", "ci_low", "ci_high"])
    return frame.assign(eps=mean)


def _mean(values: Floats, bootstrap: PromptBootstrap) -> tuple[float, float, float]:
    value, draws = bootstrap.mean(values)
    low, high = map(float, bootstrap.interval(draws))
    return value, low, high
