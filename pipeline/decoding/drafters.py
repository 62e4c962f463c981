"""Drafters propose tokens: a smaller model, a head on the target, or look-up in the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from analysis.decoding.lookup import lookup_draft
from analysis.trees.topology import DynamicTree, Topology
from pipeline.decoding.choices import Choice, Greedy
from pipeline.decoding.shapes import Level, cache_slots, chain, grow, levels_of, readable, within
from pipeline.models.devices import send
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.passes import Text

TreeShape = Topology | DynamicTree


@dataclass(frozen=True)
class Draft:
    """Proposed tokens: a chain, or a tree.

    Attributes:
        tokens: (n,) on the device of the target; in a tree, NOTHING where none could be drafted.
        weights: (r, V) the distributions they were drawn from: of the text so far, and of each
            task with children in order; None when they were not drawn.
        tree: its shape, in level order; None is a chain.
        first: (r,) what chose the first token of each row of a model's logits, finite unless they
            are broken; None where no model drafted.
    """

    tokens: Tensor
    weights: Tensor | None = None
    tree: Topology | None = None
    first: Tensor | None = None

    @property
    def shape(self) -> Topology:
        """Its shape, of a chain too."""
        return chain(len(self.tokens)) if self.tree is None else self.tree

    @property
    def ids(self) -> Tensor:
        """The tokens that the target reads (n,)."""
        return self.tokens if self.tree is None else readable(self.tokens)


class Drafter:
    """Proposes tokens that may follow a text.

    Attributes:
        layers: after how many of the target's layers it reads hidden states; empty is none.
        tree: the shape of its drafts, in level order, where nothing cuts them, or how each grows;
            None is a chain.
    """

    layers: tuple[int, ...] = ()
    tree: TreeShape | None = None

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Read the prompt (n,) of a text of at most `capacity` tokens.

        `hidden` (n, layers, d) are the target's hidden states after each token of the prompt.
        """

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        """Propose up to `count` tokens in a row after `tokens` (prompt and answer so far).

        `position` is that of the first proposed token in the answer.
        """
        raise NotImplementedError

    def accept(self, length: int, path: Sequence[int], hidden: Tensor | None) -> None:
        """Roll back to the first `length` tokens of the text and the accepted drafted tokens.

        `path` are the accepted nodes; `hidden` (1 + accepted, layers, d) the target's states after
        the last known token and after each of them.
        """


class Nothing(Drafter):
    """Proposes nothing: plain autoregressive decoding."""

    def __init__(self, device: torch.device) -> None:
        """Return drafts on `device`."""
        self._draft = nothing(device)

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:  # noqa: ARG002
        """Return an empty draft."""
        return self._draft


class ModelDrafter(Drafter):
    """Decodes with a smaller model, one pass a level."""

    def __init__(
        self, model: LanguageModel | HiddenDrafter, choice: Choice, tree: TreeShape | None = None
    ) -> None:
        """Choose the drafted tokens with `choice`."""
        self.tree = tree
        self.layers = model.layers if isinstance(model, HiddenDrafter) else ()
        self._model, self._choice = model, choice
        self._columns: Mapping[int, int] = {}  # of the nodes read

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:  # noqa: ARG002
        """Read the prompt (n,) of a text of at most `capacity` tokens."""
        self._text = Text(self._model, capacity + room(self.tree))
        self._text.read(prompt)

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        """Decode `count` tokens in a row, or a tree as deep, level by level."""
        device, dtype = self._model.device, self._model.dtype
        if count == 0:
            return nothing(device)
        after_text = self._read_text(tokens)

        def reading(level: Level, before: Tensor | None) -> Tensor:
            return after_text if before is None else self._read_nodes(level, before)

        if isinstance(self.tree, DynamicTree):
            assert isinstance(self._choice, Greedy)  # others are refused: they need a fixed shape
            grown = grow(self.tree, count, reading, self._choice, position, dtype)
            chosen, tree, self._columns, keys = grown
            return Draft(chosen, None, tree, keys)
        cut = chain(count) if self.tree is None else within(self.tree, count)
        self._columns = cache_slots(cut)
        drafted: list[Tensor] = []
        largest, weights = [], []
        for depth, level in enumerate(levels_of(cut, device, dtype)):
            logits = reading(level, drafted[-1] if drafted else None)
            tokens_of, first, drawn_from = self._choice.draft(logits, position, depth, level.width)
            flat = tokens_of.reshape(-1)
            drafted.append(flat if level.children is None else flat[level.children])
            largest.append(first)
            weights += [] if drawn_from is None else [drawn_from]
        drawn = torch.cat(weights) if weights else None
        shape = None if self.tree is None else cut
        return Draft(torch.cat(drafted), drawn, shape, torch.cat(largest))

    def _read_text(self, tokens: Sequence[int]) -> Tensor:
        """Return the logits (1, V) after the text; only its new tokens are read."""
        return self._text.extend(send(tokens[self._text.length :], self._model.device))[-1:]

    def _read_nodes(self, level: Level, before: Tensor) -> Tensor:
        """Return the logits (r, V) after nodes among the tokens of the level before."""
        return self._text.extend(level.read(before), level.tree)

    def accept(self, length: int, path: Sequence[int], hidden: Tensor | None) -> None:  # noqa: ARG002
        """Roll the cache back to the text and the part of the path that was read."""
        self._text.keep(length, [self._columns[task] for task in path if task in self._columns])


