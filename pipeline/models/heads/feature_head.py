"""A drafter that reads its target's hidden states: one decoder layer, after EAGLE-3.

The entry of token t is made of its embedding and of the target's hidden states after token t - 1;
what comes out predicts token t + 1. Hidden states of drafted tokens are not known yet: the layer's
own output stands in their place. At depth d of a draft, d - 1 of the tokens are drafted. Weights
are named as in published EAGLE-3 checkpoints (arXiv 2503.01840), and the norms of `Norms` are those
of vLLM's `llama_eagle3.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

UNSEEN = -1e9  # instead of -inf: a padded row that sees nothing is finite, and looked at by nobody
Rotation = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Norms:
    """The norms of a head beyond EAGLE-3's own, by their keys in a config.json.

    Attributes:
        norm_before_residual: the attention's output is added to the normed hidden state instead of
            to the hidden state itself.
        norm_before_fc: one norm of all hidden states of the target together.
        fc_norm: one norm of each hidden state of the target.
        norm_output: the head hands its normed output to the next depth.
    """

    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


class Attention(nn.Module):
    """The projections of an attention over twice the width: an embedding and a hidden state."""

    def __init__(self, config: LlamaConfig) -> None:
        """Make random weights."""
        super().__init__()
        d, width = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(2 * d, config.num_attention_heads * width, bias=False)
        self.k_proj = nn.Linear(2 * d, config.num_key_value_heads * width, bias=False)
        self.v_proj = nn.Linear(2 * d, config.num_key_value_heads * width, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * width, d, bias=False)


class Layer(nn.Module):
    """A decoder layer whose attention reads an embedding beside the hidden state."""

    def __init__(self, config: LlamaConfig, norm_before_residual: bool = False) -> None:
        """Make random weights."""
        super().__init__()
        self.norm_before_residual = norm_before_residual
        self.head_dim: int = config.head_dim
        self.groups: int = config.num_attention_heads // config.num_key_value_heads
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.mlp = LlamaMLP(config)

    def project(
        self, embedded: Tensor, hidden: Tensor, rotation: Rotation
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (B, heads, n, head_dim); groups share keys and values."""
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], dim=-1)
        projections = (self.self_attn.q_proj, self.self_attn.k_proj, self.self_attn.v_proj)
        q, k, v = (
            projection(both).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in projections
        )
        q, k = apply_rotary_pos_emb(q, k, *rotation)
        return q, k.repeat_interleave(self.groups, 1), v.repeat_interleave(self.groups, 1)

    def finish(self, attended: Tensor, hidden: Tensor) -> Tensor:
        """Return the output (B, n, d) from the result of attention (B, heads, n, head_dim)."""
        if self.norm_before_residual:
            hidden = self.hidden_norm(hidden)
        hidden = hidden + self.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        made: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return made


class FeatureHead(nn.Module):
    """A head's layer, the projection that fuses the target's hidden states, and its output norm."""

    def __init__(
        self, shape: Mapping[str, Any], layers: int, norms: Norms, width: int | None = None
    ) -> None:
        """Make a head with random weights.

        Args:
            shape: of the layer, as in the config.json of a Llama.
            layers: how many of the target's hidden states it reads.
            norms: that it has.
            width: of the hidden states; None is that of the layer.
        """
        super().__init__()
        config = LlamaConfig(**shape)
        width, eps = width or config.hidden_size, config.rms_norm_eps
        self.norms = norms
        if norms.norm_before_fc:
            self.input_norm = LlamaRMSNorm(layers * width, eps)
        if norms.fc_norm:
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(width, eps) for _ in range(layers))
        self.fc = nn.Linear(layers * width, config.hidden_size, bias=False)
        self.midlayer = Layer(config, norms.norm_before_residual)
        self.norm = LlamaRMSNorm(config.hidden_size, eps)
        self.rotary = LlamaRotaryEmbedding(config)

    def fuse(self, hidden: Tensor) -> Tensor:
        """Return (B, n, d) from the target's hidden states (B, n, layers, width)."""
        if self.norms.norm_before_fc:
            hidden = self.input_norm(hidden.flatten(2)).unflatten(2, hidden.shape[2:])
        if self.norms.fc_norm:
            each = zip(self.fc_norm, hidden.unbind(2), strict=True)
            hidden = torch.stack([norm(state) for norm, state in each], 2)
        fused: Tensor = self.fc(hidden.flatten(2))
        return fused

    def finish(self, attended: Tensor, hidden: Tensor) -> Tensor:
        """Return the output (B, n, d) that the next depth reads; see `Layer.finish`."""
        output = self.midlayer.finish(attended, hidden)
        return self.norm(output) if self.norms.norm_output else output

    def before_projection(self, outputs: Tensor) -> Tensor:
        """Return the states (..., d) that the projection reads, from outputs (..., d)."""
        states: Tensor = outputs if self.norms.norm_output else self.norm(outputs)
        return states

    def rotation(self, positions: Tensor, like: Tensor) -> Rotation:
        """Return cosines and sines (B, n, head_dim) for tokens at `positions` (B, n)."""
        cos, sin = self.rotary(like, positions)
        return cos, sin


