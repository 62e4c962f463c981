"""A head on its target as a drafter: its vocabulary, and passes with a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache

from pipeline.models.heads.feature_head import FeatureHead
from pipeline.models.language_model import Head, LanguageModel, new_cache


@dataclass(frozen=True)
class HiddenDrafter:
    """A loaded head, ready to draft for its target."""

    target: LanguageModel  # the model whose hidden states it reads
    head: FeatureHead  # the weights
    projection: nn.Module  # gives logits of the tokens that can be drafted
    layers: tuple[int, ...]  # after how many of the target's layers it reads a hidden state
    label: str  # as printed
    drafted: Tensor | None  # (n,) ids of the tokens that can be drafted; None is all
    vocab_size: int  # the length of a row of logits, as the target's
    embedding: nn.Module | None = None  # of tokens; None is the target's

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.target.device

    @property
    def dtype(self) -> torch.dtype:
        """Of its outputs and attention."""
        return self.head.fc.weight.dtype

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings (..., d) of tokens."""
        embedding = self.embedding or self.target.module.get_input_embeddings()
        embedded: Tensor = embedding(ids)
        return embedded

    def logits(self, outputs: Tensor) -> Tensor:
        """Return logits (..., V) of the head's outputs (..., d); -inf where nothing is drafted."""
        given: Tensor = self.projection(self.head.norm(outputs))
        if self.drafted is None:
            return given[..., : self.vocab_size]
        logits = given.new_full((*given.shape[:-1], self.vocab_size), -torch.inf)
        return logits.scatter_(-1, self.drafted.expand_as(given), given)

    def completed(self, outputs: Tensor, logits: Tensor) -> Tensor | None:
        """Return logits (..., V) of a q' that keeps those of the drafted tokens and has the rest.

        The target's projection of the head's outputs (..., d) gives the rest. None where all tokens
        can be drafted.
        """
        if self.drafted is None:
            return None
        project = self.target.module.get_output_embeddings()
        rest = project(self.head.norm(outputs))[..., : self.vocab_size]
        return torch.where(logits == -torch.inf, rest, logits)

    def new_cache(self, capacity: int) -> DynamicCache:
        """Return an empty cache for texts of at most `capacity` entries; the first is token 1's."""
        return new_cache(None, capacity)

    def read(
        self,
        ids: Tensor,
        cache: DynamicCache,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        *,
        keep: int = 0,
        layers: Sequence[int] = (),  # noqa: ARG002 of language models
        features: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the logits after the last of `ids`, and the outputs; see `LanguageModel.read`."""
        assert features is not None
        layer = self.head.midlayer
        if positions is None:
            begin = cache.get_seq_length()
            end = begin + ids.shape[1]
            positions = torch.arange(begin, end, device=ids.device)[None]
            if mask is None and end - begin > 1:
                mask = torch.arange(end, device=ids.device) <= positions.T
        rotation = self.head.rotation(positions + 1, features)
        q, k, v = layer.project(self.embed(ids), features, rotation)
        keys, values = cache.layers[0].update(k, v)
        attended = scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        outputs = layer.finish(attended, features)
        return self.logits(outputs[:, -keep:]), outputs

    def memory_bytes(self) -> int:
        """Bytes of its own weights, and of the rows of the projection that it reads."""
        parts = [part for part in (self.head, self.projection, self.embedding) if part is not None]
        return sum(weight.nbytes for part in parts for weight in part.parameters())

    def cache_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        layer = self.head.midlayer.self_attn
        width = 2 * layer.k_proj.out_features * self.head.midlayer.groups
        return width * layer.k_proj.weight.element_size()


def like_target(target: LanguageModel, rows: nn.Linear) -> nn.Module:
    """Return a projection that computes in the precision of the one of `target`."""
    given = target.module.get_output_embeddings()
    return Head(rows, given.dtype) if isinstance(given, Head) else rows.to(target.module.dtype)
