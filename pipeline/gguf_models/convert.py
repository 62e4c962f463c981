"""Writes the model of a GGUF file as a model directory, with transformers' own loader.

Weights are dequantised to float32, which is exact. Three things are ours. The loader ignores what
it does not know (scaled rotary embeddings, a tensor, a splitting of text): such files are refused.
SmolLM2's tokenizer takes every digit alone, which a GGUF file states as a name only. And a
dequantised model has to be told that it is no longer quantised, before it can be saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError, first_line

REFUSED = ("llama.rope.scaling.", "llama.expert_", "llama.attention.sliding_window")
DIGITS_ALONE = {"smollm", "starcoder", "refact", "command-r"}  # names of a splitting
PLAIN = {"gpt-2", "default"}


def convert(path: Path, place: Path) -> dict[str, str]:
    """Write the model and the tokenizer of the GGUF file `path` into the directory `place`.

    Returns:
        name, organization and license, as far as the file has them.

    Raises:
        PipelineError: the file is damaged, or has parts that transformers does not load.
    """
    from transformers import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    try:
        model, tokenizer, fields = _load(path)
    except (PipelineError, MemoryError):
        raise
    except Exception as error:  # libraries raise many kinds; all mean the same to a user
        raise PipelineError(
            f"{path} can't be loaded as a GGUF file, it may be truncated "
            f"({first_line(error)}): fetch it again"
        ) from error
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    names = ("name", "organization", "license")
    return {n: str(fields[f"general.{n}"]) for n in names if f"general.{n}" in fields}


def _load(path: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Return the model in float32, its tokenizer, and the metadata of the file."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
    from transformers.integrations.gguf import read_gguf_metadata

    fields, tensors = read_gguf_metadata(str(path))  # compares each count with the file's size
    check_known(path, fields)
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)
    if fields.get("tokenizer.ggml.pre") in DIGITS_ALONE:
        inner = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        inner.pre_tokenizer = pre_tokenizers.Sequence([digits, inner.pre_tokenizer])
    model, report = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        config=config,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,  # they are reported below, by name
        output_loading_info=True,
    )
    absent = sorted(report["missing_keys"]) + sorted(str(x) for x in report["mismatched_keys"])
    if absent:
        raise PipelineError(
            f"{path} lacks or misshapes {len(absent)} weights ({absent[0]}, ...): fetch or convert "
            "it again"
        )
    weights = len(dict(model.named_parameters()))
    if len(tensors) != weights:
        raise PipelineError(
            f"{path}: of its {len(tensors)} tensors transformers loads {weights}. Take the "
            "model's safetensors instead"
        )
    return model, tokenizer, fields


def check_known(path: Path, fields: dict[str, Any]) -> None:
    """Check that the metadata of a GGUF file state nothing that the loader would ignore.

    Raises:
        PipelineError: another architecture, scaled rotary embeddings, experts, another tokenizer.
    """
    architecture = fields["general.architecture"]
    if architecture != "llama":
        raise PipelineError(
            f"{path} holds a model of architecture {architecture}: only llama is converted here. "
            "Take its safetensors instead"
        )
    if odd := sorted(name for name in fields if name.startswith(REFUSED)):
        raise PipelineError(f"{path}: a Llama with {odd[0]} is not converted here")
    kind = fields.get("tokenizer.ggml.model")
    splitting = fields.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or splitting not in DIGITS_ALONE | PLAIN:
        raise PipelineError(
            f"{path}: its tokenizer is {kind} with splitting {splitting}; converted is gpt2 with "
            f"{', '.join(sorted(DIGITS_ALONE | PLAIN))}. Take the model's safetensors with its "
            "tokenizer.json instead"
        )
