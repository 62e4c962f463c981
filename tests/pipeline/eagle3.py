"""EAGLE-3 heads: random checkpoints, and their architecture as whole texts without a cache.

It is written from the published model code (`eagle/model/cnets.py` of SafeAILab/EAGLE,
`vllm/model_executor/models/llama_eagle3.py`), with no classes of ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu

from pipeline.models.language_model import LanguageModel
from pipeline.models.spec import ModelSpec
from tests.pipeline.decoding.pair import V
from tests.pipeline.heads import states_of, used

D = 32  # of the target's hidden states
HEADS, GROUPS, WIDTH, INNER, THETA, EPS = 4, 2, 8, 40, 500.0, 1e-5
Numbers = dict[str, Tensor]
FIXED: Mapping[str, Any] = {}
IDS = torch.tensor([0, 3, 5, 7, 8, 9, 12, 20])  # that can be drafted


def weights(
    width: int = D, wide: bool = False, ids: Tensor | None = IDS, config: Mapping[str, Any] = FIXED
) -> Numbers:
    """Random weights by the names of EAGLE's own layout; `wide` brings an embedding."""
    count = len(config.get("eagle_aux_hidden_state_layer_ids", range(3)))
    generator = torch.Generator().manual_seed(7)
    drafted = V if ids is None else len(ids)
    shapes = {
        "fc": (width, count * D), "lm_head": (drafted, width), "norm": (width,),
        **({"embed_tokens": (V, width)} if wide else {}),
        "midlayer.self_attn.q_proj": (HEADS * WIDTH, 2 * width),
        "midlayer.self_attn.k_proj": (GROUPS * WIDTH, 2 * width),
        "midlayer.self_attn.v_proj": (GROUPS * WIDTH, 2 * width),
        "midlayer.self_attn.o_proj": (width, HEADS * WIDTH),
        "midlayer.mlp.gate_proj": (INNER, width), "midlayer.mlp.up_proj": (INNER, width),
        "midlayer.mlp.down_proj": (width, INNER), "midlayer.hidden_norm": (width,),
        "midlayer.input_layernorm": (width,), "midlayer.post_attention_layernorm": (width,),
    }  # fmt: skip
    if config.get("norm_before_fc") or config.get("eagle_config", {}).get("norm_before_fc"):
        shapes["input_norm"] = (count * D,)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{i}": (D,) for i in range(count)}
    made = {}
    for name, shape in shapes.items():
        drawn = torch.randn(shape, generator=generator)
        scaled = 1 + 0.2 * drawn if len(shape) == 1 else 2 * shape[1] ** -0.5 * drawn
        made[f"{name}.weight"] = scaled
    if ids is not None:
        made["d2t"] = ids - torch.arange(len(ids))
        made["t2d"] = torch.zeros(V, dtype=torch.bool).index_fill(0, ids, True)
    return made


def layer_config(width: int = D) -> dict[str, Any]:
    return {
        "model_type": "llama", "num_hidden_layers": 1, "hidden_size": width,
        "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
        "head_dim": WIDTH, "rms_norm_eps": EPS, "rope_theta": THETA, "rope_scaling": None,
        "hidden_act": "silu", "max_position_embeddings": 512, "vocab_size": V,
    }  # fmt: skip


def write(folder: Path, layout: str, given: Numbers, width: int = D, **more: Any) -> ModelSpec:
    """Write a checkpoint; return it as a drafter."""
    folder.mkdir(exist_ok=True)
    drafted = len(given["lm_head.weight"])
    if layout == "speculators":
        given = {name.replace("midlayer.", "layers.0."): value for name, value in given.items()}
        config = {
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
            "transformer_layer_config": layer_config(width), "draft_vocab_size": drafted,
            "norm_before_residual": False, "target_hidden_size": None, **more,
        }  # fmt: skip
    else:
        config = {
            "architectures": ["LlamaForCausalLMEagle3"], **layer_config(width),
            "draft_vocab_size": drafted, "tie_word_embeddings": False, **more,
        }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    if layout == "bin":
        torch.save(given, folder / "pytorch_model.bin")
    else:
        save_file({name: value.contiguous() for name, value in given.items()},
                  folder / "model.safetensors")  # fmt: skip
    return used(folder)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt()


