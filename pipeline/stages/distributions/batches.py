"""Which prompts are decoded together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from pipeline.execution.shard_plan import Cut, at_most
from pipeline.models.load import LanguageModel
from pipeline.models.logit_statistics import CUDA_CHUNK
from pipeline.stages.distributions.decode import Decoding

BATCH_LIMIT = {"cpu": 32, "cuda": 512}  # larger ones were not faster on the CPU
SLACK = 1.1  # fragmentation
WHOLE = 64  # prompts at most that may be one planned shard
SET_UP = 4  # steps that a shard runs beyond its own, to capture them as a graph
# Operations a GPU does while it reads a byte, by the data sheets of large ones (150 to 300): as
# many tokens of prompts take as long to compute as the weights, of two bytes each, take to read.
BALANCE = 200


def cut_of(
    model: LanguageModel,
    batch: int | None,
    memory_share: float,
    decoding: Decoding,
    *,
    padded: bool,
) -> Cut:
    """Return how the prompts, the longest first, are cut into shards that are decoded together.

    Args:
        model: what decodes them.
        batch: the configured number, or None to plan from the free memory of a CUDA device.
        memory_share: the part of it that may be used.
        decoding: how many steps are decoded and how much of each is stored.
        padded: whether decoding steps read padding, too.
    """
    if batch is not None or model.device.type != "cuda":
        return at_most(batch or BATCH_LIMIT["cpu"])
    free = memory_share * torch.cuda.mem_get_info(model.device)[0]
    fits = room(model, free, decoding)
    weights, cache = model.weight_bytes(), model.cache_bytes()
    return lambda lengths: several(
        least_traffic(lengths, fits, weights, cache, decoding.steps, padded=padded)
    )


def several(sizes: list[int]) -> list[int]:
    """Return the sizes of shards, the only one halved where it holds more than WHOLE prompts.

    Of one shard nothing is kept before its end, and nothing is written beside decoding.
    """
    if len(sizes) == 1 and sizes[0] > WHOLE:
        return [(sizes[0] + 1) // 2, sizes[0] // 2]
    return sizes


def room(model: LanguageModel, free: float, decoding: Decoding) -> Callable[[int], int]:
    """Return how many prompts fit into `free` bytes, by the tokens of the longest."""
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


def least_traffic(
    lengths: Sequence[int],
    fits: Callable[[int], int],
    weights: int,
    cache: int,
    steps: int,
    *,
    padded: bool,
) -> list[int]:
    """Return the sizes of the shards that keep a device busy least, of all cuts of the order.

    Time is counted in bytes read. The prompts of a shard are computed together, each as if it were
    as long as the longest. A step reads the weights once, and the keys and values of every prompt:
    of as many tokens as the longest has, unless padding is not read. Few shards read weights
    seldom, many have little padding.

    Args:
        lengths: tokens of the prompts, the longest first.
        fits: how many prompts fit together, by the tokens of the longest.
        weights: bytes that a step reads whatever the batch.
        cache: bytes of the keys and values of a token.
        steps: that are decoded.
        padded: whether steps read padding.
    """
    count = len(lengths)
    least = np.full(count + 1, np.inf)  # bytes for the first prompts
    least[0] = 0
    size = np.zeros(count + 1, int)  # of the last of their shards
    for begin, longest in enumerate(lengths):
        sizes = np.arange(1, 1 + min(fits(longest), count - begin))
        with_padding = sizes * longest
        seen = with_padding if padded else np.cumsum(lengths[begin : begin + len(sizes)])
        read = least[begin] + weights * (steps + SET_UP + with_padding / BALANCE)
        read += cache * (seen * steps + sizes * steps * (steps + 1) / 2)
        ends = begin + sizes
        better = read < least[ends]
        least[ends[better]], size[ends[better]] = read[better], sizes[better]
    cut = []
    while count:
        cut.append(int(size[count]))
        count -= cut[-1]
    return cut[::-1]
