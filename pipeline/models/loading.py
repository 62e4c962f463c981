"""Loads causal language models and their tokenizers.

Models come from a local directory or, fetched once, from the hub: safetensors only, and no code
of a repository is ever run.

Some models accept a cache and ignore it, or count padding as positions: their logits are then wrong
without an error. `check_cached_steps` finds that on a few tokens of a real text. Random tokens
would not do: on these, rounding to 16 bits moves the logits of some models as far as a mistake
would (Gemma 3 in bfloat16 by 0.2 of their spread, against 0.02 on a text).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
)
from transformers import logging as transformers_logging

from pipeline.core.errors import PipelineError, first_line
from pipeline.core.stage import ModelSpec
from pipeline.inputs.hub import model_folder
from pipeline.inputs.integrity import check_one_form
from pipeline.inputs.local_files import MODEL_FILES, TOKENIZER_FILES, file_state
from pipeline.models.devices import choose_device, set_up
from pipeline.models.kept import load_once
from pipeline.models.kv_session import KVSession
from pipeline.models.language_model import LanguageModel, LMHead
from pipeline.models.products import use_fast_products

WANTED_MODEL = (
    "a causal language model that transformers knows, with config.json and model*.safetensors"
)
FLOATS = {"F64", "F32", "F16", "BF16"}  # as safetensors names them
WANTED_TOKENIZER = "tokenizer.json and tokenizer_config.json"
# `check_cached_steps` reads this text, and the same without its first tokens
CHECK_TEXT = (
    "Water boils at a lower temperature on a mountain, because the air above it weighs less."
)
CHECK_TOKENS = 14  # read of it
CHECK_PADDING = 3  # tokens that the second text lacks
CHECK_STEPS = 6  # the last tokens, read with a cache
SINGLE_STEPS = 3  # the first of these one by one, the others at once, like a draft
# Tolerated error, relative to the spread of the logits (both are root mean squares over the
# vocabulary), in units of the dtype's eps. Rounding to float16 in 36 random layers gave 4 units; a
# model that ignores its cache has an error of 1.
TOLERATED_EPS = 32
# In float32 another order of sums gives up to 8e-5, in a mixture of experts with large weights.
MIN_TOLERANCE = 1e-3


def load_model(spec: ModelSpec) -> LanguageModel:
    """Load a model for inference, and check that it gives the same logits with a cache."""
    set_up(choose_device(spec.device.name), spec.device.threads)
    return load_once(spec, _load)


def _load(spec: ModelSpec) -> LanguageModel:
    key = spec.key
    settings = spec.settings
    path = spec.settings.path
    device = choose_device(spec.device.name)
    config = skeleton(spec).module.config
    folder = model_folder(path, spec.identity.commit, MODEL_FILES, f"{key}.path")
    transformers_logging.disable_progress_bar()
    with _loading(f"{key}.path={path}", WANTED_MODEL):
        module, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=copy.deepcopy(config),
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
    eos_ids: tuple[int, ...] = ()
    if eos is not None:
        eos_ids = tuple(eos) if isinstance(eos, list) else (eos,)
    model = wrap(module, settings.label, device, settings.head_dtype, eos_ids, key=key)
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
    """Return a model without weights, on the meta device, for checks before weights are read."""
    path = spec.settings.path
    folder = model_folder(path, spec.identity.commit, MODEL_FILES, f"{spec.key}.path")
    with _loading(f"{spec.key}.path={path}", WANTED_MODEL):
        check_one_form(folder)
    return _skeleton(spec, folder)


@lru_cache(maxsize=8)
def _skeleton(spec: ModelSpec, folder: Path) -> LanguageModel:
    """Build a model without weights, once in a process."""
    key = spec.key
    settings = spec.settings
    where = f"{spec.key}.path={spec.settings.path}"
    transformers_logging.set_verbosity_error()
    with _loading(where, WANTED_MODEL):
        shape = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(shape), None)
    if kind is None:
        raise PipelineError(
            f"{where}: a model of type {shape.model_type} is no causal language model that "
            "transformers knows: take another model"
        )
    if "past_key_values" not in inspect.signature(kind.forward).parameters:
        # it would ignore the cache silently, and read every token without its context
        raise PipelineError(
            f"{where}: {kind.__name__} takes no key-value cache (past_key_values), so every token "
            "would be read without its context: take a model with attention layers"
        )
    what = f"{where} with {key}.attention={settings.attention}"
    with _loading(what, f"{WANTED_MODEL}, or {key}.attention=eager"), torch.device("meta"):
        module = AutoModelForCausalLM.from_config(
            shape, dtype=getattr(torch, settings.dtype), attn_implementation=settings.attention
        )
    return wrap(module, settings.label, torch.device("meta"), settings.head_dtype, key=where)


@contextmanager
def _loading(where: str, wanted: str) -> Iterator[None]:
    """Turn an error of a library into one line: where, why, and what is wanted."""
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
    module.config.get_text_config().tie_last_hidden_states = False  # see `LanguageModel.forward`
    head = module.get_output_embeddings()
    wanted = getattr(torch, head_dtype)
    if not isinstance(head, nn.Linear):
        raise PipelineError(f"{key}: {type(module).__name__} has no linear output projection")
    if head.weight.dtype != wanted:
        with _loading(f"{key}: {type(module).__name__}", WANTED_MODEL):
            module.set_output_embeddings(LMHead(head, wanted))
    use_fast_products(module)
    return LanguageModel(module, label, device, head.out_features, eos)


def load_tokenizer(path: str, commit: str | None, key: str) -> Any:
    """Load the tokenizer of the model in `path`; `key` is the model's configuration key."""
    files = (*TOKENIZER_FILES, "config.json")
    folder = model_folder(path, commit, files, f"{key}.path")
    states = tuple(file_state(folder / name) for name in files if (folder / name).is_file())
    with _loading(f"{key}.path={path}: its tokenizer", WANTED_TOKENIZER):
        tokenizer = _tokenizer(folder, states)
    return tokenizer  # noqa: RET504 (mypy takes it that _loading may swallow an error)


