"""Times passes of both models over batches: at which batch size drafting stops paying off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pipeline.decoding.pair import DecodingPair, or_reason
from pipeline.execution.stopwatch import mark, seconds_between
from pipeline.models.heads.feature_head import GivenText
from pipeline.models.language_model import LanguageModel
from pipeline.models.passes import Texts
from pipeline.store.columns import Row

MOST_TOKENS = 8  # of a text in a pass: drafts of up to 7
PROMPT, REPETITIONS = 64, 4


def pass_rows(pair: DecodingPair, batches: Sequence[int]) -> list[Row]:
    """Return the seconds of passes at each batch size; sizes that do not fit are left out.

    The target reads 1, 2, ... tokens of each text, the drafter one, behind a prompt of 64; texts
    are made up. Passes are timed in turn, and the least of four repetitions counts.
    """
    rows = []
    drafts = [run.draft_length for run in pair.runs if run.uses_model]
    longest = min(MOST_TOKENS, 1 + max(drafts, default=0))
    for batch in batches if drafts else ():
        seconds, reason = or_reason(partial(pass_seconds, pair, batch, longest), pair.target.device)
        if seconds is None:
            print(f"passes over {batch} texts are not timed: {reason}", flush=True)
        rows += seconds or []
    return rows


@torch.inference_mode()
def pass_seconds(pair: DecodingPair, batch: int, longest: int) -> list[Row]:
    """Return the seconds of passes over `batch` texts, of each up to `longest` tokens."""
    target, drafter = pair.target, pair.drafter
    models = [model for model in (target, drafter) if isinstance(model, LanguageModel)]
    prompt = max(1, int(min(PROMPT, *(model.context - longest for model in models))))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(target.vocab_size, (batch, prompt + longest), generator=generator)
    ids = ids.to(target.device)
    passes: dict[tuple[str, int], Callable[[], object]] = {
        ("target", n): of_model(target, ids[:, : prompt + n], n) for n in range(1, longest + 1)
    }
    single = (
        of_model(drafter, ids[:, : prompt + 1], 1) if len(models) > 1 else of_head(drafter, ids)
    )
    passes["drafter", 1] = single
    best = dict.fromkeys(passes, float("inf"))
    for _ in range(REPETITIONS):
        for which, run in passes.items():
            begun = mark(target.device)
            run()
            (taken,) = seconds_between([begun, mark(target.device)])
            best[which] = min(best[which], taken)
    return [
        {"model": model, "batch": batch, "tokens": tokens, "seconds": seconds}
        for (model, tokens), seconds in best.items()
    ]


def of_model(model: Any, ids: Tensor, n: int) -> Callable[[], object]:
    """Return a pass over the last n tokens (B, n) of texts whose others have been read."""
    batch, length = ids.shape
    texts = Texts(model, length, padding=ids.new_zeros(batch))
    texts.read(ids[:, : length - n])

    def run() -> Tensor:
        chosen = texts.extend(ids[:, length - n :]).argmax(-1)
        texts.crop(length - n)
        return chosen

    return run


def of_head(model: Any, ids: Tensor) -> Callable[[], object]:
    """Return a pass of a head over one token of each text (B, n); hidden states are made up."""
    weight = model.head.fc.weight
    shape = (len(ids), 1, len(model.layers), weight.shape[1] // len(model.layers))
    hidden = torch.randn(shape, device=model.device, dtype=weight.dtype)
    at = torch.zeros_like(ids[:, -1:])

    def run() -> Tensor:
        outputs = GivenText(model.head, 1).read(model.embed(ids[:, -1:]), hidden, at, at == 0)
        return model.logits(outputs[0]).argmax(-1)

    return run
