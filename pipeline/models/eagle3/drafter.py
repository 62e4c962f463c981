"""An EAGLE-3 head (arXiv 2503.01840): a layer that drafts from the target's hidden states.

The head's input at token t is the embedding of t beside the target's hidden states after token
t - 1; its output predicts token t + 1. The target has not read drafted tokens yet, so for them the
head's own output of the step before replaces the hidden states. At depth d of a draft this holds
for d - 1 tokens. Weights are named as in published checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import DynamicCache, LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from pipeline.models.language_model import LanguageModel, LMHead, new_cache

Rotation = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """Projections of an attention whose input is an embedding beside a hidden state (2 d)."""

    def __init__(self, config: LlamaConfig) -> None:
        """Make random weights."""
        super().__init__()
        d = config.hidden_size
        width = config.head_dim
        self.q_proj = nn.Linear(2 * d, config.num_attention_heads * width, bias=False)
        self.k_proj = nn.Linear(2 * d, config.num_key_value_heads * width, bias=False)
        self.v_proj = nn.Linear(2 * d, config.num_key_value_heads * width, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * width, d, bias=False)


class Layer(nn.Module):
    """A decoder layer whose attention reads an embedding beside the hidden state.

    The residual connection starts from the hidden state; with `norm_before_residual`, as in heads
    of speculators, from the normed one.
    """

    def __init__(self, config: LlamaConfig, norm_before_residual: bool = False) -> None:
        """Make random weights."""
        super().__init__()
        self.norm_before_residual = norm_before_residual
        self.head_dim: int = config.head_dim
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.mlp = LlamaMLP(config)

    def project(
        self, embedded: Tensor, hidden: Tensor, rotation: Rotation
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (B, heads, n, head_dim).

        There are fewer heads of keys and values: each serves a group of queries.
        """
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], dim=-1)
        projections = (self.self_attn.q_proj, self.self_attn.k_proj, self.self_attn.v_proj)
        q, k, v = (
            projection(both).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in projections
        )
        q, k = apply_rotary_pos_emb(q, k, *rotation)
        return q, k, v

    def finish(self, attended: Tensor, hidden: Tensor) -> Tensor:
        """Return the output (B, n, d) from the result of attention (B, heads, n, head_dim)."""
        if self.norm_before_residual:
            hidden = self.hidden_norm(hidden)
        hidden = hidden + self.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        output: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class Eagle3Module(nn.Module):
    """A head's layer, the projection that fuses the target's hidden states, and its output norm."""

    def __init__(self, shape: Mapping[str, Any], layers: int, fc_norm: bool) -> None:
        """Make random weights. `layers` hidden states are read, each with a norm if `fc_norm`."""
        super().__init__()
        config = LlamaConfig(**shape)
        width = config.hidden_size
        eps = config.rms_norm_eps
        norms = layers if fc_norm else 0
        self.fc_norm = nn.ModuleList(LlamaRMSNorm(width, eps) for _ in range(norms))
        self.fc = nn.Linear(layers * width, width, bias=False)
        self.midlayer = Layer(config, bool(shape.get("norm_before_residual")))
        self.norm = LlamaRMSNorm(width, eps)
        self.rotary = LlamaRotaryEmbedding(config)

    def fuse(self, hidden: Tensor) -> Tensor:
        """Project the target's hidden states (B, n, layers, d) to features (B, n, d)."""
        if self.fc_norm:
            states = zip(self.fc_norm, hidden.unbind(2), strict=True)
            hidden = torch.stack([norm(state) for norm, state in states], 2)
        fused: Tensor = self.fc(hidden.flatten(2))
        return fused

    def rotation(self, positions: Tensor, like: Tensor) -> Rotation:
        """Return cosines and sines (B, n, head_dim) for tokens at `positions` (B, n)."""
        cos, sin = self.rotary(like, positions)
        return cos, sin