class HeadDrafter(ModelDrafter):
    """Decodes with a head that reads the target's hidden states, one pass a level."""

    _model: HiddenDrafter

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Read the prompt (n,) of a text of at most `capacity` tokens."""
        assert hidden is not None
        self._text = Text(self._model, capacity + room(self.tree))
        self._pending = hidden  # (n, layers, d), of tokens whose next has no entry yet
        self._settle(prompt[1:])

    def _settle(self, ids: Tensor) -> Tensor:
        """Read tokens (n,) after pending hidden states; return the logits after the last."""
        hidden, self._pending = self._pending[: len(ids)], self._pending[len(ids) :]
        logits = self._text.extend(ids, None, self._model.head.fuse(hidden[None])[0], keep=1)
        self._settled = self._text.length  # later entries are drafted
        assert self._text.hidden is not None
        self._outputs = self._text.hidden[-1:]  # of the nodes read last
        return logits

    def _read_text(self, tokens: Sequence[int]) -> Tensor:
        return self._settle(send(tokens[self._settled + 1 :], self._model.device))

    def _read_nodes(self, level: Level, before: Tensor) -> Tensor:
        above = self._outputs if level.above is None else self._outputs[level.above]
        logits = self._text.extend(level.read(before), level.tree, above)
        assert self._text.hidden is not None
        self._outputs = self._text.hidden
        return logits

    def accept(self, length: int, path: Sequence[int], hidden: Tensor | None) -> None:  # noqa: ARG002
        """Forget the draft; keep the hidden states of the accepted tokens."""
        assert hidden is not None
        self._text.crop(self._settled)
        self._pending = torch.cat([self._pending, hidden])


class PromptLookup(Drafter):
    """Proposes the continuation of an earlier occurrence of the last few tokens."""

    def __init__(
        self, longest: int, draft_length: int, device: torch.device, match: str = "latest"
    ) -> None:
        """Look for the last `longest` tokens, then for fewer.

        Args:
            longest: tokens.
            draft_length: of a full draft, which `propose` cuts.
            device: of the drafts.
            match: which occurrence, of `analysis.decoding.lookup.MATCHES`.
        """
        self._longest, self._length = longest, draft_length
        self._device, self._match = device, match

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:  # noqa: ARG002
        """Return up to `count` tokens that followed, none without an occurrence."""
        following = lookup_draft(tokens, self._longest, self._length, self._match, count)
        return Draft(send(following, self._device))


def nothing(device: torch.device) -> Draft:
    """Return a draft of no tokens."""
    return Draft(torch.empty(0, dtype=torch.long, device=device))


def room(tree: TreeShape | None) -> int:
    """Return the columns of a cache that drafts need beyond the longest text."""
    if tree is None:
        return 0
    return max(len(tree), 0 if isinstance(tree, Topology) else tree.read)


def model_drafter(
    model: LanguageModel | HiddenDrafter, choice: Choice, tree: TreeShape | None = None
) -> Drafter:
    """Return the drafter of a model of either kind; for the arguments see `ModelDrafter`."""
    kind = HeadDrafter if isinstance(model, HiddenDrafter) else ModelDrafter
    return kind(model, choice, tree)
