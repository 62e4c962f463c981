"""What proposes tokens: a smaller model, a head on the target, or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from analysis.trees.topology import Growth, Topology
from pipeline.decoding.choices import Choice, Greedy, Race
from pipeline.decoding.growth import grow
from pipeline.decoding.shapes import Level, columns, levels, parents, readable, within
from pipeline.models.devices import send
from pipeline.models.fixed_passes import Passes
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.passes import Text

Stop = Callable[[Tensor], bool]  # whether a chain ends before the token with logits (1, V)


@dataclass(frozen=True)
class Draft:
    """Proposed tokens: a chain, or a tree.

    Attributes:
        tokens: (n,) on the device of the target; in a tree, NOTHING where none could be drafted.
        weights: (r, V) the distributions they were drawn from: of the text so far, and of each
            node with children in order; None when they were not drawn.
        tree: its shape, in level order; None is a chain.
        first: (r,) what chose the first token of each row of a model's logits, finite unless they
            are broken; None where no model drafted.
    """

    tokens: Tensor
    weights: Tensor | None = None
    tree: Topology | None = None
    first: Tensor | None = None

    @property
    def ids(self) -> Tensor:
        """What a target reads (n,)."""
        return self.tokens if self.tree is None else readable(self.tokens)


Shape = Topology | Growth


class Drafter(Protocol):
    """Proposes tokens that may follow a text.

    Attributes:
        layers: after how many of the target's layers it reads hidden states; empty is none.
        tree: the shape of its drafts, in level order, where nothing cuts them, or how each grows;
            None is a chain.
    """

    layers: tuple[int, ...]
    tree: Shape | None

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Read the prompt (n,) of a text of at most `capacity` tokens.

        `hidden` (n, layers, d) are the target's hidden states after each token of the prompt.
        """

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        """Propose up to `count` tokens in a row after `tokens` (prompt and answer so far).

        `position` is that of the first proposed token in the answer.
        """
        ...

    def accept(self, known: int, path: Sequence[int], hidden: Tensor | None) -> None:
        """Roll back to the first `known` tokens of the text and what was accepted of the draft.

        `path` are the accepted nodes; `hidden` (1 + accepted, layers, d) the target's states after
        the last known token and after each of them.
        """


class Nothing:
    """Proposes nothing: plain autoregressive decoding."""

    layers: tuple[int, ...] = ()
    tree: Shape | None = None

    def __init__(self, device: torch.device) -> None:
        """Return drafts on `device`."""
        self._draft = nothing(device)

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Do nothing."""

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:  # noqa: ARG002
        """Return an empty draft."""
        return self._draft

    def accept(self, known: int, path: Sequence[int], hidden: Tensor | None) -> None:
        """Do nothing."""


def draft_levels(
    tree: Topology | None,
    passes: Sequence[Level],
    read: Callable[[Level, Tensor | None], Tensor],
    choice: Choice,
    position: int,
    stop: Stop | None = None,
) -> Draft:
    """Draft the levels of a tree one after the other; those of a chain have one token each.

    Args:
        tree: its shape; None is a chain.
        passes: one for each level that is drafted, at least one.
        read: gives the logits (r, V) after the nodes of a pass that have children, from the tokens
            of the level before; from None those after the text.
        choice: of the children.
        position: of the first proposed token in the answer.
        stop: says from the logits of the next token that a chain ends before it.
    """
    chosen: list[Tensor] = []
    weights: list[Tensor] = []
    firsts: list[Tensor] = []
    for depth, level in enumerate(passes):
        logits = read(level, chosen[-1] if chosen else None)
        if stop is not None and stop(logits):
            break
        tokens, first, distributions = choice.draft(logits, position, depth, level.width)
        chosen.append(level.drafted(tokens))
        firsts.append(first)
        if distributions is not None:
            weights.append(distributions)
    if not chosen:
        return nothing(logits.device)
    drawn_from = torch.cat(weights) if weights else None
    return Draft(torch.cat(chosen), drawn_from, tree, torch.cat(firsts))


class ModelDrafter:
    """Decodes with a smaller model, one pass a level."""

    layers: tuple[int, ...] = ()

    def __init__(
        self,
        model: LanguageModel,
        choice: Choice,
        tree: Shape | None = None,
        stop: Stop | None = None,
        passes: Passes | None = None,
    ) -> None:
        """Choose the drafted tokens with `choice`, until `stop`; `tree` is in level order.

        With `passes` of the model, the shapes of its passes are fixed; else they grow.
        """
        self.tree = tree
        self._stop = stop
        self._choice = choice
        self._model = model
        self._passes = passes
        self._columns: Mapping[int, int] | None = None  # of the nodes read; None of a chain

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:  # noqa: ARG002
        """Read the prompt (n,) of a text of at most `capacity` tokens."""
        capacity += room(self.tree)
        self._text = Text(self._model, capacity, (), widest(self.tree), self._passes)
        self._text.read(prompt)

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        """Decode `count` tokens in a row, or a tree as deep."""
        if count == 0:
            return nothing(self._model.device)
        fresh = send(tokens[self._text.length :], self._model.device)

        def read(level: Level, before: Tensor | None) -> Tensor:
            if before is None:
                return self._text.extend(fresh)[-1:]
            return self._text.extend(level.read(before), level.tree)

        like = (self._model.device, self._model.module.dtype)
        draft, self._columns = drafted(
            self.tree, count, read, self._choice, position, like, self._stop
        )
        return draft

    def accept(self, known: int, path: Sequence[int], hidden: Tensor | None) -> None:  # noqa: ARG002
        """Roll the cache back to the text and what was read of the path."""
        if self._columns is not None:
            path = [self._columns[node] for node in path if node in self._columns]
        self._text.keep(known, path)


class HeadDrafter:
    """Decodes with a head that reads the target's hidden states, one pass a level."""

    def __init__(
        self,
        model: HiddenDrafter,
        choice: Choice,
        tree: Shape | None = None,
        stop: Stop | None = None,
        passes: Passes | None = None,
        draft_length: int = 1,
    ) -> None:
        """Choose the drafted tokens with `choice`, until `stop`; `tree` is in level order.

        With `passes` of the model, the shapes of its passes are fixed; else they grow. The text
        that follows drafts of at most `draft_length` tokens in a row is then read in one.
        """
        self.layers = model.layers
        self._stop = stop
        self.tree = tree
        self._choice = choice
        self._model = model
        self._passes = passes
        self._longest = max(draft_length + 1, widest(tree))

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Read the prompt (n,) of a text of at most `capacity` tokens."""
        assert hidden is not None
        capacity += room(self.tree)
        self._text = Text(self._model, capacity, (), self._longest, self._passes)
        self._pending = hidden  # (n, layers, d), of tokens whose next has no entry yet
        self._read_text(prompt[1:])

    def _read_text(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Read tokens (n,) after pending hidden states; return the last output and its logits."""
        hidden, self._pending = self._pending[: len(ids)], self._pending[len(ids) :]
        logits = self._text.extend(ids, None, self._model.head.fuse(hidden[None])[0], keep=1)
        self._settled = self._text.length  # later entries are drafted
        assert self._text.hidden is not None
        return self._text.hidden[-1:], logits

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        """Decode `count` tokens in a row, or a tree as deep."""
        device = self._model.device
        if count == 0:
            return nothing(device)
        outputs, logits = self._read_text(send(tokens[self._settled + 1 :], device))

        def read(level: Level, before: Tensor | None) -> Tensor:
            nonlocal outputs, logits
            if before is not None:
                above = outputs if level.above is None else outputs[level.above]
                logits = self._text.extend(level.read(before), level.tree, above)
                assert self._text.hidden is not None
                outputs = self._text.hidden
            return logits

        like = (device, outputs.dtype)
        return drafted(self.tree, count, read, self._choice, position, like, self._stop)[0]

    def accept(self, known: int, path: Sequence[int], hidden: Tensor | None) -> None:  # noqa: ARG002
        """Forget what was drafted; keep the hidden states of what was accepted."""
        assert hidden is not None
        self._text.crop(self._settled)
        self._pending = torch.cat([self._pending, hidden])


