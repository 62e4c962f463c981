"""The weights and the shape of a Llama in a GGUF file, as safetensors and config.json hold them.

Quantised weights become the float32 numbers that they stand for, which is exact. Whoever wrote
the file interleaved the two halves of every head's rows of the query and key projections, for
another form of rotary embeddings; here that is undone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import PipelineError

Field = Any  # a number, a string or a list of them
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
REFUSED = ("llama.rope.scaling.", "llama.expert_", "llama.attention.sliding_window")


class GGUF:
    """A GGUF file, opened: its metadata, and its tensors on demand."""

    def __init__(self, path: Path) -> None:
        """Open `path`.

        Raises:
            PipelineError: it is no GGUF file, or ends before its tensors do.
        """
        from gguf import GGUFReader

        self.path = path
        try:
            reader = GGUFReader(path)
            self.fields: dict[str, Field] = {k: f.contents() for k, f in reader.fields.items()}
        except (OSError, ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
            raise PipelineError(
                f"{path} can't be read as a GGUF file, it may be truncated "
                f"({_first_line(error)}): fetch it again"
            ) from error
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    @property
    def names(self) -> set[str]:
        """The names of its tensors."""
        return set(self._tensors)

    def field(self, name: str) -> Field:
        """Return a field of the metadata.

        Raises:
            PipelineError: the file has none of that name.
        """
        if name not in self.fields:
            raise PipelineError(f"{self.path}: its metadata lacks {name}")
        return self.fields[name]

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return a tensor dequantised.

        Raises:
            PipelineError: there is none of that name, or its format is not known.
        """
        from gguf.quants import dequantize

        if name not in self._tensors:
            raise PipelineError(f"{self.path} lacks the tensor {name}: fetch or convert it again")
        tensor = self._tensors[name]
        try:
            return np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        except (NotImplementedError, ValueError) as error:
            raise PipelineError(
                f"{self.path}: {name} is stored as {tensor.tensor_type.name}, which the gguf "
                "package can't dequantise: take a file of another quantisation"
            ) from error


def model_config(file: GGUF) -> dict[str, Any]:
    """Return config.json of the Llama in `file`.

    Raises:
        PipelineError: it is no Llama, or one with parts that are not converted.
    """
    kind = file.field("general.architecture")
    if kind != "llama":
        raise PipelineError(
            f"{file.path} holds a model of architecture {kind}: only llama is converted here. "
            "Take its safetensors instead"
        )
    odd = sorted(name for name in file.fields if name.startswith(REFUSED))
    if odd:
        raise PipelineError(f"{file.path}: a Llama with {odd[0]} is not converted here")
    heads = file.field("llama.attention.head_count")
    hidden = file.field("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": file.field("llama.feed_forward_length"),
        "num_hidden_layers": file.field("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.fields.get("llama.attention.head_count_kv", heads),
        "head_dim": file.fields.get("llama.attention.key_length", hidden // heads),
        "hidden_act": "silu",
        "max_position_embeddings": file.field("llama.context_length"),
        "rms_norm_eps": _shortest(file.field("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(file.fields.get("llama.rope.freq_base", 10_000.0)),
        "tie_word_embeddings": "output.weight" not in file.names,
        "vocab_size": len(file.field("tokenizer.ggml.tokens")),
        "bos_token_id": file.fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.fields.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def weights(file: GGUF, config: dict[str, Any]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the name and value of every weight of the model, as transformers names them.

    Raises:
        PipelineError: a tensor is missing, has another shape, or is not known.
    """
    shapes = _shapes(config)
    unknown = sorted(file.names - set(shapes))
    if unknown:
        raise PipelineError(
            f"{file.path}: the tensor {unknown[0]} is no part of a plain Llama and is not converted"
        )
    for source, (name, shape) in shapes.items():
        value = file.tensor(source)
        if value.shape != shape:
            raise PipelineError(f"{file.path}: {source} has shape {value.shape}, not {shape}")
        if source.endswith("attn_q.weight"):
            value = deinterleave(value, config["num_attention_heads"])
        elif source.endswith("attn_k.weight"):
            value = deinterleave(value, config["num_key_value_heads"])
        yield name, value


def deinterleave(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Return the rows of each head with its even ones first, then its odd ones.

    Args:
        weight: (heads * d, n) a query or key projection whose heads hold rows i and i + d/2 of
            the original beside each other.
        heads: the number of heads.

    Example:
        >>> deinterleave(np.arange(8)[:, None], 2)[:, 0]
        array([0, 2, 1, 3, 4, 6, 5, 7])
    """
    rows, n = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, n)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, n))


def _shapes(config: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return name and shape of every weight by the name of its tensor in the file."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    vocabulary = (config["vocab_size"], hidden)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,), "attn_q": (queries, hidden), "attn_k": (keys, hidden),
        "attn_v": (keys, hidden), "attn_output": (hidden, queries), "ffn_norm": (hidden,),
        "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner),
    }  # fmt: skip
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    shapes["token_embd.weight"] = ("model.embed_tokens.weight", vocabulary)
    for at in range(config["num_hidden_layers"]):
        for part, shape in layer.items():
            name = f"model.layers.{at}.{LAYER[part]}.weight"
            shapes[f"blk.{at}.{part}.weight"] = (name, shape)
    shapes["output_norm.weight"] = ("model.norm.weight", (hidden,))
    if not config["tie_word_embeddings"]:
        shapes["output.weight"] = ("lm_head.weight", vocabulary)
    return shapes


def _shortest(value: float) -> float:
    """Return the shortest decimal that is the same float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
