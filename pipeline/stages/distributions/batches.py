"""How many prompts are decoded together."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pipeline.models.load import LanguageModel
from pipeline.models.logit_statistics import CUDA_CHUNK
from pipeline.stages.distributions.decode import Decoding

BATCH_LIMIT = {"cpu": 32, "cuda": 512}  # larger ones were not faster on the CPU
SLACK = 1.1  # fragmentation


def batch_limit(
    model: LanguageModel, batch: int | None, memory_share: float, decoding: Decoding
) -> Callable[[int], int]:
    """Return how many prompts of a given length are decoded together.

    Args:
        model: what decodes them.
        batch: the configured number, or None to plan from the free memory of a CUDA device.
        memory_share: the part of it that may be used.
        decoding: how many steps are decoded and how much of each is stored.
    """
    if batch is None and model.device.type != "cuda":
        batch = BATCH_LIMIT["cpu"]
    if batch is not None:
        return lambda _: batch
    free = memory_share * torch.cuda.mem_get_info(model.device)[0]
    free -= 3 * CUDA_CHUNK * 8  # of the statistics: float64 logits, their exponentials, a product
    cache = model.cache_bytes()
    config = model.module.config.get_text_config()
    size = model.module.dtype.itemsize
    layer = size * (
        4 * config.hidden_size
        + 3 * (getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    )

    stored = decoding.k + 3 * len(decoding.temperatures)

    def fits(length: int) -> int:
        each = SLACK * cache * (length + decoding.steps)
        each += length * (layer + length)  # prefill: activations of one layer, and the mask
        each += 2 * decoding.steps * stored * 8  # what is stored, and of the shard before
        each += model.vocab_size * 4 * 4  # logits, and what topk takes
        return max(1, min(BATCH_LIMIT["cuda"], int(free / each)))

    return fits
