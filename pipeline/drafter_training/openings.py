"""The beginnings of training questions: how one may ask, times what about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np


class Openings:
    """Seeded draws from two lists, one line an entry; {} in the first is where the topic goes."""

    def __init__(self, openings: Path, topics: Path, unprompted: float) -> None:
        """Read both lists; the share `unprompted` of all questions gets no beginning."""
        self._openings = openings.read_text().splitlines()
        self._topics = topics.read_text().splitlines()
        self._unprompted = unprompted

    def draw(self, rng: np.random.Generator) -> Iterator[str]:
        """Yield beginnings without end."""
        while True:
            if rng.random() < self._unprompted:
                yield ""
                continue
            opening = self._openings[rng.integers(len(self._openings))]
            topic = self._topics[rng.integers(len(self._topics))]
            yield opening.replace("{}", topic)
