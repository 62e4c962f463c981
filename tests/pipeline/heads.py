"""Random EAGLE-3 heads, their files, and their architecture as whole texts without a cache.

The last follows published code: SafeAILab/EAGLE's cnets.py, vLLM's llama_eagle3.py.
"""

import json
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import silu

from conf.schema import HeadConfig
from pipeline.drafters.draft_model import DraftModel
from pipeline.drafters.eagle3_head import Eagle3Head
from pipeline.drafters.prompt_lookup import PromptLookup
from pipeline.models.eagle3.drafter import Eagle3Drafter, Eagle3Module, like_target
from pipeline.models.language_model import linear_of
from tests.pipeline import tiny

LAYERS = 1, 2  # of the target, whose hidden states a random head reads
HEADS, GROUPS, WIDTH, INNER, THETA, EPS = 4, 2, 8, 40, 500.0, 1e-5
IDS = torch.tensor([0, 3, 5, 7, 8, 9, 12, 20])  # that can be drafted


def config_of(target):
    """The config.json of a head for a target."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
        "hidden_size": target.module.config.hidden_size, "intermediate_size": INNER,
        "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
        "head_dim": WIDTH, "rms_norm_eps": EPS, "rope_theta": THETA, "rope_scaling": None,
        "hidden_act": "silu", "max_position_embeddings": 512, "vocab_size": target.vocab_size,
        "tie_word_embeddings": False,
    }  # fmt: skip


def used(folder, layer_ids=None):
    """A head in a directory, as a drafter."""
    head = HeadConfig(depths=2, layer_ids=layer_ids)
    return tiny.used(folder, "drafter", label="h", head=head)


@torch.inference_mode()
def states_of(target, text, layers):
    """Hidden states (n, layers, d) by a plain pass of the target with its final norm taken out."""
    with patch.object(target.module.model, "norm", nn.Identity()):
        out = target.module(input_ids=torch.tensor([text]), output_hidden_states=True)
    return torch.stack([out.hidden_states[layer][0] for layer in layers], 1)


def random_head(target, drafted=None):
    """A head whose attention and outputs are neither flat nor certain, every time the same."""
    torch.manual_seed(4)
    head = Eagle3Module(config_of(target), len(LAYERS), fc_norm=True)
    head.eval().requires_grad_(False)
    for parameter in head.parameters():
        if parameter.ndim == 2:
            parameter.normal_(std=2 * parameter.shape[1] ** -0.5)
    rows = target.module.get_output_embeddings().weight.data
    if drafted is not None:
        rows = rows[drafted].bfloat16().to(rows.dtype)
    projection = like_target(target, linear_of(rows, None))
    return Eagle3Drafter(target, head, projection, LAYERS, "head", drafted, target.vocab_size)


def random_weights(target, layers=3, *, ids=IDS, fc_norm=False, embedding=False):
    """Weights of a head that reads so many hidden states."""
    generator = torch.Generator().manual_seed(7)
    size, d = target.vocab_size, target.module.config.hidden_size
    shapes = {
        "fc": (d, layers * d), "lm_head": (size if ids is None else len(ids), d), "norm": (d,),
        **({"embed_tokens": (size, d)} if embedding else {}),
        "midlayer.self_attn.q_proj": (HEADS * WIDTH, 2 * d),
        "midlayer.self_attn.k_proj": (GROUPS * WIDTH, 2 * d),
        "midlayer.self_attn.v_proj": (GROUPS * WIDTH, 2 * d),
        "midlayer.self_attn.o_proj": (d, HEADS * WIDTH),
        "midlayer.mlp.gate_proj": (INNER, d), "midlayer.mlp.up_proj": (INNER, d),
        "midlayer.mlp.down_proj": (d, INNER), "midlayer.hidden_norm": (d,),
        "midlayer.input_layernorm": (d,), "midlayer.post_attention_layernorm": (d,),
        **({f"fc_norm.{i}": (d,) for i in range(layers)} if fc_norm else {}),
    }  # fmt: skip
    made = {}
    for name, shape in shapes.items():
        drawn = torch.randn(shape, generator=generator)
        scaled = 1 + 0.2 * drawn if len(shape) == 1 else 2 * shape[1] ** -0.5 * drawn
        made[f"{name}.weight"] = scaled
    if ids is not None:
        made["d2t"] = ids - torch.arange(len(ids))
        made["t2d"] = torch.zeros(size, dtype=torch.bool).index_fill(0, ids, True)
    return made


def write(target, weights, folder, *, pickled=False, **more):
    """Write a checkpoint in EAGLE-3's layout; return it as a drafter."""
    folder.mkdir(exist_ok=True)
    config = config_of(target) | {"draft_vocab_size": len(weights["lm_head.weight"])} | more
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors")
    return used(folder)


