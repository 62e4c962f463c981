"""Drafts that are found in the text so far: prompt look-up, alone or before another drafter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pipeline.decoding.drafters import Draft, Drafter
from pipeline.models.devices import send

SHORTEST = 2  # tokens of a match, where longer ones are looked for: see docs/decoding.md


class PromptLookup(Drafter):
    """Proposes what followed the latest earlier occurrence of the last few tokens."""

    def __init__(self, longest: int, device: torch.device) -> None:
        """Look for the last `longest` tokens, then for fewer, down to `SHORTEST`."""
        self._longest, self._shortest = longest, min(longest, SHORTEST)
        self._device = device

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:  # noqa: ARG002
        """Return the `count` tokens that followed, none without an occurrence."""
        found = continuation(tokens, self._longest, count, self._shortest)
        return Draft(send(found, self._device))


class LookupFirst(Drafter):
    """Proposes what look-up finds, and where it finds nothing what another drafter proposes."""

    def __init__(self, lookup: PromptLookup, other: Drafter, longest: int | None = None) -> None:
        """Look up first; the other drafter proposes at most `longest` tokens, None is all."""
        self.layers, self.tree = other.layers, other.tree
        self._lookup, self._other, self._longest = lookup, other, longest

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Let the other drafter read the prompt."""
        self._other.begin(prompt, capacity, hidden)

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        """Propose up to `count` tokens."""
        found = self._lookup.propose(tokens, count, position)
        self._found = len(found.tokens) > 0
        if self._found:
            return found
        return self._other.propose(tokens, min(count, self._longest or count), position)

    def accept(self, known: int, path: Sequence[int], hidden: Tensor | None) -> None:
        """Tell the other drafter, of whose drafts nothing was accepted where look-up found some."""
        self._other.accept(known, () if self._found else path, hidden)


def continuation(tokens: Sequence[int], longest: int, count: int, shortest: int = 1) -> list[int]:
    """Return what followed the latest earlier occurrence of the last n tokens.

    Of n from `shortest` to `longest` the longest that occurs is taken. What follows may run into
    the end of the text: it then goes on with itself, so that a text that repeats is drafted as
    repeating.
    """
    text = np.array(tokens)
    size = len(text)
    ends = np.arange(size - 1)  # where an occurrence of the last n tokens ends
    matched = 0
    for n in range(1, min(longest, size - 1) + 1):
        found = ends[(ends >= n - 1) & (text[ends - n + 1] == text[-n])]
        if not len(found):
            break
        ends, matched = found, n
    if matched < shortest or not matched:
        return []
    begin = int(ends[-1]) + 1
    return [int(text[begin + at % (size - begin)]) for at in range(count)]
