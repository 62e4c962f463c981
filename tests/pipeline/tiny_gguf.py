"""A random Llama of a few thousand weights, as the GGUF file that llama.cpp's converter writes."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from transformers import LlamaConfig, LlamaForCausalLM

from tests.pipeline import tiny

NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)  # two layers
PAIRS = [("1", "2"), ("Ġ", "Ġ")]  # merges that the splitting of digits does or does not allow


def llama() -> LlamaForCausalLM:
    """A random Llama with three queries a key, as SmolLM2 has."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=96, num_hidden_layers=2, intermediate_size=64,
        num_attention_heads=6, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
        rms_norm_eps=1e-5, rope_parameters={"rope_theta": 100_000.0, "rope_type": "default"},
        tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(mean=float("norm" in name), std=0.2 if "embed" in name else 0.4)
    return model.eval()


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's `LlamaModel.permute` does to a query or key projection."""
    rows = weight.shape[0] // heads // 2
    split = weight.reshape(heads, 2, rows, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def tensor_name(name: str) -> str:
    """The name in the file of a weight of transformers' model."""
    return f"{NAMES.get_name(name.removesuffix('.weight'))}.weight"


def write(path: Path) -> Path:
    """Write the model with the tokenizer of `tests.pipeline.tiny`.

    Matrices are stored as the package's file does: Q4_1, and the embedding Q8_0.
    """
    model = llama()
    config = model.config
    tokenizer = json.loads(tiny.byte_tokenizer().to_str())
    tokens = [*tokenizer["model"]["vocab"], *("".join(pair) for pair in PAIRS)]
    assert len(tokens) <= config.vocab_size
    tokens += [f"<|unused{i}|>" for i in range(config.vocab_size - len(tokens))]
    fields: dict[str, Any] = {
        "general.name": "Tiny", "general.license": "mit",
        "llama.block_count": config.num_hidden_layers, "llama.context_length": 256,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 100_000.0,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token.startswith("<|") else 1 for token in tokens],
        "tokenizer.ggml.merges": [
            " ".join(pair) for pair in [*tokenizer["model"]["merges"], *PAIRS]
        ],
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0, "tokenizer.chat_template": tiny.TEMPLATE,
    }  # fmt: skip
    writer = GGUFWriter(path, "llama")
    add: dict[type, Any] = {
        str: writer.add_string, int: writer.add_uint32, float: writer.add_float32,
        list: writer.add_array,
    }  # fmt: skip
    for name, value in fields.items():
        add[type(value)](name, value)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":  # tied
            continue
        value = weight.numpy()
        for part, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
            if f"{part}_proj" in name:
                value = interleaved(value, heads)
        kind = GGMLQuantizationType.F32
        if value.ndim == 2:
            kind = GGMLQuantizationType.Q8_0 if "embed" in name else GGMLQuantizationType.Q4_1
        stored = gguf.quants.quantize(value, kind)
        writer.add_tensor(tensor_name(name), stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
