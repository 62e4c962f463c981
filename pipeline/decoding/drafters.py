"""Drafters propose tokens: a smaller model, a head on the target, or look-up in the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from analysis.decoding.lookup import continuation
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


class Drafter:
    """Proposes tokens that may follow a text; this one nothing: plain autoregressive decoding.

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


class ModelDrafter(Drafter):
    """Decodes with a smaller model, one pass a level."""

    def __init__(
        self, model: LanguageModel | Eagle3Drafter, choice: Sampler, tree: TreeShape | None = None
    ) -> None:
        super().__init__(model.device)
        self.tree = tree
        self.layers = model.layers if isinstance(model, Eagle3Drafter) else ()
        self._model, self._choice = model, choice
        self._columns: Mapping[int, int] = {}  # of the nodes read

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:  # noqa: ARG002
        """Read the prompt."""
        self._text = KVSession(
            self._model, capacity + cache_columns_beyond_text(self.tree), drafts=True
        )
        self._text.prefill(prompt)

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:
        """Decode `count` tokens in a row, or a tree as deep, level by level."""
        if count == 0:
            return empty_draft(self.device)
        levels: StaticTreeBuilder | DynamicTreeBuilder
        if isinstance(self.tree, DynamicTree):
            assert isinstance(
                self._choice, GreedySampler
            )  # others are refused: they need a fixed shape
            levels = DynamicTreeBuilder(self.tree, count, self._choice, position)
        else:
            cut = chain(count) if self.tree is None else within(self.tree, count)
            levels = StaticTreeBuilder(cut, self._choice, position, self.device)
        walk = AncestorMask(self.device, self._model.dtype)
        levels.add(self._read_text(tokens))
        for _ in range(1, levels.depth):
            nodes, above = levels.inner()
            tree = None if above is None else walk.descend(above)
            levels.add(self._read_nodes(readable(nodes)[None], above, tree))
        draft, self._columns = levels.draft()
        return draft

    def _read_text(self, tokens: Sequence[int]) -> Tensor:
        """Return the logits (1, V) after the text; only its new tokens are read."""
        new = send(tokens[self._text.length :], self.device)
        return self._text.append(new[None])[0, -1:]

    def _read_nodes(self, ids: Tensor, above: Tensor | None, tree: TreePass | None) -> Tensor:  # noqa: ARG002
        """Return the logits (r, V) after nodes (1, r), whose parents are rows of the last pass."""
        return self._text.append(ids, tree)[0]

    def accept(self, length: int, path: Sequence[int], hidden: Tensor | None) -> None:  # noqa: ARG002
        """Roll the cache back to the text and the part of the path that was read."""
        self._text.commit_path(
            length, [self._columns[node] for node in path if node in self._columns]
        )


class Eagle3TreeDrafter(ModelDrafter):
    """Decodes with a head that reads the target's hidden states, one pass a level."""

    _model: Eagle3Drafter

    def begin(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Read the prompt, each token but the first after the hidden state before it."""
        assert hidden is not None
        self._text = KVSession(
            self._model, capacity + cache_columns_beyond_text(self.tree), drafts=True
        )
        self._pending = hidden  # (1, n, layers, d), of tokens whose next has no entry yet
        self._settle(prompt[:, 1:])

    def _settle(self, ids: Tensor) -> Tensor:
        """Read tokens (1, n) after pending hidden states; return the logits after the last."""
        n = ids.shape[1]
        hidden, self._pending = self._pending[:, :n], self._pending[:, n:]
        logits = self._text.append(ids, None, self._model.head.fuse(hidden), keep=1)
        self._settled = self._text.length  # later entries are drafted
        assert self._text.hidden is not None
        self._outputs = self._text.hidden[:, -1:]  # of the nodes read last
        return logits[0]

    def _read_text(self, tokens: Sequence[int]) -> Tensor:
        return self._settle(send(tokens[self._settled + 1 :], self.device)[None])

    def _read_nodes(self, ids: Tensor, above: Tensor | None, tree: TreePass | None) -> Tensor:
        features = self._outputs if above is None else self._outputs[:, above]
        logits = self._text.append(ids, tree, features)
        assert self._text.hidden is not None
        self._outputs = self._text.hidden
        return logits[0]

    def accept(self, length: int, path: Sequence[int], hidden: Tensor | None) -> None:  # noqa: ARG002
        """Forget the draft; keep the hidden states of the accepted tokens."""
        assert hidden is not None
        self._text.truncate(self._settled)
        self._pending = torch.cat([self._pending, hidden], 1)


class PromptLookup(Drafter):
    """Proposes the `continuation` of an earlier occurrence of the last few tokens."""

    def __init__(self, longest: int, device: torch.device, match: str = "latest") -> None:
        super().__init__(device)
        self._longest, self._match = longest, match

    def propose(self, tokens: Sequence[int], count: int, position: int) -> Draft:  # noqa: ARG002
        """Return up to `count` tokens that followed, none without an occurrence."""
        following = continuation(tokens, self._longest, count, self._match)
        return Draft(send(following, self.device), chain(len(following)))


def empty_draft(device: torch.device) -> Draft:
    """Return a draft of no tokens."""
    return Draft(torch.empty(0, dtype=torch.long, device=device), chain(0))


def cache_columns_beyond_text(tree: TreeShape | None) -> int:
    """Return the columns of a cache that drafts need beyond the longest text."""
    if tree is None:
        return 0
    return max(len(tree), 0 if isinstance(tree, Topology) else tree.read)


def model_drafter(
    model: LanguageModel | Eagle3Drafter, choice: Sampler, tree: TreeShape | None = None
) -> Drafter:
    """Return the drafter of a model of either kind."""
    kind = Eagle3TreeDrafter if isinstance(model, Eagle3Drafter) else ModelDrafter
    return kind(model, choice, tree)
