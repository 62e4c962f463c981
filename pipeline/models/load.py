"""Loads causal language models and their tokenizers.

Models come from a local directory or, fetched once, from the hub: safetensors only, and no code
of a repository is ever run.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
)
from transformers import logging as transformers_logging

from pipeline.errors import PipelineError, first_line
from pipeline.hub import MODEL_FILES, TOKENIZER_FILES, model_folder
from pipeline.models.cached_steps import check_cached_steps
from pipeline.models.devices import choose_device, set_up
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.heads.load import check_head, load_head
from pipeline.models.language_model import Head, LanguageModel
from pipeline.models.tokens import check_same_tokens, common_rows
from pipeline.stage import ModelSpec

MODEL = "a causal language model that transformers knows, with config.json and model*.safetensors"
FLOATS = {"F64", "F32", "F16", "BF16"}  # as safetensors names them
TOKENIZER = "tokenizer.json and tokenizer_config.json"


def load_model(spec: ModelSpec) -> LanguageModel:
    """Load a model for inference, and check that it can be run a token at a time."""
    key, settings, path = spec.key, spec.settings, spec.settings.path
    device = choose_device(spec.device.name)
    set_up(device, spec.device.threads)
    skeleton(spec)
    folder = model_folder(path, spec.identity.commit, MODEL_FILES, f"{key}.path")
    transformers_logging.disable_progress_bar()
    with _loading(f"{key}.path={path}", MODEL):
        module, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, settings.dtype),
            use_safetensors=True,
            attn_implementation=settings.attention,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    absent = sorted(report["missing_keys"]) + sorted(str(x) for x in report["mismatched_keys"])
    if absent:
        raise PipelineError(
            f"{key}.path={path}: its files lack or misshape {len(absent)} weights "
            f"({', '.join(absent[:3])}, ...): fetch or export the model again"
        )
    types = _stored_types(folder) - FLOATS
    if types and getattr(module.config, "quantization_config", None) is None:
        raise PipelineError(
            f"{key}.path={path}: its weights are stored as {', '.join(sorted(types))}, and its "
            f"config.json tells no scale for them: {', '.join(sorted(FLOATS))} are read"
        )
    tokenizer = load_tokenizer(path, spec.identity.commit, key)
    eos = module.generation_config.eos_token_id
    if eos is None:
        eos = tokenizer.eos_token_id
    eos = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
    model = wrap(module, settings.label, device, settings.head_dtype, eos, key=key)
    check_cached_steps(model, tokenizer, key)
    return model


def _stored_types(folder: Path) -> set[str]:
    types = set[str]()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            names = [name for name in file.keys() if name.endswith("weight")]  # noqa: SIM118
            types |= {file.get_slice(name).get_dtype() for name in names}
    return types


def skeleton(spec: ModelSpec) -> LanguageModel:
    """Return a model without weights, for checks before they are read."""
    key, settings, where = spec.key, spec.settings, f"{spec.key}.path={spec.settings.path}"
    folder = model_folder(settings.path, spec.identity.commit, MODEL_FILES, f"{key}.path")
    transformers_logging.set_verbosity_error()
    with _loading(where, MODEL):
        shape = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(shape), None)
    if kind is None:
        raise PipelineError(
            f"{where}: a model of type {shape.model_type} is no causal language model that "
            "transformers knows: take another model"
        )
    if "past_key_values" not in inspect.signature(kind.forward).parameters:
        # it would swallow one silently, and read every token as if nothing came before
        raise PipelineError(
            f"{where}: {kind.__name__} takes no key-value cache (past_key_values), so every token "
            "would be read without its context: take a model with attention layers"
        )
    given = f"{where} with {key}.attention={settings.attention}"
    with _loading(given, f"{MODEL}, or {key}.attention=eager"), torch.device("meta"):
        module = AutoModelForCausalLM.from_config(
            shape, dtype=getattr(torch, settings.dtype), attn_implementation=settings.attention
        )
    return wrap(module, settings.label, torch.device("meta"), settings.head_dtype, key=where)


@contextmanager
def _loading(where: str, wanted: str) -> Iterator[None]:
    """Report what a library refuses in one line: where, why, and what is wanted."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # libraries raise many kinds; all mean the same to a user
        raise PipelineError(
            f"{where} can't be loaded: {type(error).__name__}: {first_line(error)}. "
            f"Wanted: {wanted}"
        ) from error


def wrap(
    module: Any,
    label: str,
    device: torch.device,
    head_dtype: str = "float32",
    eos: tuple[int, ...] = (),
    *,
    key: str = "model",
) -> LanguageModel:
    """Put a transformers model on `device`, its final projection in `head_dtype`."""
    module = module.eval().requires_grad_(False).to(device)
    module.config.get_text_config().tie_last_hidden_states = False  # see `LanguageModel.read`
    head = module.get_output_embeddings()
    wanted = getattr(torch, head_dtype)
    if not isinstance(head, nn.Linear):
        raise PipelineError(f"{key}: {type(module).__name__} has no linear output projection")
    if head.weight.dtype != wanted:
        with _loading(f"{key}: {type(module).__name__}", MODEL):
            module.set_output_embeddings(Head(head, wanted))
    return LanguageModel(module, label, device, head.out_features, eos)


def load_tokenizer(path: str, commit: str | None, key: str) -> Any:
    """Load the tokenizer of the model in `path`; `key` is the model's configuration key."""
    files = (*TOKENIZER_FILES, "config.json")
    folder = model_folder(path, commit, files, f"{key}.path")
    with _loading(f"{key}.path={path}: its tokenizer", TOKENIZER):
        made = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    return made  # noqa: RET504 (mypy takes it that _loading may swallow an error)


def load_pair(
    target: ModelSpec, drafter: ModelSpec
) -> tuple[LanguageModel, LanguageModel | HiddenDrafter]:
    """Load target and drafter."""
    model = load_model(target)
    model.check_drafts(target.key)
    if drafter.head is not None:
        return model, load_head(drafter, model)
    drafts = load_model(drafter)
    drafts.check_drafts(drafter.key)
    return model, drafts


def check_pair(target: ModelSpec, drafter: ModelSpec) -> None:
    """Check, before any weight is read, that a pair fits."""
    model = skeleton(target)
    model.check_drafts(target.key)
    if drafter.head is not None:
        check_head(drafter, model)
        return
    drafts = skeleton(drafter)
    drafts.check_drafts(drafter.key)
    tokens = 1 + max(pair_tokenizer(target, drafter).get_vocab().values())
    common_rows(model.vocab_size, drafts.vocab_size, tokens, _pair(target, drafter))


def pair_tokenizer(*models: ModelSpec) -> Any:
    """Return the tokenizer of a target, which is its drafter's."""
    tokenizer, *others = (
        load_tokenizer(spec.settings.path, spec.identity.commit, spec.key)
        for spec in models
        if spec.head is None
    )
    for other in others:
        check_same_tokens(tokenizer.get_vocab(), other.get_vocab(), _pair(*models))
    return tokenizer


def _pair(target: ModelSpec, drafter: ModelSpec) -> str:
    return " and ".join(f"{spec.key}.path={spec.settings.path}" for spec in (target, drafter))