@lru_cache(maxsize=8)
def _tokenizer(folder: Path, _states: tuple[str, ...]) -> Any:
    """Read a tokenizer; one whose files are as they were is read once in a process."""
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


@torch.inference_mode()
def check_cached_steps(model: LanguageModel, tokenizer: Any, key: str) -> None:
    """Check that a model gives the same logits with a cache and padding as without, up to rounding.

    None may be NaN or +inf; -inf is a masked token.

    Raises:
        PipelineError: they differ, are broken, or the model fails.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    try:
        plain, cached = _read_both_ways(model, tokenizer)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # of code that is not ours; all mean the same to a user
        raise PipelineError(
            f"{key}: {model.label} can't decode token by token: {type(error).__name__}: "
            f"{first_line(error)}. Take another model"
        ) from error
    if bool((plain.isnan() | plain.isposinf()).any()):
        raise PipelineError(
            f"{key}: {model.label} gives NaN or infinite logits: its weights are damaged, or too "
            f"large for {key}.dtype={dtype}: give float32 or bfloat16, or fetch it again"
        )
    error_size = relative_error(plain, cached)
    tolerance = max(TOLERATED_EPS * torch.finfo(model.dtype).eps, MIN_TOLERANCE)
    if not error_size <= tolerance:  # also if it is NaN
        raise PipelineError(
            f"{key}: {model.label} gives other logits a token at a time than in one pass (off by "
            f"{error_size:.2g} of their spread, {dtype} explains {tolerance:.1g}): it does not use "
            f"its key-value cache as others do. Give {key}.dtype=float32, or another model"
        )


def _read_both_ways(model: LanguageModel, tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Return logits (2, CHECK_STEPS, V) of two texts: without a cache, and in steps with one."""
    rows = min(model.vocab_size, model.module.get_input_embeddings().weight.shape[0])
    tokens = tokenizer(CHECK_TEXT)["input_ids"][:CHECK_TOKENS]
    if len(set(tokens)) < CHECK_TOKENS // 2 or len(tokens) < CHECK_TOKENS or max(tokens) >= rows:
        # the tokenizer does not know English: any tokens
        tokens = [(7919 * index + 5) % rows for index in range(CHECK_TOKENS)]
    text = torch.tensor(tokens, device=model.device)
    plain = [
        model.module(input_ids=part[None], use_cache=False).logits[0, -CHECK_STEPS:]
        for part in (text, text[CHECK_PADDING:])
    ]
    ids = text.repeat(2, 1)
    ids[1, :CHECK_PADDING] = 0
    padding = torch.tensor([0, CHECK_PADDING], device=model.device)
    texts = KVSession(model, CHECK_TOKENS, padding=padding)
    ends = [*range(CHECK_TOKENS - CHECK_STEPS, CHECK_TOKENS + 1)]
    if model.new_cache(1).is_croppable:
        del ends[SINGLE_STEPS + 1 : -1]
    cached = [texts.append(ids[:, begin:end]) for begin, end in pairwise([0, *ends])]
    return torch.stack(plain).double(), torch.cat(cached[1:], dim=1).double()


def relative_error(plain: Tensor, cached: Tensor) -> float:
    """Return the error of logits (2, CHECK_STEPS, V), relative to their spread.

    It is the largest over the two texts, and over steps of one or of several tokens, of the median
    over steps: after rounding, a mixture of experts may route a single token differently.
    """
    kept = plain.isfinite()
    count = kept.sum(-1).clamp(min=1)
    mean = plain.where(kept, 0).sum(-1) / count
    spread = (plain - mean[..., None]).where(kept, 0).square().sum(-1).div(count).sqrt()
    error = (plain - cached).where(plain != cached, 0)  # 0 also for equal infinities
    size = error.square().sum(-1).div(count).sqrt()
    ratio = (size / spread).where(size != 0, 0)  # an error without any spread is infinite
    return float(ratio.view(2, -1, SINGLE_STEPS).median(dim=2).values.max())
