"""The steps of a study as the page's scripts compute with them: certificates, accepted or not.

The scripts count as `statistics.trajectories` and resample as `PromptBootstrap` does, with the
same resamples: what they show is what ``python -m pipeline.solve`` prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..report.measured import Certified, survival_band
from ..rules import Rule
from ..statistics.bootstrap import Flags, Floats, PromptBootstrap, share_above
from .packing import digits, pack_certificates, pack_counts, pack_flags

MOST = 2_500_000  # characters of packed certificates: what a page of 6 MB has room for
POINTS = 121  # of a survival curve
FAMILIES = {
    "greedy": "Strict greedy",
    "additive": "Additive",
    "multiplicative": "Multiplicative",
    "tree": "Tree",
    "typical": "Typical (Medusa)",
    "mars": "MARS",
    "absolute": "Absolute threshold",
    "topm_additive": "Top-m + additive",
    "topm_multiplicative": "Top-m + multiplicative",
}  # in the order of the page; a study's own rules come behind them, by their names


@dataclass(frozen=True, eq=False)
class Drafted:
    """What a drafter says at N steps of a target.

    Attributes:
        kl: (N,) KL(p‖q), nats.
        token: (N,) its most probable token.
        probability: (N,) that of this token under the drafter.
        under_target: (N,) the same under the target.
        accepted: (N,) by a rule's label, whether the rule accepts it.
    """

    kl: Floats
    token: NDArray[np.int32]
    probability: Floats
    under_target: Floats
    accepted: Mapping[str, Flags]


@dataclass(frozen=True, eq=False)
class TargetSteps:
    """The N steps of a target, along P answers.

    Attributes:
        label: printed name of the target.
        certificates: of every rule.
        bootstrap: over the prompts of the steps.
        tokens: (N,) the token emitted.
        candidates: (N, C) the target's most probable tokens.
        probabilities: (N, C) theirs.
        drafted: what the drafter says; None without one.
        prompts: (P,) the id and the text of each.
        words: text of the tokens that are known, by id.
    """

    label: str
    certificates: Sequence[Certified]
    bootstrap: PromptBootstrap
    tokens: NDArray[np.int32]
    candidates: NDArray[np.int32]
    probabilities: Floats
    drafted: Drafted | None
    prompts: Sequence[tuple[str, str]]
    words: Mapping[int, str] = field(default_factory=dict)


def family(rule: Rule) -> str:
    """Return the family that a rule is shown under."""
    return FAMILIES.get(rule.name, rule.name)


def in_order(rules: Sequence[Rule]) -> list[Rule]:
    """Return rules family by family, each from strict to relaxed as far as a parameter says so."""
    names = [*FAMILIES, *dict.fromkeys(rule.name for rule in rules if rule.name not in FAMILIES)]

    def strictness(rule: Rule) -> list[float]:
        return [sign * rule.parameters[name] for name, sign in rule.relaxes.items()]

    return sorted(rules, key=lambda rule: (names.index(rule.name), strictness(rule)))


def embedded(rules: Sequence[Rule], steps: int) -> list[Rule]:
    """Return the rules whose steps the page has room for, in its order.

    Args:
        rules: of the study.
        steps: of all targets together.
    """
    return in_order(rules)[: max(1, MOST // steps)]


def rule_rows(rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Return what the page says of each rule."""
    return [
        {
            "label": rule.label,
            "title": rule.title,
            "family": family(rule),
            "ceiling": digits(rule.ceiling, 6),
            "ceiling_text": rule.ceiling_shown,
        }
        for rule in rules
    ]


def packed(target: TargetSteps, rules: Sequence[Rule]) -> dict[str, Any]:
    """Return a target's steps: lengths of its answers, and of each rule the packed certificates."""
    by_rule = {item.rule: item for item in target.certificates}
    accepted = {} if target.drafted is None else target.drafted.accepted
    return {
        "label": target.label,
        "lengths": target.bootstrap.steps.tolist(),
        "certificates": [pack_certificates(by_rule[rule].lower) for rule in rules],
        "accepted": [
            pack_flags(accepted[rule.label]) if rule.label in accepted else None for rule in rules
        ],
    }


def resamples(targets: Sequence[TargetSteps]) -> dict[str, Any]:
    """Return how often each resample draws each prompt, by the number of prompts.

    Targets of as many prompts share their resamples: one seed gives them.
    """
    shared = {str(target.bootstrap.count): target.bootstrap for target in targets}
    return {
        "confidence": targets[0].bootstrap.confidence,
        "weights": {count: pack_counts(one.weights) for count, one in shared.items()},
    }


def curves(target: TargetSteps, rules: Sequence[Rule]) -> dict[str, Any]:
    """Return the survival curves of a target's certificates, with their pointwise intervals.

    Returns:
        eps, (POINTS,), and of each rule share, low and high, likewise; low is of the lower ends of
        the certificates, high of the upper ends.
    """
    chosen = [item for rule in rules for item in target.certificates if item.rule == rule]
    eps = np.linspace(0, 1.06 * max(item.rule.ceiling for item in chosen), POINTS)
    found = []
    for item in chosen:
        low, high = survival_band(item.lower, eps, target.bootstrap)
        if not np.array_equal(item.lower, item.upper):
            high = survival_band(item.upper, eps, target.bootstrap)[1]
        lines = {"share": share_above(item.lower, eps), "low": low, "high": high}
        found.append({name: _short(values) for name, values in lines.items()})
    return {"eps": _short(eps), "rules": found}


def top_histogram(target: TargetSteps, bins: int = 20) -> list[dict[str, Any]]:
    """Return how p0 and p1, the two largest probabilities, are distributed over the steps."""
    edges = np.linspace(0, 1, bins + 1)
    rows = []
    for kind, at in (("p₀", 0), ("p₁", 1)):
        if at < target.probabilities.shape[1]:
            values = np.minimum(target.probabilities[:, at], 1)
            share = np.histogram(values, edges)[0] / len(values)
            share = np.append(share, share[-1])  # the end of the last step
            rows += [
                {"kind": kind, "probability": digits(edge), "share": digits(part)}
                for edge, part in zip(edges, share, strict=True)
            ]
    return rows


def distances(target: TargetSteps, points: int = 101) -> list[dict[str, Any]]:
    """Return the distribution of the drafter's KL: of each share of steps, how far it goes."""
    if target.drafted is None:
        return []
    ordered = np.sort(target.drafted.kl)
    shares = np.linspace(0, 1, points)[1:]
    at = np.ceil(shares * len(ordered) - 1e-9).astype(np.intp) - 1
    return [
        {"kl": digits(kl), "share": digits(share)}
        for kl, share in zip(ordered[at], shares, strict=True)
        if np.isfinite(kl) and kl > 0
    ]


def _short(values: Floats) -> list[float]:
    """Return numbers with four decimals, as a page needs no more."""
    return [float(value) for value in np.round(values, 4)]
