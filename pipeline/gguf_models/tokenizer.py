"""The tokenizer of a GGUF file, as the hub's tokenizer.json has it.

A GGUF file holds the vocabulary and the merges, but of the splitting before them only a name.
The splitting decides: SmolLM2 takes every digit alone, and without that '12' is one token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from pipeline.gguf_models.weights import GGUF

DIGITS_ALONE = {"smollm", "starcoder", "refact", "command-r"}  # names of a splitting
PLAIN = {"gpt-2", "default"}
SPECIAL, WHOLE = 3, 4  # types of token: never text, and taken whole where it stands in text
NAMES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def write_tokenizer(file: GGUF, place: Path) -> None:
    """Write the tokenizer of `file`, and its chat template if it has one, into `place`.

    Raises:
        PipelineError: its kind or its splitting is not known here.
    """
    from tokenizers import AddedToken

    names: list[str] = file.field("tokenizer.ggml.tokens")
    tokenizer = byte_pairs(file, names)
    for name, kind in zip(names, file.field("tokenizer.ggml.token_type"), strict=True):
        if kind == SPECIAL:
            tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True)])
        elif kind == WHOLE:
            tokenizer.add_tokens([AddedToken(name, normalized=False)])
    tokenizer.save(str(place / "tokenizer.json"))
    ids = {key: file.fields.get(f"tokenizer.ggml.{name}_token_id") for key, name in NAMES.items()}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.field("llama.context_length"),
        **{f"{key}_token": names[at] for key, at in ids.items() if at is not None},
    }
    (place / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    template = file.fields.get("tokenizer.chat_template")
    if template is not None:
        (place / "chat_template.jinja").write_text(template, encoding="utf-8")


def byte_pairs(file: GGUF, names: list[str]) -> Tokenizer:
    """Return the byte-pair encoding of `file` with the tokens `names`, in order of their ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    kind = file.field("tokenizer.ggml.model")
    splitting = file.fields.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or splitting not in DIGITS_ALONE | PLAIN:
        known = ", ".join(sorted(DIGITS_ALONE | PLAIN))
        raise PipelineError(
            f"{file.path}: its tokenizer is {kind} with splitting {splitting}; converted is gpt2 "
            f"with {known}. Take the model's safetensors with its tokenizer.json instead"
        )
    pairs = [merge.split(" ") for merge in file.field("tokenizer.ggml.merges")]
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
