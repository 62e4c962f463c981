"""Norms and feed-forward parts of a model as few kernels, compiled by torch.

Most operations of a decoding step are element-wise ones between the products; those of norms are
the most of them. These parts hold no cache and no attention, so all layers share what was compiled
for the first.
"""

from __future__ import annotations

import torch
import torch._dynamo
from torch import nn
from torch.utils._triton import has_triton

from pipeline.errors import PipelineError
from pipeline.models.few_queries import TRIED
from pipeline.models.language_model import LanguageModel

TYPES = (*TRIED, "mistral", "gemma2", "gemma3_text")  # of models whose parts were traced
PARTS = ("norm", "mlp")  # what the names of their modules without a cache end with
# Of torch, for a function: norms of hidden states and of heads, prompts and steps, batches of one
# and of more, and where two of the sizes are equal.
SHAPES = 64


def parts_of(model: LanguageModel) -> list[nn.Module]:
    """Return the norms and feed-forward parts of a model of the types TYPES."""
    return [part for name, part in model.module.named_modules() if name.endswith(PARTS)]


def compile_parts(model: LanguageModel, backend: str = "inductor") -> None:
    """Let torch compile the norms and feed-forward parts, when each is first run.

    What lies between two products is then rounded less often than without.

    Args:
        model: on CUDA.
        backend: of torch.compile.

    Raises:
        PipelineError: device.compile=true can't be had with this model, or here.
    """
    kind = model.module.config.model_type
    if kind not in TYPES:
        why = f"models of type {kind} were not tried, only {', '.join(TYPES)}"
    elif model.device.type != "cuda" or not has_triton():
        why = "it is for CUDA devices on which torch finds triton"
    else:
        torch._dynamo.config.recompile_limit = SHAPES
        for part in parts_of(model):
            part.compile(dynamic=True, fullgraph=True, backend=backend)
        return
    raise PipelineError(f"device.compile=true: {model.label}: {why}. Give device.compile=false")
