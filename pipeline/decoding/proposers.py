"""Proposers draft the tokens of one answer: by a model, by a head, or from the text alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from analysis.trees.topology import DynamicTree, Topology
from pipeline.decoding.sampling import GreedySampler, Sampler
from pipeline.decoding.tree_drafting import (
    AncestorMask,
    Draft,
    DynamicTreeBuilder,
    StaticTreeBuilder,
    chain,
    readable,
    within,
)
from pipeline.models.devices import send
from pipeline.models.eagle3.drafter import Eagle3Drafter
from pipeline.models.kv_session import KVSession, TreePass
from pipeline.models.language_model import LanguageModel

TreeShape = Topology | DynamicTree


class Proposer:
    """Proposes tokens that may follow a text. This one proposes nothing: the target decodes alone.

    Attributes:
        layers: after how many of the target's layers it reads hidden states; empty is none.
        tree: the shape of its drafts, in level order, where nothing cuts them, or how each grows;
            None is a chain.
    """

    layers: tuple[int, ...] = ()
    tree: TreeShape | None = None

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Read the prompt (1, n) of a text of at most `capacity` tokens.

        `hidden` (1, n, layers, d) are the target's hidden states after each token of the prompt.
        """

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:  # noqa: ARG002
        """Propose up to `count` tokens in a row after `tokens`, from `position` of the answer."""
        return empty_draft(self.device)

    def accept(self, length: int, path: Sequence[int], hidden: Tensor | None) -> None:
        """Roll back to the first `length` tokens of the text and the accepted drafted tokens.

        `path` are the accepted nodes, p of them; `hidden` (1, 1 + p, layers, d) the states after
        the last known token and each of them, of the target.
        """


class ModelProposer(Proposer):
    """Decodes with a smaller model, one pass a level."""

    def __init__(
        self, model: LanguageModel | Eagle3Drafter, sampler: Sampler, tree: TreeShape | None = None
    ) -> None:
        super().__init__(model.device)
        self.tree = tree
        self._model = model
        self._sampler = sampler
        self._columns: Mapping[int, int] = {}  # in the cache after the text, of the nodes read

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:  # noqa: ARG002
        """Read the prompt."""
        columns = capacity + extra_columns(self.tree)
        self._session = KVSession(self._model, columns, drafts=True)
        self._session.prefill(prompt)

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        """Decode `count` tokens in a row, or a tree as deep, level by level."""
        if count == 0:
            return empty_draft(self.device)
        builder = self._builder(count, position)
        mask = AncestorMask(self.device, self._model.dtype)
        builder.add(self._read_text(tokens))
        for _ in range(1, builder.depth):
            nodes, parents = builder.inner()
            tree = None if parents is None else mask.descend(parents)
            builder.add(self._read_nodes(readable(nodes)[None], parents, tree))
        draft, self._columns = builder.draft()
        return draft

    def _builder(self, count: int, position: int) -> StaticTreeBuilder | DynamicTreeBuilder:
        if isinstance(self.tree, DynamicTree):
            # configuration refuses other samplers here: they need a fixed shape
            assert isinstance(self._sampler, GreedySampler)
            return DynamicTreeBuilder(self.tree, count, self._sampler, position)
        shape = chain(count) if self.tree is None else within(self.tree, count)
        return StaticTreeBuilder(shape, self._sampler, position, self.device)

    def _read_text(self, tokens: Sequence[int]) -> Tensor:
        """Return the logits (1, V) after the text; only its new tokens are read."""
        new = send(tokens[self._session.length :], self.device)
        return self._session.append(new[None])[0, -1:]

    def _read_nodes(self, ids: Tensor, parents: Tensor | None, tree: TreePass | None) -> Tensor:  # noqa: ARG002
        """Return the logits (r, V) after nodes (1, r), whose parents are rows of the last pass."""
        return self._session.append(ids, tree)[0]

    def accept(self, length: int, path: Sequence[int], hidden: Tensor | None) -> None:  # noqa: ARG002
        """Roll the cache back to the text and the part of the path that was read."""
        read = [self._columns[node] for node in path if node in self._columns]
        self._session.commit_path(length, read)


class Eagle3Proposer(ModelProposer):
    """Decodes with a head that reads the target's hidden states, one pass a level."""

    _model: Eagle3Drafter

    def __init__(
        self, model: Eagle3Drafter, sampler: Sampler, tree: TreeShape | None = None
    ) -> None:
        super().__init__(model, sampler, tree)
        self.layers = model.layers

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Read the prompt, each token but the first after the hidden state before it."""
        assert hidden is not None
        columns = capacity + extra_columns(self.tree)
        self._session = KVSession(self._model, columns, drafts=True)
        self._pending = hidden  # (1, n, layers, d), of tokens whose next has no entry yet
        self._settle(prompt[:, 1:])

    def _settle(self, ids: Tensor) -> Tensor:
        """Read tokens (1, n) after pending hidden states; return the logits after the last."""
        n = ids.shape[1]
        hidden = self._pending[:, :n]
        self._pending = self._pending[:, n:]
        logits = self._session.append(ids, None, self._model.head.fuse(hidden), keep=1)
        self._settled = self._session.length  # later entries are drafted
        assert self._session.hidden is not None
        self._outputs = self._session.hidden[:, -1:]  # of the nodes read last
        return logits[0]

    def _read_text(self, tokens: Sequence[int]) -> Tensor:
        return self._settle(send(tokens[self._settled + 1 :], self.device)[None])

    def _read_nodes(self, ids: Tensor, parents: Tensor | None, tree: TreePass | None) -> Tensor:
        features = self._outputs if parents is None else self._outputs[:, parents]
        logits = self._session.append(ids, tree, features)
        assert self._session.hidden is not None
        self._outputs = self._session.hidden
        return logits[0]

    def accept(self, length: int, path: Sequence[int], hidden: Tensor | None) -> None:  # noqa: ARG002
        """Forget the draft; keep the hidden states of the accepted tokens."""
        assert hidden is not None
        self._session.truncate(self._settled)
        self._pending = torch.cat([self._pending, hidden], 1)


class TextProposer(Proposer):
    """Proposes chains that a function of the text gives."""

    def __init__(
        self, draft: Callable[[Sequence[int], int], list[int]], device: torch.device
    ) -> None:
        """Keep the function, which returns up to `count` tokens after a text."""
        super().__init__(device)
        self._draft = draft

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:  # noqa: ARG002
        """Return up to `count` tokens, none where the function gives none."""
        drafted = self._draft(tokens, count)
        return Draft(send(drafted, self.device), chain(len(drafted)))


def empty_draft(device: torch.device) -> Draft:
    """Return a draft of no tokens."""
    return Draft(torch.empty(0, dtype=torch.long, device=device), chain(0))


def extra_columns(tree: TreeShape | None) -> int:
    """Return the columns of a cache that draft trees need beyond the longest text."""
    if tree is None:
        return 0
    if isinstance(tree, Topology):
        return len(tree)
    return max(len(tree), tree.nodes_read)
