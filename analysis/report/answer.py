"""One answer of a target, token by token, and what becomes of each step under every rule."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..rules import Rule
from .results import Target
from .text import percent_text

EPS = 0.1  # nats: the KL of the drafters that steps are certified for in a study without one
FATES = ("open", "rejected", "accepted", "certified")  # of a step, by the digit that stands for it
PROMPT = 100  # characters of a prompt


class Answer(NamedTuple):
    """The median answer."""

    prompt: str  # the beginning of its prompt
    words: list[str]  # the text of each token
    # title of a rule, its shares of the answer in words and, a digit a token, the place in `FATES`
    rules: list[tuple[str, str, str]]


def median_answer(target: Target) -> Answer:
    """Return the answer with the median share of tokens that the study's first rule accepts.

    Without a drafter it is that of the median mean certificate.
    """
    first, *_ = target.certificates
    steps = target.bootstrap.steps
    values = np.minimum(target.certificates[first][0], first.ceiling)
    if target.judged:
        values = target.judged[first.label].accepted.astype(float)
    shares = np.bincount(target.bootstrap.prompts, weights=values) / steps
    answer = int(np.argsort(shares, kind="stable")[round((len(shares) - 1) / 2)])
    begin, text = int(steps[:answer].sum()), target.prompts[answer]
    chosen, begun = slice(begin, begin + int(steps[answer])), text[:PROMPT]
    return Answer(
        text if len(text) <= PROMPT else f"{begun.rpartition(' ')[0] or begun} …",
        [target.words.get(token, f"#{token}") for token in target.tokens[chosen].tolist()],
        [(rule.title, *_fates(target, rule, chosen)) for rule in target.certificates],
    )


def _fates(target: Target, rule: Rule, chosen: slice) -> tuple[str, str]:
    """Return the shares of the chosen steps, and what becomes of each, as in `Answer.rules`."""
    judged = target.judged.get(rule.label)
    if judged is None:
        certified = target.certificates[rule][0][chosen] > EPS
        places = certified * FATES.index("certified")
        shares = f"{percent_text(certified.mean())} certified"
    else:
        accepted, certified = judged.accepted[chosen], judged.certified[chosen]
        places = 1 + accepted + certified
        shares = (
            f"{percent_text(accepted.mean())} accepted, {percent_text(certified.mean())} certified"
        )
    return shares, "".join(map(str, places.tolist()))
