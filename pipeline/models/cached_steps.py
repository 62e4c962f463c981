"""The check that a loaded model reads a text token by token as it reads it in one pass.

A model may accept a cache and ignore it, or count positions so that padding shifts them: its logits
are then wrong without an error. A few tokens of a real text show that at once. On made-up tokens
rounding to 16 bits moves the logits of some models as far as a mistake would (Gemma 3 in bfloat16:
0.2 of their spread, on a text 0.02).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import PipelineError, first_line
from pipeline.models.language_model import LanguageModel
from pipeline.models.passes import Texts

TEXT = "Water boils at a lower temperature on a mountain, because the air above it weighs less."
TOKENS, PADDED = 14, 3  # of the longer text; how much shorter the other one is
STEPS, ALONE = 6, 3  # read with a cache: three one by one, then the others at once, as drafts are
# The error as a part of the logits' spread, both root mean squares over the vocabulary. Rounding
# to float16 gave 4 units of the dtype in 36 random layers; a model without its past is off by 1.
ALLOWED_UNITS = 32
LEAST = 1e-3  # float32 sums in another order: up to 8e-5 in a mixture of experts of large weights


@torch.inference_mode()
def check_cached_steps(model: LanguageModel, tokenizer: Any, key: str) -> None:
    """Check that cached steps of left-padded texts give logits of plain passes, but for rounding.

    And that none is NaN or infinite; -inf is allowed, a masked token.
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
    off = relative_error(plain, cached)
    allowed = max(ALLOWED_UNITS * torch.finfo(model.dtype).eps, LEAST)
    if not off <= allowed:  # NaN, too
        raise PipelineError(
            f"{key}: {model.label} gives other logits a token at a time than in one pass (off by "
            f"{off:.2g} of their spread, {dtype} explains {allowed:.1g}): it does not use "
            f"its key-value cache as others do. Give {key}.dtype=float32, or another model"
        )


def _read_both_ways(model: LanguageModel, tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Return logits (2, STEPS, V) of two texts, in passes without a cache and in steps with one."""
    rows = min(model.vocab_size, model.module.get_input_embeddings().weight.shape[0])
    tokens = tokenizer(TEXT)["input_ids"][:TOKENS]
    if len(set(tokens)) < TOKENS // 2 or len(tokens) < TOKENS or max(tokens) >= rows:
        tokens = [(7919 * at + 5) % rows for at in range(TOKENS)]  # it knows no English
    text = torch.tensor(tokens, device=model.device)
    plain = [
        model.module(input_ids=part[None], use_cache=False).logits[0, -STEPS:]
        for part in (text, text[PADDED:])
    ]
    ids = text.repeat(2, 1)
    ids[1, :PADDED] = 0
    texts = Texts(model, TOKENS, padding=torch.tensor([0, PADDED], device=model.device))
    ends = [*range(TOKENS - STEPS, TOKENS + 1)]
    if model.new_cache(1).is_croppable:
        del ends[ALONE + 1 : -1]
    cached = [texts.extend(ids[:, begin:end]) for begin, end in pairwise([0, *ends])]
    return torch.stack(plain).double(), torch.cat(cached[1:], dim=1).double()


def relative_error(plain: Tensor, cached: Tensor) -> float:
    """Return the error of logits (2, STEPS, V), as a part of their spread.

    Of each text and way of reading it is the median of its steps, since a mixture of experts may
    route a token differently after rounding; of these the largest.
    """
    kept = plain.isfinite()
    count = kept.sum(-1).clamp(min=1)
    mean = plain.where(kept, 0).sum(-1) / count
    spread = (plain - mean[..., None]).where(kept, 0).square().sum(-1).div(count).sqrt()
    error = (plain - cached).where(plain != cached, 0)  # equal infinities, too
    size = error.square().sum(-1).div(count).sqrt()
    ratio = (size / spread).where(size != 0, 0)  # error without spread: infinite; neither: 0
    return float(ratio.view(2, -1, ALONE).median(dim=2).values.max())
