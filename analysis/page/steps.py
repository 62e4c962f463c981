"""The steps of a study as the page shows them: answers, and curves of certificates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..acceptance.realised import FULL
from ..report.measured import Target, survival_band
from ..report.style import RULE_FAMILIES
from ..report.text import share_text
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
MOST = 200  # rules times targets that a page of 2.5 MB has room for
OPEN, REJECTED, ACCEPTED, CERTIFIED = range(4)  # what became of a step's draft; open: not judged
POINTS = 121  # of a survival curve
ANSWERS, CANDIDATES, PROMPT = 7, 5, 2000  # answers shown, tokens of a step, characters of a prompt
DIVERGENCES = {  # of stage drafts: printed name and unit
    "kl": ("KL(p‖q)", " nats"),
    FULL: ("KL, completed", " nats"),
    "tv": ("total variation", ""),
    "hellinger": ("Hellinger", ""),
    "reverse_kl": ("reverse KL", " nats"),
}


def digits(value: float, significant: int = 3) -> float | None:
    """Return a number with so many significant digits; None, JSON's null, if it is not finite.

    Examples:
        >>> digits(0.123456), digits(math.inf)
        (0.123, None)
    """
    return float(f"{value:.{significant}g}") if math.isfinite(value) else None


def in_order(rules: Sequence[Rule]) -> list[Rule]:
    """Return rules family by family, each from strict to relaxed as far as a parameter says so."""
    names = [
        *RULE_FAMILIES,
        *dict.fromkeys(rule.name for rule in rules if rule.name not in RULE_FAMILIES),
    ]

    def strictness(rule: Rule) -> list[float]:
        return [sign * rule.parameters[name] for name, sign in rule.relaxes.items()]

    return sorted(rules, key=lambda rule: (names.index(rule.name), strictness(rule)))


def embedded(rules: Sequence[Rule], targets: int) -> list[Rule]:
    """Return the rules that the page has room for with so many targets, in its order."""
    return in_order(rules)[: max(1, MOST // targets)]


def about(target: Target, rules: Sequence[Rule]) -> dict[str, Any]:
    """Return a target's printed name, and the divergence that each rule's steps are judged in."""
    judged_by = [judging_divergence(rule, target.divergence) for rule in rules]
    return {
        "label": target.label,
        "divergences": {name: DIVERGENCES[name] for name in sorted(set(judged_by))},
        "judged_by": judged_by,
    }


def judging_divergence(rule: Rule, divergence: str) -> str:
    """Return the divergence that a rule's steps are judged in, where others are in `divergence`.

    A completed KL certifies no tree, so that trees are judged by total variation beside it.
    """
    return "tv" if divergence == FULL and not rule.judges_tokens else divergence


def contradictions(target: Target) -> int:
    """Return how many decisions are certified for this drafter and rejected: none may be."""
    return sum(int(np.sum(sure & ~kept)) for kept, sure in target.judged.values())


def curves(target: Target, rules: Sequence[Rule]) -> dict[str, Any]:
    """Return the survival curves of a target's certificates, with their pointwise intervals.

    Returns:
        eps, (POINTS,), and of each rule share, low and high, likewise, of the lower ends.
    """
    eps = np.linspace(0, 1.06 * max(rule.ceiling for rule in rules), POINTS)
    found = []
    for rule in rules:
        lower = target.certificates[rule][0]
        low, high = survival_band(lower, eps, target.bootstrap)
        share = 1 - np.searchsorted(np.sort(lower), eps, side="right") / len(lower)
        lines = {"share": share, "low": low, "high": high}
        found.append({name: np.round(line, 4).tolist() for name, line in lines.items()})
    return {"eps": np.round(eps, 4).tolist(), "rules": found}


def evenly_spaced(shares: Floats, count: int = ANSWERS) -> Integers:
    """Return which of P answers are shown: at equal distances in the order of their shares.

    Examples:
        >>> evenly_spaced(np.array([0.5, 0.1, 0.9, 0.3, 0.7]), 3).tolist()
        [1, 0, 2]
    """
    order = np.argsort(shares, kind="stable")
    places = np.linspace(0, len(order) - 1, min(count, len(order)))
    return np.asarray(order[np.round(places).astype(np.intp)])


def answers(target: Target, rules: Sequence[Rule]) -> dict[str, Any]:
    """Return the answers that the page shows of a target, and the one in the middle.

    The first rule decides which: by the share of its accepted tokens, or, without a drafter, by its
    mean certificate.

    Returns:
        `chosen_by`, a sentence; `words`, the text of every token that occurs, by id; `answers`,
        each with its prompt and its steps.
    """
    first, prompts = rules[0], target.bootstrap.prompts
    kept = target.judged.get(first.label)
    values = np.minimum(target.certificates[first][0], first.ceiling) if kept is None else kept[0]
    what = "mean certificate" if kept is None else "share of accepted tokens"
    shares = np.bincount(prompts, weights=values) / target.bootstrap.steps
    begin = np.cumsum(target.bootstrap.steps) - target.bootstrap.steps
    found = [
        {
            "prompt": cut(target.prompts[at][1]),
            "id": target.prompts[at][0],
            "share": f"mean R {shares[at]:.3g} nats"
            if kept is None
            else f"{share_text(shares[at])} accepted",
            "steps": [
                _step(target, step, rules)
                for step in range(begin[at], begin[at] + target.bootstrap.steps[at])
            ],
        }
        for at in evenly_spaced(shares)
    ]
    used = {
        token
        for one in found
        for step in one["steps"]
        for token in (step["t"], *step["c"], step.get("d", step["t"]))
    }
    return {
        "chosen_by": f"{len(found)} answers, evenly spaced from the lowest to the highest {what} "
        f"under {first.title}.",
        "words": {str(token): target.words[token] for token in sorted(used & set(target.words))},
        "answers": found,
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
        judged_by = {judging_divergence(rule, target.divergence) for rule in rules}
        distances = {name: digits(drafted[name]) for name in sorted(judged_by)}
        row |= {"d": int(drafted["token"]), "distances": distances}
    return row


def _fate(target: Target, rule: Rule, step: int) -> int:
    """Return what became of the draft of a step under a rule."""
    if rule.label not in target.judged:
        return OPEN
    kept, sure = target.judged[rule.label]
    return (CERTIFIED if sure[step] else ACCEPTED) if kept[step] else REJECTED


def cut(text: str, most: int = PROMPT) -> str:
    r"""Return a text, cut behind a line or a word where it is long.

    >>> cut("one line\nand two words", 14), cut("one line\nand two words", 30)
    ('one line …', 'one line\nand two words')
    """
    if len(text) <= most:
        return text
    begin = text[:most]
    at = max(begin.rfind("\n"), 0) or max(begin.rfind(" "), 0) or most
    return f"{begin[:at].rstrip()} …"