class GivenText:
    """Reads given texts with a head at depths 1 to D of a draft, a block of tokens at a time.

    At depth d the entry of a token sees those before its draft at depth 1, and the tokens of its
    own draft at depths 2 to d: what it would see if the text had been drafted.
    """

    def __init__(self, head: FeatureHead, depth: int) -> None:
        """Read with `head` at `depth` depths."""
        self._head, self._depth = head, depth
        # by depth: keys, values (B, heads, tokens, width), and outputs (B, 1, d) of the last token
        self._keys, self._values, self._last = ([torch.empty(0)] * depth for _ in range(3))
        self._seen: Tensor | None = None  # (B, tokens) entries of depth 1 that may be looked at
        self._before: tuple[Tensor, Tensor] | None = None  # hidden, real of the last token

    def read(
        self, embedded: Tensor, hidden: Tensor, positions: Tensor, real: Tensor
    ) -> list[Tensor]:
        """Return the outputs (B, n, d) at each depth after the next n tokens.

        The first token of a text has no entry. What the first D - 1 entries give at depth D means
        nothing.

        Args:
            embedded: (B, n, d) of the tokens.
            hidden: (B, n, layers, d) the target's hidden states after each of them.
            positions: (B, n) of the tokens in their text.
            real: (B, n) false for padding.
        """
        if self._before is None:
            self._before = torch.zeros_like(hidden[:, :1]), torch.zeros_like(real[:, :1])
        hidden_before, real_before = (
            torch.cat([last, new[:, :-1]], 1)
            for last, new in zip(self._before, (hidden, real), strict=True)
        )
        self._before = hidden[:, -1:], real[:, -1:]
        seen, hidden = real & real_before, hidden_before
        layer = self._head.midlayer
        rotation = self._head.rotation(positions, embedded)
        begin = 0 if self._seen is None else self._seen.shape[1]
        self._seen = seen if self._seen is None else torch.cat([self._seen, seen], 1)
        features, outputs = self._head.fuse(hidden), []
        for d in range(self._depth):
            q, k, v = layer.project(embedded, features, rotation)
            self._keys[d] = torch.cat([self._keys[d], k], 2) if begin else k
            self._values[d] = torch.cat([self._values[d], v], 2) if begin else v
            features = self._head.finish(self._attend(q, begin, d), features)
            outputs.append(features)
            last, self._last[d] = self._last[d], features[:, -1:]
            before = last if begin else features[:, :1]
            features = torch.cat([before, features[:, :-1]], 1)  # of the token before
        return outputs

    def _attend(self, q: Tensor, begin: int, d: int) -> Tensor:
        """Attend from depth d + 1: to depth 1 up to its draft, to each later depth at one token."""
        assert self._seen is not None
        q = q * q.shape[-1] ** -0.5
        n = q.shape[2]
        at = torch.arange(begin, begin + n, device=q.device)
        before = torch.arange(begin + n, device=q.device) <= at[:, None] - d
        allowed = before & self._seen[:, None, None]  # (B, 1, n, columns)
        scores = [(q @ self._keys[0].transpose(2, 3)).masked_fill(~allowed, UNSEEN)]
        own = range(1, d + 1)
        scores += [(q * _back(self._keys[j], begin, n, d - j)).sum(-1, keepdim=True) for j in own]
        weights = torch.cat(scores, -1).softmax(-1)
        attended = weights[..., : begin + n] @ self._values[0]
        for j in own:
            weight = weights[..., begin + n + j - 1, None]
            attended = attended + weight * _back(self._values[j], begin, n, d - j)
        return attended


def _back(states: Tensor, begin: int, n: int, tokens: int) -> Tensor:
    """Return the states (B, heads, n, d) of n entries that many tokens before `begin` and on."""
    return pad(states, (0, 0, tokens, 0))[:, :, begin : begin + n]
