"""What proposes tokens: a smaller model, look-up in the text so far, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pipeline.models.load import LanguageModel
from pipeline.stages.decoding.choices import Choice
from pipeline.stages.decoding.sequence import CachedSequence


@dataclass(frozen=True)
class Draft:
    """Proposed tokens: a chain, or a tree.

    Attributes:
        tokens: (n,) on the device of the target.
        weights: (n, V) the distribution each token was drawn from; None when it was not drawn.
        parents: for a tree, the index of what each token follows, -1 for the text so far; None
            is a chain.
    """

    tokens: Tensor
    weights: Tensor | None = None
    parents: tuple[int, ...] | None = None


class Drafter(Protocol):
    """Proposes tokens that may follow a text."""

    def begin(self, prompt: Tensor, capacity: int) -> None:
        """Read the prompt (n,) of a text of at most `capacity` tokens."""

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        """Propose up to `count` tokens after `tokens` (prompt and answer so far).

        `position` is that of the first proposed token in the answer.
        """
        ...

    def accept(self, length: int) -> None:
        """Roll back to what is known to be text: its first `length` tokens."""


class Nothing:
    """Proposes nothing: plain autoregressive decoding."""

    def __init__(self, device: torch.device) -> None:
        """Return drafts on `device`."""
        self._draft = Draft(torch.empty(0, dtype=torch.long, device=device))

    def begin(self, prompt: Tensor, capacity: int) -> None:
        """Do nothing."""

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:  # noqa: ARG002
        """Return an empty draft."""
        return self._draft

    def accept(self, length: int) -> None:
        """Do nothing."""


class ModelDrafter:
    """Decodes with a smaller model, one pass a token."""

    def __init__(self, model: LanguageModel, choice: Choice) -> None:
        """Choose the drafted tokens with `choice`."""
        self._choice = choice
        self._model = model

    def begin(self, prompt: Tensor, capacity: int) -> None:
        """Read the prompt (n,) of a text of at most `capacity` tokens."""
        self._sequence = CachedSequence(self._model, capacity)
        self._sequence.read(prompt)

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        """Decode `count` tokens."""
        fresh = torch.tensor(tokens[self._sequence.length :], device=self._model.device)
        chosen: list[Tensor] = []
        weights: list[Tensor] = []
        for at in range(count):
            logits = self._sequence.extend(fresh)[-1:]
            fresh = self._choose(logits, position + at, weights)
            chosen.append(fresh)
        none = torch.empty(0, dtype=torch.long, device=self._model.device)
        return Draft(torch.cat(chosen) if chosen else none, torch.cat(weights) if weights else None)

    def _choose(self, logits: Tensor, position: int, weights: list[Tensor]) -> Tensor:
        drawn_from = self._choice.weights(logits)
        if drawn_from is None:
            return self._choice(logits, position)
        weights.append(drawn_from)
        return self._choice.draw(drawn_from, position)  # type: ignore[union-attr]

    def accept(self, length: int) -> None:
        """Roll the cache back."""
        self._sequence.crop(length)


class PromptLookup:
    """Proposes what followed the latest earlier occurrence of the last few tokens."""

    def __init__(self, longest: int, device: torch.device) -> None:
        """Look for the last `longest` tokens, then for fewer, down to one."""
        self._longest = longest
        self._device = device

    def begin(self, prompt: Tensor, capacity: int) -> None:
        """Do nothing."""

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:  # noqa: ARG002
        """Return the `count` tokens that followed, none without an occurrence."""
        found = continuation(tokens, self._longest, count)
        return Draft(torch.tensor(found, dtype=torch.long, device=self._device))

    def accept(self, length: int) -> None:
        """Do nothing."""


def continuation(tokens: Sequence[int], longest: int, count: int) -> list[int]:
    """Return what followed the latest earlier occurrence of the last n tokens, n <= `longest`.

    The longest n that occurs is taken. What follows may run into the end of the text: it then
    goes on with itself, so that a text that repeats is drafted as repeating.
    """
    text = list(tokens)
    size = len(text)
    for n in range(min(longest, size - 1), 0, -1):
        wanted, last = text[-n:], text[-1]
        for end in range(size - 2, n - 2, -1):
            if text[end] == last and text[end - n + 1 : end + 1] == wanted:
                for at in range(end + 1, end + 1 + count):
                    text.append(text[at])
                return text[size:]
    return []
