"""Loads causal language models and their tokenizers. The only module that imports transformers.

Models come from a local directory or, fetched once, from the hub: safetensors only, and no code
of a repository is ever run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers import logging as transformers_logging
from transformers.cache_utils import DynamicLayer

from pipeline.devices import choose_device, set_up
from pipeline.errors import PipelineError
from pipeline.heads import Head
from pipeline.identity import MODEL_FILES, TOKENIZER_FILES, hub_files, local_path


class PreallocatedLayer(DynamicLayer):
    """Keys and values of one layer in buffers of full length: a growing cache copies itself."""

    def __init__(self, capacity: int) -> None:
        """Make room for `capacity` tokens a sequence, when the first ones come."""
        super().__init__()
        self._capacity = capacity
        self._columns: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers, whose shape is known only now."""
        super().lazy_initialization(key_states, value_states)
        self._buffers = [
            states.new_empty((*states.shape[:2], self._capacity, states.shape[3]))
            for states in (key_states, value_states)
        ]

    def fix(self, columns: Tensor) -> None:
        """Keep all shapes from now on: attention sees the whole buffers.

        What is appended goes to the columns that the tensor `columns` (n,) holds at that time; the
        caller changes it, and masks the columns that are not in use.
        """
        used = self.get_seq_length()
        for buffer in self._buffers:
            buffer[:, :, used:] = 0  # masked, but 0 times the NaN of unused memory is NaN
        self._columns = columns
        self._show(self._capacity)

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the states (B, heads, n, d); return all that are in use."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self._columns is not None:
            for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
                buffer.index_copy_(2, self._columns, states)
            return self.keys, self.values
        begin = self.get_seq_length()
        end = begin + key_states.shape[2]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, begin:end] = states
        self._show(end)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the sequences `indices`."""
        self._buffers = [buffer[indices] for buffer in self._buffers]
        self._show(self.get_seq_length())

    def _show(self, length: int) -> None:
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)


@dataclass(frozen=True)
class LanguageModel:
    """A loaded model, ready to be run."""

    module: Any
    label: str
    device: torch.device
    vocab_size: int  # the length of a row of logits
    eos: tuple[int, ...]  # tokens that end an answer

    @property
    def context(self) -> float:
        """The longest sequence it was made for, in tokens; infinite where it does not say."""
        limit = getattr(self.module.config.get_text_config(), "max_position_embeddings", None)
        return math.inf if limit is None else limit

    def check_context(self, longest: int, key: str) -> None:
        """Check that the longest prompt and its answer fit.

        Raises:
            PipelineError: they don't; advises to lower `key`, the number of steps.
        """
        if longest > self.context:
            raise PipelineError(
                f"{self.label} takes {self.context} tokens, the longest prompt and its answer "
                f"have {longest}: lower prompts.max_tokens or {key}"
            )

    def new_cache(self, capacity: int) -> DynamicCache:
        """Return an empty key-value cache for sequences of at most `capacity` tokens."""
        cache = DynamicCache(config=self.module.config)
        cache.layers = [
            PreallocatedLayer(capacity) if type(layer) is DynamicLayer else layer
            for layer in cache.layers
        ]
        return cache

    def forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        """Return the logits after the last of `ids`.

        Args:
            ids: (B, n) tokens that are not in the cache yet.
            mask: (B, cached + n) 1 for tokens, 0 for padding; or (B, 1, n, columns of the cache)
                what is added to the attention scores.
            positions: (B, n) positions of `ids` within their sequence, from 0.
            cache: keys and values of what came before; grown in place.

        Returns:
            (B, V) logits in the dtype of the head.
        """
        return self.forward_each(ids, mask, positions, cache, keep=1)[:, -1]

    def forward_each(
        self, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache, keep: int
    ) -> Tensor:
        """Return the (B, keep, V) logits after each of the last `keep` of `ids`; see `forward`."""
        out = self.module(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        return out.logits

    def static_refusal(self) -> str | None:
        """Return why decoding steps of this model can't all have the same shapes, or None."""
        attention = self.module.config._attn_implementation
        if attention not in ("sdpa", "eager"):
            return f"attention: {attention} takes no mask of the scores"
        if any(type(layer) is not PreallocatedLayer for layer in self.new_cache(1).layers):
            return "it has layers that are no full attention"
        return None

    @torch.inference_mode()
    def cache_bytes(self) -> int:
        """Bytes the key-value cache holds for one token of one sequence."""
        one = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        cache = self.new_cache(1)
        self.forward(one, torch.ones_like(one), one, cache)
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)

    def weight_bytes(self) -> int:
        """Bytes of weights that a decoding step reads: embeddings only where they are the head."""
        head = self.module.get_output_embeddings()
        looked_up = self.module.get_input_embeddings()
        read = {parameter.data_ptr(): parameter.nbytes for parameter in self.module.parameters()}
        if head is not None and head.weight is not looked_up.weight:
            read.pop(looked_up.weight.data_ptr(), None)
        return sum(read.values())

    def memory_bytes(self) -> int:
        """Bytes of all parameters and buffers."""
        return sum(t.nbytes for t in (*self.module.parameters(), *self.module.buffers()))


