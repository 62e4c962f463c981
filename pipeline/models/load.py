"""Loads causal language models and their tokenizers.

Models come from a local directory or, fetched once, from the hub: safetensors only, and no code
of a repository is ever run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
)
from transformers import logging as transformers_logging

from pipeline.errors import PipelineError, first_line
from pipeline.hub import MODEL_FILES, TOKENIZER_FILES, hub_files, local_path
from pipeline.models import caches
from pipeline.models.devices import choose_device, set_up
from pipeline.models.heads.head_files import read_head
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.heads.load import check_head, load_head
from pipeline.models.language_model import Head, LanguageModel
from pipeline.models.passes import check_cached_steps
from pipeline.models.prompt_tokens import check_same_tokens
from pipeline.models.skinny_matmul import use_few_queries, use_skinny_matmul
from pipeline.models.spec import ModelSpec


def load_model(spec: ModelSpec) -> LanguageModel:
    """Load a model for inference, and check that it can be run a token at a time.

    Raises:
        PipelineError: the model can't be fetched, is no causal language model in safetensors, has
            damaged weights, or can't be run with a key-value cache.
    """
    key, settings, path = spec.key, spec.settings, spec.settings.path
    device = choose_device(spec.device.name)
    set_up(device, spec.device.threads)
    skeleton(spec)
    folder = _folder(path, spec.identity.commit, MODEL_FILES, f"{key}.path")
    transformers_logging.disable_progress_bar()
    try:
        module, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, settings.dtype),
            use_safetensors=True,
            attn_implementation=settings.attention,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # libraries raise many kinds; all mean the same to a user
        raise _unusable(path, key, error) from error
    absent = sorted(report["missing_keys"]) + sorted(str(x) for x in report["mismatched_keys"])
    if absent:
        raise PipelineError(
            f"{key}.path={path}: its files lack or misshape {len(absent)} weights "
            f"({', '.join(absent[:3])}, ...): fetch or export the model again"
        )
    eos = module.generation_config.eos_token_id
    if eos is None:
        eos = _tokenizer(spec).eos_token_id
    eos = tuple(eos) if isinstance(eos, list) else (eos,)
    if not all(token is None or type(token) is int for token in eos):
        raise PipelineError(
            f"{key}.path={path}: eos_token_id in its generation_config.json or config.json is "
            f"{', '.join(map(repr, eos))}: the id of a token is expected, or a list of ids"
        )
    model = wrap(module, settings.label, device, head_dtype=settings.head_dtype, eos=eos, key=key)
    check_cached_steps(model, key)
    return model


def skeleton(spec: ModelSpec) -> LanguageModel:
    """Return a model without weights, for checks before they are read.

    Raises:
        PipelineError: as `load_model`, as far as its config.json tells.
    """
    key, settings, path = spec.key, spec.settings, spec.settings.path
    shape, kind = _architecture(path, spec.identity.commit, key)
    refusal = caches.cache_refusal(kind)
    if refusal:
        raise PipelineError(
            f"{key}.path={path}: {refusal}, so every token would be read without its context: "
            "take a model with attention layers"
        )
    try:
        with torch.device("meta"):
            module = AutoModelForCausalLM.from_config(
                shape, dtype=getattr(torch, settings.dtype), attn_implementation=settings.attention
            )
    except Exception as error:  # as above
        if "attention implementation" in str(error) or isinstance(error, ImportError):
            raise PipelineError(
                f"{key}.attention={settings.attention}: {kind.__name__} does not run with it here: "
                f"give {key}.attention=eager"
            ) from error
        raise _unusable(path, key, error) from error
    meta, where = torch.device("meta"), f"{key}.path={path}"
    return wrap(module, settings.label, meta, head_dtype=settings.head_dtype, key=where)


def _architecture(path: str, commit: str | None, key: str) -> tuple[Any, type]:
    """Return the config.json of a model, and the class that it names."""
    folder = _folder(path, commit, MODEL_FILES, f"{key}.path")
    transformers_logging.set_verbosity_error()
    try:
        shape = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # as above
        raise _unusable(path, key, error) from error
    if type(shape) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise PipelineError(
            f"{key}.path={path}: a model of type {shape.model_type} is no causal language model "
            "that transformers knows: take another model"
        )
    return shape, MODEL_FOR_CAUSAL_LM_MAPPING[type(shape)]


def _unusable(path: str, key: str, error: Exception) -> PipelineError:
    return PipelineError(
        f"{key}.path={path} can't be loaded: {type(error).__name__}: {first_line(error)}. Wanted: "
        "a causal language model that transformers knows, with config.json and model*.safetensors"
    )


def wrap(
    module: Any,
    label: str,
    device: torch.device,
    *,
    head_dtype: str = "float32",
    eos: tuple[int | None, ...] = (),
    key: str = "model",
) -> LanguageModel:
    """Put a transformers model on `device`, its final projection in `head_dtype`.

    On a CPU its passes over few tokens get products of their own: all that loads a model, the
    target alone as well as a verification and a drafter, then runs the same ones.
    """
    module = module.eval().requires_grad_(False).to(device)
    head = module.get_output_embeddings()
    wanted = getattr(torch, head_dtype)
    if not isinstance(head, nn.Linear):
        raise PipelineError(f"{key}: {type(module).__name__} has no linear output projection")
    if head.weight.dtype != wanted:
        module.set_output_embeddings(Head(head, wanted))
    if use_skinny_matmul(module):
        use_few_queries(module)
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
    except Exception as error:  # libraries raise many kinds; all mean the same to a user
        raise PipelineError(
            f"{key}.path={path}: its tokenizer can't be loaded: {type(error).__name__}: "
            f"{first_line(error)}. Wanted: tokenizer.json and tokenizer_config.json"
        ) from error


def _tokenizer(spec: ModelSpec) -> Any:
    return load_tokenizer(spec.settings.path, spec.identity.commit, spec.key)


def _folder(path: str, commit: str | None, patterns: tuple[str, ...], key: str) -> Path:
    return local_path(path) or hub_files(path, commit, list(patterns), key)


def load_pair(
    target: ModelSpec, drafter: ModelSpec
) -> tuple[LanguageModel, LanguageModel | HiddenDrafter]:
    """Load target and drafter.

    Raises:
        PipelineError: one can't be loaded, or drafted tokens can't be taken back.
    """
    model = load_model(target)
    model.check_drafts(target.key)
    if drafter.head is not None:
        return model, load_head(drafter, model)
    drafts = load_model(drafter)
    drafts.check_drafts(drafter.key)
    return model, drafts


def check_pair_skeletons(target: ModelSpec, drafter: ModelSpec) -> None:
    """Check, before any weight is read, that a pair fits.

    Raises:
        PipelineError: as `load_pair`, as far as configurations tell.
    """
    model, key, head = skeleton(target), drafter.key, drafter.head
    model.check_drafts(target.key)
    if head is not None:
        files = read_head(drafter.settings.path, drafter.identity.commit, key)
        check_head(files, model, key)
    else:
        skeleton(drafter).check_drafts(key)


def pair_tokenizer(target: ModelSpec, drafter: ModelSpec) -> Any:
    """Return the tokenizer of the target, which is the drafter's.

    Raises:
        PipelineError: one can't be read, or the two give a token different ids.
    """
    tokenizer = _tokenizer(target)
    if drafter.head is None:
        check_same_tokens(
            tokenizer.get_vocab(),
            _tokenizer(drafter).get_vocab(),
            f"{target.settings.label} and {drafter.settings.label}",
        )
    return tokenizer