def nothing(device: torch.device) -> Draft:
    """Return a draft of no tokens."""
    return Draft(torch.empty(0, dtype=torch.long, device=device))


def room(tree: Shape | None) -> int:
    """Return how many columns a cache needs for drafts beyond those of the longest text."""
    if tree is None:
        return 0
    return max(len(tree), 0 if isinstance(tree, Topology) else tree.read)


def widest(tree: Shape | None) -> int:
    """Return the most tokens of a pass of a model that drafts.

    At least the two after a draft that was accepted whole, whose last token was not read yet. Text
    that other drafters found may be longer.
    """
    if tree is None:
        return 2
    if isinstance(tree, Growth):
        return max(2, tree.width)
    return max([2, *Counter(tree.depths[node] for node in parents(tree)[1:]).values()])


def drafted(
    tree: Shape | None,
    count: int,
    read: Callable[[Level, Tensor | None], Tensor],
    choice: Choice,
    position: int,
    like: tuple[torch.device, torch.dtype],
    stop: Stop | None = None,
) -> tuple[Draft, Mapping[int, int] | None]:
    """Draft a chain of `count` tokens, or the part of a tree of at most as many levels.

    `like` are device and type of the drafter's attention; for the others see `draft_levels`.

    Returns:
        The draft, and where each node that was read lies in the drafter's cache after the text;
        None of a chain.
    """
    if tree is None:
        return draft_levels(None, [Level()] * count, read, choice, position, stop), None
    if isinstance(tree, Growth):
        assert isinstance(choice, Greedy | Race)  # others are refused: they need a fixed shape
        tokens, shape, where, largest = grow(tree, count, read, choice, position, like[1])
        return Draft(tokens, None, shape, largest), where
    cut = within(tree, count)
    passes = levels(cut, *like)
    return draft_levels(cut, passes, read, choice, position), columns(cut)


def model_drafter(
    model: LanguageModel | HiddenDrafter,
    choice: Choice,
    tree: Shape | None = None,
    stop: Stop | None = None,
    passes: Passes | None = None,
    draft_length: int = 1,
) -> Drafter:
    """Return what decodes with a model, of either kind; `tree` is in level order.

    For `passes` and `draft_length` see `HeadDrafter`.
    """
    if isinstance(model, HiddenDrafter):
        return HeadDrafter(model, choice, tree, stop, passes, draft_length)
    return ModelDrafter(model, choice, tree, stop, passes)
