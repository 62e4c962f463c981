"""A Llama in a GGUF file as safetensors, config.json and tokenizer.json hold it.

Quantised weights become the float32 numbers that they stand for, which is exact. Whoever wrote
the file interleaved the two halves of every head's rows of the query and key projections, for
another form of rotary embeddings; here that is undone. Of the splitting before the merges a GGUF
file holds only a name, and it decides: SmolLM2 takes every digit alone, and without that '12' is
one token. The file's counts are checked against its size before anything is allocated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

from pipeline.errors import PipelineError, first_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LAYER = {  # tensor of a layer: its weight, and which numbers of `sizes` its shape has
    "attn_norm": ("input_layernorm", ("hidden",)),
    "attn_q": ("self_attn.q_proj", ("queries", "hidden")),
    "attn_k": ("self_attn.k_proj", ("keys", "hidden")),
    "attn_v": ("self_attn.v_proj", ("keys", "hidden")),
    "attn_output": ("self_attn.o_proj", ("hidden", "queries")),
    "ffn_norm": ("post_attention_layernorm", ("hidden",)),
    "ffn_gate": ("mlp.gate_proj", ("inner", "hidden")),
    "ffn_up": ("mlp.up_proj", ("inner", "hidden")),
    "ffn_down": ("mlp.down_proj", ("hidden", "inner")),
}
REFUSED = ("llama.rope.scaling.", "llama.expert_", "llama.attention.sliding_window")
DIGITS_ALONE = {"smollm", "starcoder", "refact", "command-r"}  # names of a splitting
PLAIN = {"gpt-2", "default"}
SPECIAL, WHOLE = 3, 4  # types of token: never text, and taken whole where it stands in text
SPECIAL_IDS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
ARRAY = 9  # the type of a field that is a list
MOST_ELEMENTS = 1 << 22  # of a list


def convert(path: Path, place: Path) -> dict[str, str]:
    """Write the model of the GGUF file `path` into the directory `place`.

    Returns:
        name, organization and license, as far as the file has them.

    Raises:
        PipelineError: the file is damaged, or holds what is not converted here.
    """
    from safetensors.numpy import save_file

    file = GGUF(path)
    config = model_config(file)
    write_tokenizer(file, config, place)
    save_file(dict(weights(file, config)), place / "model.safetensors", {"format": "pt"})
    write_json(place / "config.json", config)
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(place / "generation_config.json", ends)
    names = ("name", "organization", "license")
    return {n: str(file.fields[f"general.{n}"]) for n in names if f"general.{n}" in file.fields}


class Bounded(GGUFReader):
    """The gguf package's reader, which no count leads beyond the end of the file."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
            raise ValueError("it ends before its last tensor")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == ARRAY and self._get(orig_offs + 4, np.uint64)[0] > MOST_ELEMENTS:
            raise ValueError(f"it has a list of more than {MOST_ELEMENTS} elements")
        return super()._get_field_parts(orig_offs, raw_type)


