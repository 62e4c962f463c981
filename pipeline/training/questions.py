"""Training questions: how they may begin, and which are new.

A beginning is how one may ask, times what about. A question is new when it shares few n-grams of
words with earlier ones, and no long one with the study's prompts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np


def beginnings(
    openings: list[str], topics: list[str], unprompted: float, rng: np.random.Generator
) -> Iterator[str]:
    """Yield beginnings of questions without end.

    Args:
        openings: how one may ask; {} is where the topic goes.
        topics: what about.
        unprompted: the share of questions that get no beginning.
        rng: seeded.
    """
    while True:
        if rng.random() < unprompted:
            yield ""
            continue
        opening = openings[rng.integers(len(openings))]
        topic = topics[rng.integers(len(topics))]
        yield opening.replace("{}", topic)


class Novelty:
    """Knows the questions so far by their n-grams of words; case and punctuation don't count."""

    def __init__(self, study: Iterable[str], n_study: int, n: int, repeated: float) -> None:
        """Keep apart from the prompts `study`.

        Args:
            study: the texts of which no question may share an n-gram of `n_study` words.
            n_study: the words of those n-grams; a shorter text counts as one n-gram.
            n: the words of the n-grams compared between questions.
            repeated: the share of its n-grams that a question may have in common with earlier ones.
        """
        self._n_study, self._n, self._repeated = n_study, n, repeated
        self._study = {gram for text in study for gram in ngrams(text, n_study)}
        self._seen: set[int] = set()

    def refusal(self, text: str) -> str | None:
        """Return why `text` is no new question, or None and remember it."""
        if not ngrams(text, 1):
            return "empty"
        if ngrams(text, self._n_study) & self._study:
            return "in the study"
        grams = ngrams(text, self._n)
        if len(grams & self._seen) > self._repeated * len(grams):
            return "repeated"
        self._seen |= grams
        return None


def ngrams(text: str, n: int) -> set[int]:
    """Return the hashes of the n-grams of words of `text`; all its words where it has fewer.

    Example:
        >>> len(ngrams("One fish, two fish; one fish!", 2))
        4
    """
    words = re.findall(r"\w+", text.lower())
    spans = range(max(len(words) - n, 0) + 1) if words else ()
    return {hash(tuple(words[at : at + n])) for at in spans}
