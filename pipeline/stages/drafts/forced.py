"""One teacher-forced pass of target and drafter over trajectories of the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.execution.threads import in_threads
from pipeline.models.forced import Batch, Found, joined
from pipeline.models.heads.feature_head import GivenText
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.logit_statistics import Tempered, logit_statistics, tempered_statistics
from pipeline.models.passes import Texts
from pipeline.stages.drafts.compare import compare


@dataclass(frozen=True)
class ComparedPair:
    """What is compared, and how much of it is held at once."""

    target: LanguageModel
    drafter: LanguageModel | HiddenDrafter
    rows: int  # of logits that are compared: pipeline.models.vocabulary.common_rows
    k: int
    draft_k: int  # of the drafter's distribution
    temperature: float
    block: int  # logits of one model held at once
    depths: int = 1  # of a draft at which the drafter is compared; more than one for a head
    sampled: float | None = None  # temperature of the answers, None where they are not p's own


@torch.inference_mode()
def teacher_force(pair: ComparedPair, batch: Batch, progress: Callable[[int], object]) -> Found:
    """Run both models over `batch` and return what is known of each step, (B, n, ...).

    The columns are those of the stage, and `left_out` (B, n, 2): the probability of rows that one
    model has alone, target and drafter.
    """
    size, columns = batch.ids.shape
    drafter = pair.drafter
    head = GivenText(drafter.head, pair.depths) if isinstance(drafter, HiddenDrafter) else None
    layers = drafter.layers if isinstance(drafter, HiddenDrafter) else ()
    target = Texts(pair.target, columns, layers, padding=batch.padding)
    own = None if head else Texts(drafter, columns, padding=batch.padding)
    parts = []
    for begin, end, steps in batch.blocks(
        pair.block, max(pair.target.vocab_size, drafter.vocab_size)
    ):
        ids, keep = batch.ids[:, begin:end], max(steps, 1)
        logits = target.read(ids, keep)
        if own is not None:
            drafts = [own.read(ids, keep)]
        else:
            assert isinstance(drafter, HiddenDrafter)
            assert head is not None
            assert target.hidden is not None
            at, real = batch.positions[:, begin:end], batch.mask[:, begin:end].bool()
            drafts = head.read(drafter.embed(ids), target.hidden, at, real)
        if not steps:
            continue
        drafts = [draft[:, -keep:].flatten(0, 1) for draft in drafts]
        if isinstance(drafter, HiddenDrafter):
            drafts = [drafter.logits(draft) for draft in drafts]
        found = _measure(pair, logits.flatten(0, 1), drafts)
        parts.append({name: tensor.unflatten(0, (size, -1)) for name, tensor in found.items()})
        progress(size * steps)
    return joined(parts, dim=1)


def _measure(pair: ComparedPair, target: Tensor, drafts: Sequence[Tensor]) -> Found:
    """Measure (N, V) logits, the drafter's by depth, on the processor wherever they are.

    Much of it uses one thread, so each thread has rows of its own.
    """
    target, drafts = target.cpu(), [draft.cpu() for draft in drafts]
    return joined(
        in_threads(
            lambda rows: _measure_rows(pair, target[rows], [draft[rows] for draft in drafts]),
            len(target),
            target.device,
        )
    )


def _measure_rows(pair: ComparedPair, target: Tensor, drafts: Sequence[Tensor]) -> Found:
    left_out = torch.stack([_left_out(target, pair), _left_out(drafts[0], pair)], dim=1)
    target, drafts = target[:, : pair.rows], [draft[:, : pair.rows] for draft in drafts]
    at = [pair.temperature] if pair.sampled is None else [pair.temperature, pair.sampled]
    statistics, tempered = tempered_statistics(target, pair.k, at)
    unknown = torch.full_like(statistics.entropy, torch.nan)
    draft = logit_statistics(drafts[0], pair.draft_k, pair.temperature)
    found = {f"draft_{name}": column for name, column in draft._asdict().items()}
    for name, column in zip(Tempered._fields, tempered, strict=True):
        found[f"sampled_{name}"] = unknown if pair.sampled is None else column[:, 0]
    return (
        found
        | statistics._asdict()
        | compare(target, drafts, pair.temperature, pair.sampled)
        | {"left_out": left_out}
    )


def _left_out(logits: Tensor, pair: ComparedPair) -> Tensor:
    """Return the (N,) probability of the rows beyond those compared."""
    if logits.shape[1] == pair.rows:
        return torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
    scaled = logits.float() / pair.temperature
    beyond = scaled[:, pair.rows :].logsumexp(1) - scaled.logsumexp(1)
    return beyond.double().exp()