def teacher_forced_outputs(
    head: Eagle3Module, embedded: Tensor, hidden: Tensor, depth: int, padding: Tensor | None = None
) -> list[Tensor]:
    """Run the head over texts as if every token were drafted at each depth of a draft.

    At depth d a token attends to the text before its draft as read at depth 1, and to the d - 1
    drafted tokens as read at depths 2 to d. The first token has no input, so the outputs of the
    first d tokens at depth d are meaningless.

    Args:
        head: the head.
        embedded: (B, n, d) embeddings of the tokens.
        hidden: (B, n, layers, d) the target's hidden states after each token.
        depth: how many depths.
        padding: (B,) columns before each text; None for none.

    Returns:
        The outputs (B, n, d) at depths 1 to `depth`.
    """
    n = embedded.shape[1]
    column = torch.arange(n, device=embedded.device)
    position = column[None]  # (B or 1, n) of each token in its text; of padding negative
    if padding is not None:
        position = column - padding[:, None]
        hidden = hidden.masked_fill((position < 0)[:, :, None, None], 0)  # they may be NaN
    rotation = head.rotation(position.clamp(min=0), embedded)
    features = head.fuse(pad(hidden[:, :-1], (0, 0, 0, 0, 1, 0)))  # those of the token before
    keys = list[Tensor]()
    values = list[Tensor]()
    outputs = list[Tensor]()
    for d in range(depth):
        q, k, v = head.midlayer.project(embedded, features, rotation)
        groups = q.shape[1] // k.shape[1]
        keys.append(k.repeat_interleave(groups, 1))
        values.append(v.repeat_interleave(groups, 1))
        q = q * q.shape[-1] ** -0.5
        seen = (position >= 1)[:, None] & (column <= column[:, None] - d)
        # a token without input sees itself: a softmax over nothing would give NaN
        seen |= (position < 1)[:, :, None] & (column == column[:, None])
        scores = [(q @ keys[0].transpose(2, 3)).masked_fill(~seen[:, None], -torch.inf)]
        draft = range(1, d + 1)  # depths, from 0, of the tokens of its own draft
        scores += [(q * _earlier(keys[j], d - j)).sum(-1, keepdim=True) for j in draft]
        weights = torch.cat(scores, -1).softmax(-1)
        attended = weights[..., :n] @ values[0]
        for j in draft:
            attended = attended + weights[..., n + j - 1, None] * _earlier(values[j], d - j)
        outputs.append(head.midlayer.finish(attended, features))
        features = torch.cat([outputs[d][:, :1], outputs[d][:, :-1]], 1)
    return outputs


def _earlier(states: Tensor, tokens: int) -> Tensor:
    return pad(states, (0, 0, tokens, 0))[:, :, : states.shape[2]]


@dataclass(frozen=True)
class Eagle3Drafter:
    """A loaded head, ready to draft for its target."""

    target: LanguageModel  # the model whose hidden states it reads
    head: Eagle3Module  # the weights
    projection: nn.Module  # the logits of the tokens that it can draft
    layers: tuple[int, ...]  # which of the target's hidden states: those after so many layers
    label: str  # as printed
    drafted: Tensor | None  # (n,) ids of the tokens that it can draft; None: all
    vocab_size: int  # logits per position, as the target's
    embedding: nn.Module | None = None  # None: the target's

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.target.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its outputs and attention."""
        return self.head.fc.weight.dtype

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings (..., d) of tokens."""
        embedding = self.embedding or self.target.module.get_input_embeddings()
        embedded: Tensor = embedding(ids)
        return embedded

    def logits(self, outputs: Tensor) -> Tensor:
        """Return logits (..., V) of outputs (..., d); -inf for tokens that it can't draft."""
        draft_logits: Tensor = self.projection(self.head.norm(outputs))
        if self.drafted is None:
            return draft_logits[..., : self.vocab_size]
        logits = draft_logits.new_full((*draft_logits.shape[:-1], self.vocab_size), -torch.inf)
        return logits.scatter_(-1, self.drafted.expand_as(draft_logits), draft_logits)

    def completed(self, outputs: Tensor, logits: Tensor) -> Tensor | None:
        """Return logits (..., V) of a q' that extends q to the whole vocabulary.

        For tokens that the head can't draft they are the target's output projection of the head's
        outputs (..., d). None if the head can draft all tokens.
        """
        if self.drafted is None:
            return None
        project = self.target.module.get_output_embeddings()
        rest = project(self.head.norm(outputs))[..., : self.vocab_size]
        return torch.where(logits == -torch.inf, rest, logits)

    def new_cache(self, capacity: int) -> DynamicCache:
        """Return an empty cache for `capacity` tokens; its first column belongs to token 1."""
        return new_cache(None, capacity)

    def forward(
        self,
        ids: Tensor,
        cache: DynamicCache,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        *,
        keep: int = 0,
        layers: Sequence[int] = (),  # noqa: ARG002 (only language models read them)
        features: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return logits after the last of `ids`, and all outputs; see `LanguageModel.forward`."""
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
        attended = scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        outputs = layer.finish(attended, features)
        return self.logits(outputs[:, -keep:]), outputs

    def memory_bytes(self) -> int:
        """Return the bytes of all its weights, the projection's included."""
        parts = [part for part in (self.head, self.projection, self.embedding) if part is not None]
        return sum(weight.nbytes for part in parts for weight in part.parameters())

    def cache_bytes(self) -> int:
        """Return the bytes of keys and values of one token."""
        keys = self.head.midlayer.self_attn.k_proj
        return 2 * keys.out_features * keys.weight.element_size()


def like_target(target: LanguageModel, rows: nn.Linear) -> nn.Module:
    """Return the projection `rows`, in the precision of the target's output projection."""
    output = target.module.get_output_embeddings()
    return (
        LMHead(rows, output.dtype) if isinstance(output, LMHead) else rows.to(target.module.dtype)
    )
