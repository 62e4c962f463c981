"""Holds a loaded model's cached, padded steps against plain passes, before anything relies on them.

A model may accept a cache and ignore it, or count positions so that padding shifts them: its
logits are then wrong without an error. A few made-up tokens show that at once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipeline.errors import PipelineError, first_line
from pipeline.models.passes import Texts

if TYPE_CHECKING:
    from pipeline.models.language_model import LanguageModel

TOKENS, PADDED = 14, 3  # of the longer text; how much shorter the other one is
STEPS, ALONE = 6, 3  # read with a cache: three one by one, then the others at once, as drafts are
# The error as a part of the logits' spread, both root mean squares over the vocabulary. Rounding
# to float16 gave 4 units of the dtype in 36 random layers; a model without its past is off by 1.
UNITS = 32
LEAST = 1e-3  # float32 sums in another order: up to 8e-5 in a mixture of experts of large weights


@torch.inference_mode()
def check_cached_steps(model: LanguageModel, key: str) -> None:
    """Check that cached steps of left-padded texts give the logits of plain uncached passes.

    Args:
        model: loaded, on its device.
        key: its configuration key, for errors.

    Raises:
        PipelineError: they don't, beyond the rounding of the model's dtype; or the logits are NaN
            or infinite (-inf is allowed: a masked token); or the model can't be run so at all.
    """
    try:
        plain, cached = both_ways(model)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # of code that is not ours; all mean the same to a user
        raise PipelineError(
            f"{key}: {model.label} can't be run a token at a time: {type(error).__name__}: "
            f"{first_line(error)}. Take another model"
        ) from error
    if bool((plain.isnan() | plain.isposinf()).any()):
        raise PipelineError(
            f"{key}: {model.label} gives NaN or infinite logits: its weights are damaged, or too "
            f"large for {key}.dtype={_name(model)}: give {key}.dtype=float32 or bfloat16, or "
            "fetch the model again"
        )
    off = relative_error(plain, cached)
    allowed = max(UNITS * torch.finfo(model.module.dtype).eps, LEAST)
    if not off <= allowed:  # NaN, too
        raise PipelineError(
            f"{key}: {model.label} gives other logits a token at a time than in one pass (off by "
            f"{off:.2g} of their spread, {_name(model)} explains {allowed:.1g}): it does not use "
            f"its key-value cache as other models do. Give {key}.dtype=float32, or take another "
            "model"
        )


def both_ways(model: LanguageModel) -> tuple[Tensor, Tensor]:
    """Return (2, STEPS, V) logits, float64, from plain passes and from cached, padded steps."""
    rows = min(model.vocab_size, model.module.get_input_embeddings().weight.shape[0])
    text = (torch.arange(TOKENS, device=model.device) * 7919 + 5) % rows
    plain = [
        model.module(input_ids=part[None], use_cache=False).logits[0, -STEPS:]
        for part in (text, text[PADDED:])
    ]
    ids = text.repeat(2, 1)
    ids[1, :PADDED] = 0
    texts = Texts(model, TOKENS, padding=torch.tensor([0, PADDED], device=model.device))
    ends = [*range(TOKENS - STEPS, TOKENS + 1)]
    if model.draft_refusal() is None:
        del ends[ALONE + 1 : -1]
    cached = [texts.extend(ids[:, begin:end]) for begin, end in pairwise([0, *ends])]
    return torch.stack(plain).double(), torch.cat(cached[1:], dim=1).double()


def relative_error(plain: Tensor, cached: Tensor) -> float:
    """Return the error of logits (2, STEPS, V), as a part of their spread.

    Of each text and way of reading it is the median of its steps, since a mixture of experts may
    route a token differently after rounding; of these the largest.
    """
    kept = plain.isfinite()
    counts = kept.sum(-1).clamp(min=1)
    centred = torch.where(kept, plain, 0.0)
    centred = torch.where(kept, centred - (centred.sum(-1) / counts)[..., None], 0.0)
    error = torch.where(plain == cached, 0.0, plain - cached)  # equal infinities, too
    spread, size = (t.square().sum(-1).div(counts).sqrt() for t in (centred, error))
    # error without spread: infinite; neither: 0
    ratio = torch.where(size == 0, 0.0, size / spread)
    return float(ratio.view(2, -1, ALONE).median(dim=2).values.max())


def _name(model: LanguageModel) -> str:
    return str(model.module.dtype).removeprefix("torch.")