class GGUF:
    """A GGUF file, opened: its metadata, and its tensors on demand."""

    def __init__(self, path: Path) -> None:
        """Open `path`.

        Raises:
            PipelineError: it is no GGUF file, or ends before its tensors do.
        """
        self.path = path
        try:
            reader = Bounded(path)
            self.fields: dict[str, Any] = {k: f.contents() for k, f in reader.fields.items()}
        except (OSError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            raise PipelineError(
                f"{path} can't be read as a GGUF file, it may be truncated "
                f"({first_line(error)}): fetch it again"
            ) from error
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}

    def field(self, name: str, kind: type = object, default: Any = None) -> Any:
        """Return a field of the metadata, of a type: a number has to be above 0.

        Raises:
            PipelineError: the file has none of that name, or another type's.
        """
        value = self.fields.get(name, default)
        if value is None:
            raise PipelineError(f"{self.path}: its metadata lacks {name}")
        if not isinstance(value, kind) or (isinstance(value, int | float) and not value > 0):
            raise PipelineError(f"{self.path}: {name} is {str(value)[:40]}, which is invalid")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a field that is a list of texts."""
        found: list[str] = self.field(name, list)
        if not all(isinstance(text, str) for text in found):
            raise PipelineError(f"{self.path}: {name} is no list of texts")
        return found

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return a tensor dequantised.

        Raises:
            PipelineError: there is none of that name, or its format is not known.
        """
        if name not in self.tensors:
            raise PipelineError(f"{self.path} lacks the tensor {name}: fetch or convert it again")
        tensor = self.tensors[name]
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
        PipelineError: it is no Llama, one with parts that are not converted, or of no shape.
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
    heads = file.field("llama.attention.head_count", int)
    hidden = file.field("llama.embedding_length", int)
    vocabulary = len(file.texts("tokenizer.ggml.tokens"))
    ids = {f"{key}_token_id": file.fields.get(f"tokenizer.ggml.{name}_token_id")
           for key, name in SPECIAL_IDS.items()}  # fmt: skip
    for name, value in ids.items():
        if not (value is None or (isinstance(value, int) and 0 <= value < vocabulary)):
            raise PipelineError(f"{file.path}: {name} is {value}, but it has {vocabulary} tokens")
    if ids["eos_token_id"] is None:
        raise PipelineError(f"{file.path}: its metadata lacks tokenizer.ggml.eos_token_id")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": file.field("llama.feed_forward_length", int),
        "num_hidden_layers": file.field("llama.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": file.field("llama.attention.head_count_kv", int, heads),
        "head_dim": file.field("llama.attention.key_length", int, hidden // heads),
        "hidden_act": "silu",
        "max_position_embeddings": file.field("llama.context_length", int),
        "rms_norm_eps": _shortest(file.field("llama.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": _shortest(file.field("llama.rope.freq_base", float, 10_000.0)),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": vocabulary,
        **{key: ids[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
        "dtype": "float32",
    }


def weights(file: GGUF, config: dict[str, Any]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the name and value of every weight of the model, as transformers names them.

    Raises:
        PipelineError: a tensor is missing, has another shape, or is not known.
    """
    unknown = set(file.tensors)
    for source, name, shape in _shapes(config):
        value = file.tensor(source)
        unknown.discard(source)
        if value.shape != shape:
            raise PipelineError(f"{file.path}: {source} has shape {value.shape}, not {shape}")
        if source.endswith("attn_q.weight"):
            value = deinterleave(value, config["num_attention_heads"])
        elif source.endswith("attn_k.weight"):
            value = deinterleave(value, config["num_key_value_heads"])
        yield name, value
    if unknown:
        raise PipelineError(
            f"{file.path}: the tensor {min(unknown)} does not belong to a plain Llama and is not "
            "converted"
        )


def deinterleave(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Return the rows of each head with its even ones first, then its odd ones.

    Args:
        weight: (heads * d, n) a query or key projection whose heads hold rows i and i + d/2 of
            the original beside each other.
        heads: the number of heads.

    Examples:
        >>> deinterleave(np.arange(8)[:, None], 2)[:, 0]
        array([0, 2, 1, 3, 4, 6, 5, 7])
    """
    rows, n = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, n)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, n))


def _shapes(config: dict[str, Any]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield the tensor's name in the file, the weight's name and its shape, one after the other."""
    hidden, width = config["hidden_size"], config["head_dim"]
    sizes = {"hidden": hidden, "inner": config["intermediate_size"]}
    sizes |= {"queries": config["num_attention_heads"] * width}
    sizes |= {"keys": config["num_key_value_heads"] * width}
    vocabulary = (config["vocab_size"], hidden)
    yield "token_embd.weight", "model.embed_tokens.weight", vocabulary
    for at in range(config["num_hidden_layers"]):
        for part, (name, shape) in LAYER.items():
            shape_ = tuple(sizes[size] for size in shape)
            yield f"blk.{at}.{part}.weight", f"model.layers.{at}.{name}.weight", shape_
    yield "output_norm.weight", "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "output.weight", "lm_head.weight", vocabulary


def _shortest(value: float) -> float:
    """Return the shortest decimal that is the same float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def write_tokenizer(file: GGUF, config: dict[str, Any], place: Path) -> None:
    """Write the tokenizer of `file`, and its chat template if it has one, into `place`.

    Raises:
        PipelineError: its kind or its splitting is not known here, or its lists do not fit.
    """
    from tokenizers import AddedToken

    names, kinds = file.texts("tokenizer.ggml.tokens"), file.field("tokenizer.ggml.token_type")
    if not isinstance(kinds, list) or len(kinds) != len(names):
        raise PipelineError(f"{file.path}: it has {len(names)} tokens, not one type for each")
    tokenizer = byte_pairs(file, names)
    for name, kind in zip(names, kinds, strict=True):
        if kind == SPECIAL:
            tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True)])
        elif kind == WHOLE:
            tokenizer.add_tokens([AddedToken(name, normalized=False)])
    tokenizer.save(str(place / "tokenizer.json"))
    ids = {
        key: file.fields.get(f"tokenizer.ggml.{name}_token_id") for key, name in SPECIAL_IDS.items()
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        **{f"{key}_token": names[at] for key, at in ids.items() if at is not None},
    }
    write_json(place / "tokenizer_config.json", settings)
    template = file.field("tokenizer.chat_template", str, "")
    if template:
        (place / "chat_template.jinja").write_text(template, encoding="utf-8")


def byte_pairs(file: GGUF, names: list[str]) -> Tokenizer:
    """Return the byte-pair encoding of `file` with the tokens `names`, in order of their ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    kind = file.field("tokenizer.ggml.model")
    splitting = file.field("tokenizer.ggml.pre", str, "default")
    if kind != "gpt2" or splitting not in DIGITS_ALONE | PLAIN:
        known = ", ".join(sorted(DIGITS_ALONE | PLAIN))
        raise PipelineError(
            f"{file.path}: its tokenizer is {kind} with splitting {splitting}; converted is gpt2 "
            f"with {known}. Take the model's safetensors with its tokenizer.json instead"
        )
    pairs = [merge.split(" ") for merge in file.texts("tokenizer.ggml.merges")]
    try:
        merges = [(left, right) for left, right in pairs]
        made = Tokenizer(models.BPE({name: at for at, name in enumerate(names)}, merges))
    except Exception as error:  # tokenizers raises nothing more special
        raise PipelineError(
            f"{file.path}: the tokenizer's merges do not fit its tokens ({error}): fetch it again"
        ) from error
    prefix = bool(file.fields.get("tokenizer.ggml.add_space_prefix", False))
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    digits = pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = (
        pre_tokenizers.Sequence([digits, bytewise]) if splitting in DIGITS_ALONE else bytewise
    )
    made.decoder = decoders.ByteLevel()
    return made


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` for people to read."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
