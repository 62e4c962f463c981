"""One answer of a target, token by token, and what becomes of each step under every rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..rules import Rule
from .measured import Target
from .style import RULE_FAMILIES
from .text import share_text

EPS = (
    0.1  # nats: the KL of the drafters that steps are certified for where the study has no drafter
)
FATES = ("open", "rejected", "accepted", "certified")  # of a step, by the digit that stands for it
PROMPT = 100  # characters of a prompt


@dataclass(frozen=True)
class Answer:
    """The median answer.

    Attributes:
        prompt: the beginning of its prompt.
        words: the text of each token.
        rules: title of a rule, its shares of the answer in words and, a digit a token, the place in
            `FATES`.
    """

    prompt: str
    words: list[str]
    rules: list[tuple[str, str, str]]


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
        [target.words.get(token, f"#{token}") for token in target.tokens[chosen].tolist()],
        [(rule.title, *fates(target, rule, chosen)) for rule in rules],
    )


def fates(target: Target, rule: Rule, chosen: slice) -> tuple[str, str]:
    """Return the shares of the chosen steps, and what becomes of each, as in `Answer.rules`."""
    judged = target.judged.get(rule.label)
    if judged is None:
        certified = target.certificates[rule][0][chosen] > EPS
        places = certified * FATES.index("certified")
        shares = f"{share_text(certified.mean())} certified"
    else:
        accepted, certified = judged.accepted[chosen], judged.certified[chosen]
        places = 1 + accepted + certified
        both = share_text(accepted.mean()), share_text(certified.mean())
        shares = "{} accepted, {} certified".format(*both)
    return shares, "".join(map(str, places.tolist()))