def turned(x: Tensor) -> Tensor:
    """Rotate (heads, n, WIDTH) by the positions 0, 1, ..., the halves as pairs."""
    half = WIDTH // 2
    angles = torch.arange(x.shape[1])[:, None] * THETA ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def layer(
    given: Numbers, embedded: Tensor, hidden: Tensor, config: Mapping[str, Any] = FIXED
) -> Tensor:
    """Return the outputs (n, d) of n entries that see themselves and those before."""
    own = {name.removeprefix("midlayer."): value for name, value in given.items()}
    state = rms(hidden, own["hidden_norm.weight"])
    both = torch.cat([rms(embedded, own["input_layernorm.weight"]), state], -1)
    q, k, v = (
        (both @ own[f"self_attn.{name}_proj.weight"].T).unflatten(-1, (-1, WIDTH)).transpose(0, 1)
        for name in "qkv"
    )
    q, k = turned(q), turned(k).repeat_interleave(HEADS // GROUPS, 0)
    v = v.repeat_interleave(HEADS // GROUPS, 0)
    scores = q @ k.transpose(1, 2) / WIDTH**0.5
    scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    attended = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
    residual = state if config.get("norm_before_residual") else hidden
    residual = residual + attended @ own["self_attn.o_proj.weight"].T
    x = rms(residual, own["post_attention_layernorm.weight"])
    gated = silu(x @ own["mlp.gate_proj.weight"].T) * (x @ own["mlp.up_proj.weight"].T)
    output = residual + gated @ own["mlp.down_proj.weight"].T
    return rms(output, given["norm.weight"]) if config.get("norm_output") else output


@torch.inference_mode()
def fused(
    target: LanguageModel, given: Numbers, text: list[int], layers: tuple[int, ...]
) -> Tensor:
    """The fused states (n, d), after `combine_hidden_states` of vLLM's llama_eagle3.py."""
    states = list(states_of(target, text, layers).unbind(1))
    if "input_norm.weight" in given:
        states = list(rms(torch.cat(states, -1), given["input_norm.weight"]).chunk(len(layers), -1))
    if "fc_norm.0.weight" in given:
        states = [rms(x, given[f"fc_norm.{i}.weight"]) for i, x in enumerate(states)]
    return torch.cat(states, -1) @ given["fc.weight"].T


def embedding(target: LanguageModel, given: Numbers, tokens: list[int]) -> Tensor:
    own = given.get("embed_tokens.weight", target.module.get_input_embeddings().weight.detach())
    return own[torch.tensor(tokens)]


def reference_logits(given: Numbers, outputs: Tensor, config: Mapping[str, Any] = FIXED) -> Tensor:
    """Logits (n, V), -inf where nothing is drafted."""
    normed = outputs if config.get("norm_output") else rms(outputs, given["norm.weight"])
    short = normed @ given["lm_head.weight"].T
    if "d2t" not in given:
        return short
    logits = torch.full((len(outputs), V), -torch.inf)
    for at, offset in enumerate(given["d2t"].tolist()):
        logits[:, at + offset] = short[:, at]
    return logits


def reference(
    target: LanguageModel,
    given: Numbers,
    text: list[int],
    drafts: list[int],
    layers: tuple[int, ...] = (2, 3, 4),
    config: Mapping[str, Any] = FIXED,
) -> Tensor:
    """Outputs (d,) after a text and tokens drafted behind it, by passes over all entries."""
    states = fused(target, given, text[:-1], layers)
    for at in range(len(drafts) + 1):
        embedded = embedding(target, given, (text + drafts[:at])[1:])
        outputs = layer(given, embedded, states, config)
        states = torch.cat([states, outputs[-1:]])
    return outputs[-1]
