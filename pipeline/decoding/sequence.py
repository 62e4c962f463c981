"""A sequence that grows and is rolled back: a model, its key-value cache, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence as Tokens

from torch import Tensor

from pipeline.errors import PipelineError
from pipeline.models.caches import Cache
from pipeline.models.devices import send
from pipeline.models.language_model import LanguageModel, hidden_states
from pipeline.models.tree_pass import TreePass


class CachedSequence:
    """The tokens of one sequence (batch 1) that a model has read.

    Attributes:
        length: how many tokens are in the cache.
        hidden: (n, layers, d) the hidden states of the tokens that were read last.
    """

    def __init__(
        self,
        model: LanguageModel,
        capacity: int,
        layers: Tokens[int] = (),
        cache: Cache | None = None,
    ) -> None:
        """Start empty, with room for `capacity` tokens.

        Args:
            model: what reads.
            capacity: tokens.
            layers: after how many layers hidden states are kept; empty is none.
            cache: what holds the tokens; None is a new one.

        Raises:
            PipelineError: a layer of the model can't be rolled back.
        """
        model.check_drafts("decoding")
        self.model = model
        self.cache = model.new_cache(capacity) if cache is None else cache
        self.length = 0
        self.hidden: Tensor | None = None
        self._layers = layers
        self._windows = [layer for layer in self.cache.layers if layer.is_sliding]
        for layer in self._windows:  # until the next roll-back they keep more than their window
            layer.activate_past_recording()

    def read(self, ids: Tensor, keep: int = 1) -> Tensor:
        """Read tokens (n,) and return the logits (keep, V) after the last of them."""
        return self._forward(ids, logits_to_keep=keep)

    def extend(self, ids: Tensor, tree: TreePass | None = None) -> Tensor:
        """Read tokens and return the logits (n, V) after each of them.

        Args:
            ids: (n,) tokens.
            tree: what they see, as nodes of a draft tree after the text; None is a chain.
        """
        if tree is None:
            return self._forward(ids)
        bias, positions = tree.after(self.length)
        return self._forward(ids, attention_mask=bias, position_ids=positions)

    def crop(self, length: int) -> None:
        """Forget all but the first `length` tokens for good; none when there are not more."""
        kept = min(length, self.length)
        for layer in self.cache.layers if kept < self.length else self._windows:
            layer.crop(kept - self.length)  # by 0: a window drops what it kept for this
        self.length = kept

    def keep(self, length: int, path: Tokens[int]) -> None:
        """Keep the first `length` tokens and, of the ones read after them, those of `path`."""
        if list(path) != list(range(len(path))):
            index = send([length + at for at in path], self.model.device)
            for layer in self.cache.layers:  # in place: the cache's buffers stay where they are
                for states in (layer.keys, layer.values):
                    states[:, :, length : length + len(path)] = states.index_select(2, index)
        self.crop(length + len(path))

    def hidden_after(self, path: Tokens[int]) -> Tensor | None:
        """Return the hidden states (1 + p, layers, d) of the token read before a draft, and a path.

        None where none are kept.
        """
        if self.hidden is None:
            return None
        return self.hidden[send([0, *(at + 1 for at in path)], self.hidden.device)]

    def _forward(self, ids: Tensor, **options: object) -> Tensor:
        logits, self.hidden = run(self.model, ids[None], self.cache, self._layers, **options)
        self.length += len(ids)
        return logits[:, : self.model.vocab_size]  # a drafter may have fewer rows


def run(
    model: LanguageModel, ids: Tensor, cache: Cache, layers: Tokens[int], **options: object
) -> tuple[Tensor, Tensor | None]:
    """Return the logits (n, rows of the head) that a model gives for tokens (1, n).

    And the hidden states (n, layers, d) after `layers`, None where there are none.
    """
    if layers:
        options["output_hidden_states"] = True
    out = model.module(input_ids=ids, past_key_values=cache, use_cache=True, **options)
    return out.logits[0], hidden_states(out, layers)[0] if layers else None


def check_trees(model: LanguageModel) -> None:
    """Check that a model can read the branches of a tree in one pass.

    Raises:
        PipelineError: it can't.
    """
    refusal = model.static_refusal()
    if refusal:
        raise PipelineError(
            f"decoding.methods: {model.label} can't read draft trees: {refusal}. Take a model with "
            "full attention in all layers and attention: sdpa or eager, or methods without a tree"
        )
