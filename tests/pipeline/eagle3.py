"""EAGLE-3 heads: random checkpoints, and their architecture as whole texts without a cache.

It is written from the published model code (`eagle/model/cnets.py` of SafeAILab/EAGLE,
`vllm/model_executor/models/llama_eagle3.py`), with no classes of ours.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu

from pipeline.models.language_model import LanguageModel
from pipeline.stage import ModelSpec
from tests.pipeline.decoding.pair import V
from tests.pipeline.heads import states_of, used

D = 32  # of the target's hidden states
HEADS, GROUPS, WIDTH, INNER, THETA, EPS = 4, 2, 8, 40, 500.0, 1e-5
Numbers = dict[str, Tensor]
IDS = torch.tensor([0, 3, 5, 7, 8, 9, 12, 20])  # that can be drafted


def weights(
    layers: int = 3, *, ids: Tensor | None = IDS, fc_norm: bool = False, embedding: bool = False
) -> Numbers:
    """Random weights of a head that reads so many hidden states."""
    generator = torch.Generator().manual_seed(7)
    drafted = V if ids is None else len(ids)
    shapes = {
        "fc": (D, layers * D), "lm_head": (drafted, D), "norm": (D,),
        **({"embed_tokens": (V, D)} if embedding else {}),
        "midlayer.self_attn.q_proj": (HEADS * WIDTH, 2 * D),
        "midlayer.self_attn.k_proj": (GROUPS * WIDTH, 2 * D),
        "midlayer.self_attn.v_proj": (GROUPS * WIDTH, 2 * D),
        "midlayer.self_attn.o_proj": (D, HEADS * WIDTH),
        "midlayer.mlp.gate_proj": (INNER, D), "midlayer.mlp.up_proj": (INNER, D),
        "midlayer.mlp.down_proj": (D, INNER), "midlayer.hidden_norm": (D,),
        "midlayer.input_layernorm": (D,), "midlayer.post_attention_layernorm": (D,),
        **({f"fc_norm.{i}": (D,) for i in range(layers)} if fc_norm else {}),
    }  # fmt: skip
    made = {}
    for name, shape in shapes.items():
        drawn = torch.randn(shape, generator=generator)
        scaled = 1 + 0.2 * drawn if len(shape) == 1 else 2 * shape[1] ** -0.5 * drawn
        made[f"{name}.weight"] = scaled
    if ids is not None:
        made["d2t"] = ids - torch.arange(len(ids))
        made["t2d"] = torch.zeros(V, dtype=torch.bool).index_fill(0, ids, True)
    return made


def write(folder: Path, given: Numbers, *, pickled: bool = False, **more: Any) -> ModelSpec:
    """Write a checkpoint; return it as a drafter."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
        "num_hidden_layers": 1, "hidden_size": D, "intermediate_size": INNER,
        "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": WIDTH,
        "rms_norm_eps": EPS, "rope_theta": THETA, "rope_scaling": None, "hidden_act": "silu",
        "max_position_embeddings": 512, "vocab_size": V,
        "draft_vocab_size": len(given["lm_head.weight"]), "tie_word_embeddings": False, **more,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(given, folder / "pytorch_model.bin")
    else:
        save_file(given, folder / "model.safetensors")
    return used(folder)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt()


def turned(x: Tensor) -> Tensor:
    """Rotate (heads, n, WIDTH) by the positions 0, 1, ..., the halves as pairs."""
    half = WIDTH // 2
    angles = torch.arange(x.shape[1])[:, None] * THETA ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def layer(given: Numbers, embedded: Tensor, hidden: Tensor) -> Tensor:
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
    residual = hidden + attended @ own["self_attn.o_proj.weight"].T
    x = rms(residual, own["post_attention_layernorm.weight"])
    gated = silu(x @ own["mlp.gate_proj.weight"].T) * (x @ own["mlp.up_proj.weight"].T)
    return residual + gated @ own["mlp.down_proj.weight"].T


@torch.inference_mode()
def fused(
    target: LanguageModel, given: Numbers, text: list[int], layers: tuple[int, ...]
) -> Tensor:
    """The fused states (n, d), after `combine_hidden_states` of vLLM's llama_eagle3.py."""
    states = list(states_of(target, text, layers).unbind(1))
    if "fc_norm.0.weight" in given:
        states = [rms(x, given[f"fc_norm.{i}.weight"]) for i, x in enumerate(states)]
    return torch.cat(states, -1) @ given["fc.weight"].T


def embedding(target: LanguageModel, given: Numbers, tokens: list[int]) -> Tensor:
    own = given.get("embed_tokens.weight", target.module.get_input_embeddings().weight.detach())
    return own[torch.tensor(tokens)]


def reference_logits(given: Numbers, outputs: Tensor) -> Tensor:
    """Logits (n, V), -inf where nothing is drafted."""
    short = rms(outputs, given["norm.weight"]) @ given["lm_head.weight"].T
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
) -> Tensor:
    """Outputs (d,) after a text and tokens drafted behind it, by passes over all entries."""
    states = fused(target, given, text[:-1], layers)
    for at in range(len(drafts) + 1):
        embedded = embedding(target, given, (text + drafts[:at])[1:])
        outputs = layer(given, embedded, states)
        states = torch.cat([states, outputs[-1:]])
    return outputs[-1]
