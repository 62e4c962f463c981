"""One answer of a target, token by token, and what becomes of each step under every rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..rules import Rule
from .measured import Target
from .style import RULE_FAMILIES
from .text import share_text

EPS = 0.1  # nats: the KL of the drafters for which a step is outlined
# what becomes of a step, by the character that stands for it; "open" is not judged
FATES = tuple(
    fate + within
    for within in ("", " within")
    for fate in ("open", "rejected", "accepted", "certified")
)
PROMPT = 100  # characters of a prompt


@dataclass(frozen=True)
class Answer:
    """The median answer.

    Attributes:
        prompt: the beginning of its prompt.
        share: by which it is the median, in words.
        words: the text of each token.
        fates: title of a rule and, a character a token, the place in `FATES`.
    """

    prompt: str
    share: str
    words: list[str]
    fates: list[tuple[str, str]]


def in_order(rules: Sequence[Rule]) -> list[Rule]:
    """Return rules by family, and from strict to relaxed within a family where that is defined."""
    names = [
        *RULE_FAMILIES,
        *dict.fromkeys(rule.name for rule in rules if rule.name not in RULE_FAMILIES),
    ]

    def strictness(rule: Rule) -> list[float]:
        return [sign * rule.parameters[name] for name, sign in rule.relaxes.items()]

    return sorted(rules, key=lambda rule: (names.index(rule.name), strictness(rule)))


def median_answer(target: Target) -> Answer:
    """Return the median answer of a target.

    It is the median by the first rule: of the share of accepted tokens or, without a drafter, of
    the mean certificate.
    """
    rules = in_order(list(target.certificates))
    first, prompts, steps = rules[0], target.bootstrap.prompts, target.bootstrap.steps
    judged = target.judged.get(first.label)
    values = (
        np.minimum(target.certificates[first][0], first.ceiling)
        if judged is None
        else judged.accepted
    )
    shares = np.bincount(prompts, weights=values) / steps
    prompt = int(np.argsort(shares, kind="stable")[round((len(shares) - 1) / 2)])
    text = target.prompts[prompt][1]
    begun = text[:PROMPT]
    begin = int(steps[:prompt].sum())
    chosen = slice(begin, begin + int(steps[prompt]))
    return Answer(
        text if len(text) <= PROMPT else f"{begun.rpartition(' ')[0] or begun} …",
        f"mean R {shares[prompt]:.3g} nats"
        if judged is None
        else f"{share_text(shares[prompt])} accepted",
        [target.words.get(token, f"#{token}") for token in target.tokens[chosen].tolist()],
        [(rule.title, fates(target, rule, chosen)) for rule in rules],
    )


def fates(target: Target, rule: Rule, chosen: slice) -> str:
    """Return what becomes of the chosen steps under a rule, as in `Answer.fates`."""
    within = target.certificates[rule][0][chosen] > EPS
    places = within * (len(FATES) // 2)
    if rule.label in target.judged:
        judged = target.judged[rule.label]
        places = places + 1 + judged.accepted[chosen] + judged.certified[chosen]
    return "".join(map(str, places.tolist()))
