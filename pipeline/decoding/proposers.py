"""Proposers draft tokens for one answer: with a model, with a head, or from the text alone."""

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
from pipeline.models.devices import to_device
from pipeline.models.eagle3.drafter import Eagle3Drafter
from pipeline.models.kv_session import KVSession, TreePass
from pipeline.models.language_model import LanguageModel

TreeShape = Topology | DynamicTree


class Proposer:
    """Base class; proposes nothing, so that the target decodes alone.

    Attributes:
        layers: which of the target's hidden states it reads, as numbers of layers before them.
        tree: the shape of a full draft, or how a dynamic tree grows; None for chains.
    """

    layers: tuple[int, ...] = ()
    tree: TreeShape | None = None

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Read the prompt (1, n); prompt and answer have at most `capacity` tokens.

        `hidden` (1, n, layers, d) are the target's hidden states after each of its tokens.
        """

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:  # noqa: ARG002
        """Draft up to `count` tokens in a row after the text `tokens`.

        The first of them is at `position` of the answer.
        """
        return empty_draft(self.device)

    def accept(self, length: int, path: Sequence[int], hidden: Tensor | None) -> None:
        """Roll back to the first `length` tokens and the accepted nodes of the draft.

        `path` are these p nodes. `hidden` (1, 1 + p, layers, d) are the target's hidden states
        after the last token of the text and after each of them.
        """


class ModelProposer(Proposer):
    """Drafts with a smaller language model, one pass for each level of the draft."""

    def __init__(
        self, model: LanguageModel | Eagle3Drafter, sampler: Sampler, tree: TreeShape | None = None
    ) -> None:
        super().__init__(model.device)
        self.tree = tree
        self._model = model
        self._sampler = sampler
        self._columns: Mapping[int, int] = {}  # cache column, after the text, of each node read

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:  # noqa: ARG002
        """Read the prompt."""
        columns = capacity + extra_columns(self.tree)
        self._session = KVSession(self._model, columns, rolls_back=True)
        self._session.prefill(prompt)

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        """Draft a chain of `count` tokens, or a tree of at most this depth, level by level."""
        if count == 0:
            return empty_draft(self.device)
        builder = self._builder(count, position)
        mask = AncestorMask(self.device, self._model.dtype)
        builder.add(self._read_text(tokens))
        for _ in range(1, builder.depth):
            nodes, parents = builder.inner()
            tree = None if parents is None else mask.next_level(parents)
            builder.add(self._read_nodes(readable(nodes)[None], parents, tree))
        draft, self._columns = builder.draft()
        return draft

    def _builder(self, count: int, position: int) -> StaticTreeBuilder | DynamicTreeBuilder:
        if isinstance(self.tree, DynamicTree):
            # the configuration allows dynamic trees with these samplers only
            assert isinstance(self._sampler, GreedySampler)
            return DynamicTreeBuilder(self.tree, count, self._sampler, position)
        shape = chain(count) if self.tree is None else within(self.tree, count)
        return StaticTreeBuilder(shape, self._sampler, position, self.device)

    def _read_text(self, tokens: Sequence[int]) -> Tensor:
        """Read the new tokens of the text; return the logits (1, V) after the last."""
        new = to_device(tokens[self._session.length :], self.device)
        return self._session.append(new[None])[0, -1:]

    def _read_nodes(self, ids: Tensor, parents: Tensor | None, tree: TreePass | None) -> Tensor:  # noqa: ARG002
        """Read nodes (1, r); return the logits (r, V). `parents` (r,) are rows of the last pass."""
        return self._session.append(ids, tree)[0]

    def accept(self, length: int, path: Sequence[int], hidden: Tensor | None) -> None:  # noqa: ARG002
        """Roll the cache back to the text and those accepted nodes that were read."""
        read = [self._columns[node] for node in path if node in self._columns]
        self._session.commit_path(length, read)


class Eagle3Proposer(ModelProposer):
    """Drafts with a head that reads the target's hidden states, one pass for each level."""

    _model: Eagle3Drafter

    def __init__(
        self, model: Eagle3Drafter, sampler: Sampler, tree: TreeShape | None = None
    ) -> None:
        super().__init__(model, sampler, tree)
        self.layers = model.layers

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Read the prompt from its second token on, each with the hidden states before it."""
        assert hidden is not None
        columns = capacity + extra_columns(self.tree)
        self._session = KVSession(self._model, columns, rolls_back=True)
        self._pending = hidden  # (1, n, layers, d), of tokens whose next token is not read yet
        self._read_known(prompt[:, 1:])

    def _read_known(self, ids: Tensor) -> Tensor:
        """Read tokens (1, n) of the text, with pending hidden states; return the last logits."""
        n = ids.shape[1]
        hidden = self._pending[:, :n]
        self._pending = self._pending[:, n:]
        logits = self._session.append(ids, None, self._model.head.fuse(hidden), keep=1)
        self._known_columns = self._session.length  # later columns are of drafted tokens
        assert self._session.hidden is not None
        self._outputs = self._session.hidden[:, -1:]  # of the tokens read last
        return logits[0]

    def _read_text(self, tokens: Sequence[int]) -> Tensor:
        return self._read_known(to_device(tokens[self._known_columns + 1 :], self.device)[None])

    def _read_nodes(self, ids: Tensor, parents: Tensor | None, tree: TreePass | None) -> Tensor:
        features = self._outputs if parents is None else self._outputs[:, parents]
        logits = self._session.append(ids, tree, features)
        assert self._session.hidden is not None
        self._outputs = self._session.hidden
        return logits[0]

    def accept(self, length: int, path: Sequence[int], hidden: Tensor | None) -> None:  # noqa: ARG002
        """Remove the draft from the cache; keep the target's hidden states of accepted tokens."""
        assert hidden is not None
        self._session.truncate(self._known_columns)
        self._pending = torch.cat([self._pending, hidden], 1)


class TextProposer(Proposer):
    """Drafts chains with a function of the text."""

    def __init__(
        self, draft: Callable[[Sequence[int], int], list[int]], device: torch.device
    ) -> None:
        """`draft` returns up to `count` tokens that may follow a text."""
        super().__init__(device)
        self._draft = draft

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:  # noqa: ARG002
        """Draft what the function gives, which may be nothing."""
        drafted = self._draft(tokens, count)
        return Draft(to_device(drafted, self.device), chain(len(drafted)))


def empty_draft(device: torch.device) -> Draft:
    """Return a draft of no tokens."""
    return Draft(torch.empty(0, dtype=torch.long, device=device), chain(0))


def extra_columns(tree: TreeShape | None) -> int:
    """Return how many cache columns draft trees need beyond the longest text."""
    if tree is None:
        return 0
    if isinstance(tree, Topology):
        return len(tree)
    return max(len(tree), tree.nodes_read)
