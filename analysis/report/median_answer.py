"""One answer of a target, token by token, with the outcome of each step under every rule."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..acceptance.target import Target
from ..rules import Rule
from .results import ASSUMED_KL
from .text import percent_text

# the outcomes of a step; the page encodes each as one digit, its index here
STEP_OUTCOMES = ("open", "rejected", "accepted", "certified")
PROMPT_LENGTH = 100  # characters of a prompt


class PrintedAnswer(NamedTuple):
    """One answer of a target."""

    prompt: str  # the beginning of its prompt
    words: list[str]  # the text of each token
    # for each rule: its title; the accepted and certified shares of the answer, as text; and a
    # digit for each token, the index of its outcome in `STEP_OUTCOMES`
    rules: list[tuple[str, str, str]]


def median_answer(target: Target) -> PrintedAnswer:
    """Return the answer of median acceptance under the study's first rule.

    Without a drafter, answers are ranked by their mean certificate instead.
    """
    answer = _median_index(target)
    steps = target.bootstrap.answer_steps
    begin = int(steps[:answer].sum())
    chosen = slice(begin, begin + int(steps[answer]))
    return PrintedAnswer(
        _shortened(target.prompt_texts[answer]),
        [target.words.get(token, f"#{token}") for token in target.tokens[chosen].tolist()],
        [(rule.title, *_outcomes(target, rule, chosen)) for rule in target.certificates],
    )


def _median_index(target: Target) -> int:
    first = next(iter(target.certificates))
    if target.judged:
        values = target.judged[first.label].accepted.astype(float)
    else:
        values = np.minimum(target.certificates[first][0], first.ceiling)
    sums = np.bincount(target.bootstrap.answer_index, weights=values)
    means = sums / target.bootstrap.answer_steps
    order = np.argsort(means, kind="stable")
    return int(order[round((len(means) - 1) / 2)])


def _shortened(prompt: str) -> str:
    if len(prompt) <= PROMPT_LENGTH:
        return prompt
    begun = prompt[:PROMPT_LENGTH]
    return f"{begun.rpartition(' ')[0] or begun} …"


def _outcomes(target: Target, rule: Rule, chosen: slice) -> tuple[str, str]:
    """Return the shares of the chosen steps as text, and the digits of their outcomes."""
    judged = target.judged.get(rule.label)
    if judged is None:
        certified = target.certificates[rule][0][chosen] > ASSUMED_KL
        outcomes = certified * STEP_OUTCOMES.index("certified")
        shares = f"{percent_text(certified.mean())} certified"
    else:
        accepted = judged.accepted[chosen]
        certified = judged.certified[chosen]
        outcomes = 1 + accepted + certified  # what is certified is accepted
        shares = (
            f"{percent_text(accepted.mean())} accepted, {percent_text(certified.mean())} certified"
        )
    return shares, "".join(map(str, outcomes.tolist()))
