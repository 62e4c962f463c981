"""The token explorer: answers, token by token, with what is certified and what was drafted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..report.text import share_text
from ..rules import Rule
from ..statistics.bootstrap import Floats, Integers
from .packing import digits
from .steps import TargetSteps

ANSWERS = 12
PROMPT = 400  # characters of a prompt that are shown
CANDIDATES = 5
ORDERS = {"accepted": "share of accepted tokens", "certified": "mean certificate"}


def chosen(shares: Floats, count: int = ANSWERS) -> Integers:
    """Return which of P answers are shown: at equal distances in the order of their shares.

    Example:
        >>> chosen(np.array([0.5, 0.1, 0.9, 0.3, 0.7]), 3).tolist()
        [1, 0, 2]
    """
    order = np.argsort(shares, kind="stable")
    places = np.linspace(0, len(order) - 1, min(count, len(order)))
    return np.asarray(order[np.round(places).astype(np.intp)])


def answers(target: TargetSteps, rules: Sequence[Rule]) -> dict[str, Any]:
    """Return the answers that the page shows of a target.

    The first rule decides which: by the share of its accepted tokens, or, without a drafter, by
    its mean certificate.

    Returns:
        `chosen_by`, a sentence; `words`, the text of every token that occurs, by id; and
        `answers`, each with its prompt, its first step among all, and its steps.
    """
    first = rules[0]
    drafted, prompts = target.drafted, target.bootstrap.prompts
    certificates = {item.rule: item.lower for item in target.certificates}
    accepted = None if drafted is None else drafted.accepted.get(first.label)
    if accepted is not None:
        values, what = accepted.astype(np.float64), "accepted"
    else:
        values, what = np.minimum(certificates[first], first.ceiling), "certified"
    shares = np.bincount(prompts, weights=values) / target.bootstrap.steps
    begin = np.cumsum(target.bootstrap.steps) - target.bootstrap.steps
    found = [
        {
            "prompt": _cut(target.prompts[at][1]),
            "id": target.prompts[at][0],
            "share": _said(shares[at], what),
            "begin": int(begin[at]),
            "steps": [
                _step(target, step, [certificates[rule] for rule in rules])
                for step in range(begin[at], begin[at] + target.bootstrap.steps[at])
            ],
        }
        for at in chosen(shares)
    ]
    used = {token for one in found for step in one["steps"] for token in _tokens(step)}
    return {
        "chosen_by": f"Of the answers in the order of their {ORDERS[what]} under {first.title}, "
        f"{len(found)} at equal distances, the first and the last among them.",
        "words": {str(token): target.words[token] for token in sorted(used & set(target.words))},
        "answers": found,
    }


def _step(target: TargetSteps, step: int, certificates: Sequence[Floats]) -> dict[str, Any]:
    drafted = target.drafted
    row: dict[str, Any] = {
        "t": int(target.tokens[step]),
        "c": target.candidates[step, :CANDIDATES].tolist(),
        "p": [digits(p) for p in target.probabilities[step, :CANDIDATES]],
        "r": [digits(values[step]) for values in certificates],  # null: nothing is rejected
    }
    if drafted is not None:
        row |= {
            "kl": digits(drafted.kl[step]),
            "d": int(drafted.token[step]),
            "q": digits(drafted.probability[step]),
            "pd": digits(drafted.under_target[step]),
        }
    return row


def _tokens(step: dict[str, Any]) -> set[int]:
    return {step["t"], *step["c"], *([step["d"]] if "d" in step else [])}


def _said(share: float, what: str) -> str:
    """Return by what an answer was chosen, in words."""
    return f"{share_text(share)} accepted" if what == "accepted" else f"mean R {share:.3g} nats"


def _cut(text: str) -> str:
    return text if len(text) <= PROMPT else f"{text[:PROMPT].rstrip()} …"