def write_speculators(target, weights, folder, shape=None, **more):
    """Write a checkpoint as vLLM's speculators do: names of weights, configuration, a copy of t2d.

    `shape` changes the configuration of the layer, `more` what stands beside it.
    """
    folder.mkdir(exist_ok=True)
    layer = config_of(target) | (shape or {})
    config = {
        "architectures": ["Eagle3Speculator"], "model_type": "speculator_model",
        "speculators_model_type": "eagle3", "speculators_version": "0.5.0",
        "speculators_config": {"algorithm": "eagle3", "default_proposal_method": "greedy",
                               "proposal_methods": [{"proposal_type": "greedy",
                                                     "speculative_tokens": 3}],
                               "verifier": {"name_or_path": "tiny", "architectures": []}},
        "draft_vocab_size": len(weights["lm_head.weight"]), "norm_before_residual": False,
        "norm_before_fc": False, "embed_requires_grad": False, "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": None,
        "transformer_layer_config": layer,
    } | more  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    named = {name.replace("midlayer.", "layers.0."): weight for name, weight in weights.items()}
    save_file(named, folder / "model.safetensors")
    return used(folder)


def rms(x, weight):
    return weight * x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt()


def turned(x):
    """Rotate (heads, n, WIDTH) by the positions 0, 1, ..., the halves as pairs."""
    half = WIDTH // 2
    angles = torch.arange(x.shape[1])[:, None] * THETA ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def layer(given, embedded, hidden, norm_before_residual=False):
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
    begin = state if norm_before_residual else hidden
    residual = begin + attended @ own["self_attn.o_proj.weight"].T
    x = rms(residual, own["post_attention_layernorm.weight"])
    gated = silu(x @ own["mlp.gate_proj.weight"].T) * (x @ own["mlp.up_proj.weight"].T)
    return residual + gated @ own["mlp.down_proj.weight"].T


@torch.inference_mode()
def fused(target, given, text, layers):
    """The fused states (n, d), after `combine_hidden_states` of vLLM's llama_eagle3.py."""
    states = list(states_of(target, text, layers).unbind(1))
    if "fc_norm.0.weight" in given:
        states = [rms(x, given[f"fc_norm.{i}.weight"]) for i, x in enumerate(states)]
    return torch.cat(states, -1) @ given["fc.weight"].T


def embedding(target, given, tokens):
    own = given.get("embed_tokens.weight", target.module.get_input_embeddings().weight.detach())
    return own[torch.tensor(tokens)]


def reference_logits(given, outputs):
    """Logits (n, V), -inf where nothing is drafted."""
    short = rms(outputs, given["norm.weight"]) @ given["lm_head.weight"].T
    if "d2t" not in given:
        return short
    logits = torch.full((len(outputs), len(given["t2d"])), -torch.inf)
    for at, offset in enumerate(given["d2t"].tolist()):
        logits[:, at + offset] = short[:, at]
    return logits


def reference(target, given, text, drafts, layers=(2, 3, 4), **kind):
    """Outputs (d,) after a text and tokens drafted behind it, by passes over all entries."""
    states = fused(target, given, text[:-1], layers)
    for at in range(len(drafts) + 1):
        outputs = layer(given, embedding(target, given, (text + drafts[:at])[1:]), states, **kind)
        states = torch.cat([states, outputs[-1:]])
    return outputs[-1]


def neural(model):
    """A loaded head or language model as a drafter."""
    return Eagle3Head(model) if isinstance(model, Eagle3Drafter) else DraftModel(model)


def lookup_proposer(longest, match="latest"):
    """What proposes look-up's drafts for one answer."""
    return PromptLookup(longest, match).proposer(None, None, torch.device("cpu"))
