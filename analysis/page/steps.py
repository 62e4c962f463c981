"""The page's answers, step by step, and its curves of certificates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..report.measured import Target, survival_band
from ..report.style import RULE_FAMILIES
from ..report.text import share_text, symbol
from ..rules import Rule
from ..statistics.bootstrap import Floats, Integers

LEVELS = np.round(
    [
        *np.arange(0, 0.1, 0.005),
        *np.arange(0.1, 0.3, 0.01),
        *np.arange(0.3, 0.69, 0.02),
        0.69,
        0.8,
        1.0,
    ],
    3,
)  # nats; every one of run_lengths.eps in conf/config.yaml is among them
MOST = 200  # rules times targets that fit into a page of 2.5 MB
OPEN, REJECTED, ACCEPTED, CERTIFIED = range(4)  # fate of a step's draft; open: not judged
POINTS = 121  # of a survival curve
STRICT = {"additive": 0.0, "multiplicative": 1.0, "absolute": 1.0, "mars": None}  # greedy there
ANSWERS, CANDIDATES, PROMPT = 7, 5, 2000  # answers shown, tokens of a step, characters of a prompt
KL = "KL(p‖q)", "completed KL(p‖q′)"  # of a drafter, of one with a reduced vocabulary


def digits(value: float, significant: int = 3) -> float | None:
    """Return a number rounded to significant digits; None (JSON's null) if it is not finite.

    Examples:
        >>> digits(0.123456), digits(math.inf)
        (0.123, None)
    """
    return float(f"{value:.{significant}g}") if math.isfinite(value) else None


def in_order(rules: Sequence[Rule]) -> list[Rule]:
    """Return rules by family, and from strict to relaxed within a family where that is defined."""
    names = [
        *RULE_FAMILIES,
        *dict.fromkeys(rule.name for rule in rules if rule.name not in RULE_FAMILIES),
    ]

    def strictness(rule: Rule) -> list[float]:
        return [sign * rule.parameters[name] for name, sign in rule.relaxes.items()]

    return sorted(rules, key=lambda rule: (names.index(rule.name), strictness(rule)))


def line(rule: Rule) -> dict[str, Any] | None:
    """Return the value of a rule's only parameter, if it is continuous, and that of strict greedy.

    The calculator interpolates between such values.
    """
    if rule.name not in STRICT:
        return None
    ((name, value),) = rule.parameters.items()
    return {"parameter": symbol(name), "value": value, "greedy": STRICT[rule.name]}


def embedded(rules: Sequence[Rule], targets: int) -> list[Rule]:
    """Return the rules that fit into the page with this number of targets, in its order."""
    return in_order(rules)[: max(1, MOST // targets)]


def about(target: Target) -> dict[str, Any]:
    """Return a target's printed name, its drafter's KL by name, and the share of steps within."""
    within = None if target.draft is None else (target.draft["kl"].to_numpy()[:, None] <= LEVELS)
    return {
        "label": target.label,
        "kl": KL[target.completed],
        "drafter_within": None if within is None else within.mean(axis=0).round(4).tolist(),
    }


def curves(target: Target, rules: Sequence[Rule]) -> dict[str, Any]:
    """Return the survival curves of a target's certificates, with their pointwise intervals.

    Returns:
        eps, (POINTS,), and for each rule the share, low and high, (POINTS,), from the lower ends.
    """
    eps = np.linspace(0, 1.06 * max(rule.ceiling for rule in rules), POINTS)
    lines_of_rules = []
    for rule in rules:
        lower = target.certificates[rule][0]
        low, high = survival_band(lower, eps, target.bootstrap)
        share = 1 - np.searchsorted(np.sort(lower), eps, side="right") / len(lower)
        lines = {"share": share, "low": low, "high": high}
        lines_of_rules.append({name: np.round(line, 4).tolist() for name, line in lines.items()})
    return {"eps": np.round(eps, 4).tolist(), "rules": lines_of_rules}


def evenly_spaced(shares: Floats, count: int = ANSWERS) -> Integers:
    """Return the indices of the answers shown, evenly spaced in the order of their (P,) shares.

    Examples:
        >>> evenly_spaced(np.array([0.5, 0.1, 0.9, 0.3, 0.7]), 3).tolist()
        [1, 0, 2]
    """
    order = np.argsort(shares, kind="stable")
    places = np.linspace(0, len(order) - 1, min(count, len(order)))
    return np.asarray(order[np.round(places).astype(np.intp)])


def answers(target: Target, rules: Sequence[Rule]) -> dict[str, Any]:
    """Return the answers of a target that the page shows.

    They are selected by the first rule: by its share of accepted tokens or, without a drafter, its
    mean certificate.

    Returns:
        `chosen_by`, a sentence on the selection; `words`, the text of every token that occurs, by
        id; `answers`, each with its prompt and its steps.
    """
    first, prompts = rules[0], target.bootstrap.prompts
    accepted = target.judged.get(first.label)
    values = (
        np.minimum(target.certificates[first][0], first.ceiling)
        if accepted is None
        else accepted.accepted
    )
    criterion = "mean certificate" if accepted is None else "share of accepted tokens"
    shares = np.bincount(prompts, weights=values) / target.bootstrap.steps
    begin = np.cumsum(target.bootstrap.steps) - target.bootstrap.steps
    shown = [
        {
            "prompt": cut(target.prompts[prompt][1]),
            "id": target.prompts[prompt][0],
            "share": f"mean R {shares[prompt]:.3g} nats"
            if accepted is None
            else f"{share_text(shares[prompt])} accepted",
            "steps": [
                _step(target, step, rules)
                for step in range(begin[prompt], begin[prompt] + target.bootstrap.steps[prompt])
            ],
        }
        for prompt in evenly_spaced(shares)
    ]
    used = {
        token
        for answer in shown
        for step in answer["steps"]
        for token in (step["t"], *step["c"], step.get("d", step["t"]))
    }
    return {
        "chosen_by": f"{len(shown)} answers, evenly spaced from the lowest to the highest "
        f"{criterion} under {first.title}.",
        "words": {str(token): target.words[token] for token in sorted(used & set(target.words))},
        "answers": shown,
    }


def _step(target: Target, step: int, rules: Sequence[Rule]) -> dict[str, Any]:
    certificates = [float(target.certificates[rule][0][step]) for rule in rules]
    row: dict[str, Any] = {
        "t": int(target.tokens[step]),
        "c": target.candidates[step, :CANDIDATES].tolist(),
        "p": [digits(p) for p in target.probabilities[step, :CANDIDATES]],
        "r": [digits(value) for value in certificates],  # null: nothing is rejected
        "within": np.searchsorted(LEVELS, certificates, side="left").tolist(),  # levels below R
        "fates": [_fate(target, rule, step) for rule in rules],
    }
    if target.draft is not None:
        drafted = target.draft.iloc[step]
        row |= {name: digits(drafted[name]) for name in ("q", "p_draft")}
        row |= {"d": int(drafted["token"]), "kl": digits(drafted["kl"])}
    return row


def _fate(target: Target, rule: Rule, step: int) -> int:
    """Return the fate of a step's draft under a rule."""
    if rule.label not in target.judged:
        return OPEN
    judged = target.judged[rule.label]
    return (
        (CERTIFIED if judged.certified[step] else ACCEPTED) if judged.accepted[step] else REJECTED
    )


def cut(text: str, most: int = PROMPT) -> str:
    r"""Return a text, shortened at the end of a line or word if it is too long.

    >>> cut("one line\nand two words", 14), cut("one line\nand two words", 30)
    ('one line …', 'one line\nand two words')
    """
    if len(text) <= most:
        return text
    begin = text[:most]
    end = max(begin.rfind("\n"), 0) or max(begin.rfind(" "), 0) or most
    return f"{begin[:end].rstrip()} …"
