"""What proposes tokens: a smaller model, look-up in the text so far, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pipeline.models.feature_head import Entries
from pipeline.models.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
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
    """Proposes tokens that may follow a text.

    Attributes:
        layers: after how many of the target's layers it reads hidden states; empty is none.
    """

    layers: tuple[int, ...]

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Read the prompt (n,) of a text of at most `capacity` tokens.

        `hidden` (n, layers, d) are the target's hidden states after each token of the prompt.
        """

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        """Propose up to `count` tokens after `tokens` (prompt and answer so far).

        `position` is that of the first proposed token in the answer.
        """
        ...

    def accept(self, length: int, hidden: Tensor | None) -> None:
        """Roll back to what is known to be text: its first `length` tokens.

        `hidden` (n, layers, d) are the target's after the last n of them.
        """


class Nothing:
    """Proposes nothing: plain autoregressive decoding."""

    layers: tuple[int, ...] = ()

    def __init__(self, device: torch.device) -> None:
        """Return drafts on `device`."""
        self._draft = Draft(torch.empty(0, dtype=torch.long, device=device))

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Do nothing."""

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:  # noqa: ARG002
        """Return an empty draft."""
        return self._draft

    def accept(self, length: int, hidden: Tensor | None) -> None:
        """Do nothing."""


def choose(choice: Choice, logits: Tensor, position: int, weights: list[Tensor]) -> Tensor:
    """Return the token (1,) chosen from logits (1, V); adds to `weights` what it was drawn from."""
    drawn_from = choice.weights(logits)
    if drawn_from is None:
        return choice(logits, position)
    weights.append(drawn_from)
    return choice.draw(drawn_from, position)  # type: ignore[union-attr]


class ModelDrafter:
    """Decodes with a smaller model, one pass a token."""

    layers: tuple[int, ...] = ()

    def __init__(self, model: LanguageModel, choice: Choice) -> None:
        """Choose the drafted tokens with `choice`."""
        self._choice = choice
        self._model = model

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:  # noqa: ARG002
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
            fresh = choose(self._choice, logits, position + at, weights)
            chosen.append(fresh)
        none = torch.empty(0, dtype=torch.long, device=self._model.device)
        return Draft(torch.cat(chosen) if chosen else none, torch.cat(weights) if weights else None)

    def accept(self, length: int, hidden: Tensor | None) -> None:  # noqa: ARG002
        """Roll the cache back."""
        self._sequence.crop(length)


class HeadDrafter:
    """Decodes with a head that reads the target's hidden states, one pass a token."""

    def __init__(self, model: HiddenDrafter, choice: Choice) -> None:
        """Choose the drafted tokens with `choice`."""
        self.layers = model.layers
        self._choice = choice
        self._model = model

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Read the prompt (n,) of a text of at most `capacity` tokens."""
        assert hidden is not None
        self._entries = Entries(self._model.head, capacity)
        self._pending = hidden  # (n, layers, d), of tokens whose next has no entry yet
        self._read_text(prompt[1:])
        self._settled = self._entries.length  # the others are drafted

    def _read_text(self, ids: Tensor) -> Tensor:
        """Read tokens (n,) of the text after pending hidden states; return the outputs (n, d)."""
        hidden, self._pending = self._pending[: len(ids)], self._pending[len(ids) :]
        fused = self._model.head.fuse(hidden[None])[0]
        return self._entries.read(self._model.embed(ids), fused)

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        """Decode `count` tokens."""
        device = self._model.device
        if count == 0:
            return Draft(torch.empty(0, dtype=torch.long, device=device))
        fresh = torch.tensor(tokens[self._settled + 1 :], device=device)
        output = self._read_text(fresh)[-1:]
        self._settled = self._entries.length
        chosen: list[Tensor] = []
        weights: list[Tensor] = []
        for at in range(count):
            if at > 0:
                output = self._entries.read(self._model.embed(chosen[-1]), output)
            chosen.append(choose(self._choice, self._model.logits(output), position + at, weights))
        return Draft(torch.cat(chosen), torch.cat(weights) if weights else None)

    def accept(self, length: int, hidden: Tensor | None) -> None:  # noqa: ARG002
        """Forget what was drafted; keep the hidden states of what was accepted."""
        assert hidden is not None
        self._entries.crop(self._settled)
        self._pending = torch.cat([self._pending, hidden])


def model_drafter(model: LanguageModel | HiddenDrafter, choice: Choice) -> Drafter:
    """Return what decodes with a model, of either kind."""
    if isinstance(model, HiddenDrafter):
        return HeadDrafter(model, choice)
    return ModelDrafter(model, choice)


class LookupFirst:
    """Proposes what look-up finds, and where it finds nothing what another drafter proposes."""

    def __init__(self, lookup: PromptLookup, other: Drafter) -> None:
        """Look up first."""
        self.layers = other.layers
        self._lookup, self._other = lookup, other

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Let the other drafter read the prompt."""
        self._other.begin(prompt, capacity, hidden)

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        """Propose up to `count` tokens."""
        found = self._lookup.propose(tokens, count, position)
        return found if len(found.tokens) else self._other.propose(tokens, count, position)

    def accept(self, length: int, hidden: Tensor | None) -> None:
        """Tell the other drafter."""
        self._other.accept(length, hidden)


class PromptLookup:
    """Proposes what followed the latest earlier occurrence of the last few tokens."""

    layers: tuple[int, ...] = ()

    def __init__(self, longest: int, device: torch.device, shortest: int = 1) -> None:
        """Look for the last `longest` tokens, then for fewer, down to `shortest`."""
        self._longest, self._shortest = longest, shortest
        self._device = device

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Do nothing."""

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:  # noqa: ARG002
        """Return the `count` tokens that followed, none without an occurrence."""
        found = continuation(tokens, self._longest, count, self._shortest)
        return Draft(torch.tensor(found, dtype=torch.long, device=self._device))

    def accept(self, length: int, hidden: Tensor | None) -> None:
        """Do nothing."""


def continuation(tokens: Sequence[int], longest: int, count: int, shortest: int = 1) -> list[int]:
    """Return what followed the latest earlier occurrence of the last n tokens.

    Of n from `shortest` to `longest` the longest that occurs is taken. What follows may run into
    the end of the text: it then goes on with itself, so that a text that repeats is drafted as
    repeating.
    """
    text = list(tokens)
    size = len(text)
    for n in range(min(longest, size - 1), shortest - 1, -1):
        wanted, last = text[-n:], text[-1]
        for end in range(size - 2, n - 2, -1):
            if text[end] == last and text[end - n + 1 : end + 1] == wanted:
                for at in range(end + 1, end + 1 + count):
                    text.append(text[at])
                return text[size:]
    return []