def load_model(config: Mapping[str, Any], settings: Mapping[str, Any], key: str) -> LanguageModel:
    """Load a model for inference.

    Args:
        config: what determines its numbers: commit (of a hub model), dtype, head_dtype, attention.
        settings: where it is and runs: path, revision, label, device, threads.
        key: its configuration key, for errors; "targets.mini_large" for instance.

    Raises:
        PipelineError: the model can't be fetched, or is no causal language model in safetensors.
    """
    device = choose_device(settings["device"])
    set_up(device, settings["threads"])
    transformers_logging.disable_progress_bar()
    path = settings["path"]
    folder = _folder(path, config.get("commit"), MODEL_FILES, f"{key}.path")
    try:
        module, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, config["dtype"]),
            use_safetensors=True,
            attn_implementation=config["attention"],
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise PipelineError(
            f"{key}.path={path} can't be loaded: {_first_line(error)}. Wanted: a causal language "
            "model that transformers knows, with config.json and model*.safetensors"
        ) from error
    absent = sorted(report["missing_keys"]) + sorted(str(x) for x in report["mismatched_keys"])
    if absent:
        raise PipelineError(
            f"{key}.path={path}: its files lack or misshape {len(absent)} weights "
            f"({', '.join(absent[:3])}, ...): fetch or export the model again"
        )
    eos = module.generation_config.eos_token_id
    if eos is None:
        eos = load_tokenizer(path, config.get("commit"), key).eos_token_id
    return wrap(
        module,
        settings["label"],
        device,
        config["head_dtype"],
        tuple(eos) if isinstance(eos, list) else (eos,),
        key,
    )


def wrap(
    module: Any, label: str, device: torch.device, head_dtype: str, eos: tuple[int, ...], key: str
) -> LanguageModel:
    """Put a transformers model on `device`, its final projection in `head_dtype`."""
    module = module.eval().requires_grad_(False).to(device)
    head = module.get_output_embeddings()
    wanted = getattr(torch, head_dtype)
    if not isinstance(head, nn.Linear):
        raise PipelineError(f"{key}: {type(module).__name__} has no linear output projection")
    if head.weight.dtype != wanted:
        module.set_output_embeddings(Head(head, wanted))
    return LanguageModel(
        module, label, device, head.out_features, tuple(token for token in eos if token is not None)
    )


def load_tokenizer(path: str, commit: str | None, key: str) -> Any:
    """Load the tokenizer of the model in `path`; `key` is the model's configuration key.

    Raises:
        PipelineError: it can't be fetched or read.
    """
    folder = _folder(path, commit, (*TOKENIZER_FILES, "config.json"), f"{key}.path")
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise PipelineError(
            f"{key}.path={path}: its tokenizer can't be loaded: "
            f"{_first_line(error)}. Wanted: tokenizer.json and "
            "tokenizer_config.json"
        ) from error


def _folder(path: str, commit: str | None, patterns: tuple[str, ...], key: str) -> Path:
    return local_path(path) or hub_files(path, commit, list(patterns), key)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def random_qwen3(
    shape: Mapping[str, Any], dtype: str, head_dtype: str, device: torch.device, label: str
) -> LanguageModel:
    """Return a Qwen3 with random weights, made on `device`; `shape` as in its config.json."""
    with device:
        module = AutoModelForCausalLM.from_config(
            Qwen3Config(**shape), dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
    return wrap(module, label, device, head_dtype, (), label)


def new_qwen3(shape: Any, vocab_size: int) -> Qwen3ForCausalLM:
    """Return a randomly initialised Qwen3 of the given shape with tied embeddings."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocab_size,
            hidden_size=shape.hidden_size,
            num_hidden_layers=shape.layers,
            intermediate_size=shape.intermediate_size,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=32,
            tie_word_embeddings=True,
            max_position_embeddings=1024,
            rope_theta=10_000.0,
            bos_token_id=None,
            eos_token_id=2,
            pad_token_id=0,
        )
    )


def save_model(
    model: Any, tokenizer_file: Path, directory: Path, chat_template: str, eos: str, pad: str
) -> None:
    """Write a model and its tokenizer as a directory that `load_model` reads."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_file),
        eos_token=eos,
        pad_token=pad,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
