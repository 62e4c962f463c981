"""One teacher-forced pass of target and drafter over trajectories of the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipeline.execution.stopwatch import Stopwatch
from pipeline.execution.threads import in_threads
from pipeline.models.heads.hidden_drafter import GivenText, HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.logit_statistics import (
    LogitStatistics,
    Tempered,
    logit_statistics,
    tempered_statistics,
)
from pipeline.models.passes import Texts
from pipeline.stages.drafts.compare import DepthStatistics, PairStatistics, compare


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


@dataclass(frozen=True)
class Batch:
    """Prompts, left-padded, and their answers, right-padded: B rows of W + n tokens."""

    ids: Tensor  # (B, W + n)
    mask: Tensor  # (B, W + n), 0 left of the prompts
    positions: Tensor  # (B, W + n)
    padding: Tensor  # (B,) columns left of the prompts
    width: int  # W
    lengths: Tensor  # (B,) tokens of each answer

    @classmethod
    def make(
        cls, prompts: list[list[int]], answers: list[list[int]], device: torch.device
    ) -> Batch:
        """Pad prompts and answers; every prompt ends, and every answer begins, at column W."""
        width, steps = max(map(len, prompts)), max(map(len, answers))
        ids = torch.zeros((len(prompts), width + steps), dtype=torch.long)
        mask = torch.ones_like(ids)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            ids[row, width - len(prompt) : width + len(answer)] = torch.tensor(prompt + answer)
            mask[row, : width - len(prompt)] = 0
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        lengths = torch.tensor([len(answer) for answer in answers])
        padding = width - torch.tensor([len(prompt) for prompt in prompts])
        ids, mask, positions, padding, lengths = (
            one.to(device) for one in (ids, mask, positions, padding, lengths)
        )
        return cls(ids, mask, positions, padding, width, lengths)


class ForcedSteps(NamedTuple):
    """What is known of n answer tokens of B prompts; column s is the step of answer token s."""

    target: LogitStatistics  # fields (B, n, ...)
    sampled: Tempered  # of the target where the answers were sampled, else NaN; fields (B, n)
    draft: LogitStatistics  # fields (B, n, ...)
    pair: PairStatistics  # fields (B, n)
    depths: DepthStatistics  # fields (B, n, depths)
    left_out: Tensor  # (B, n, 2) probability of rows that one model has alone: target, drafter

    def most_left_out(self, lengths: Tensor) -> Tensor:
        """Return the (2,) largest probability left out, over the first `lengths` (B,) steps."""
        inside = torch.arange(self.left_out.shape[1], device=lengths.device) < lengths[:, None]
        return torch.where(inside[..., None], self.left_out, 0).amax((0, 1))


class _Model:
    """A language model that reads a batch, whatever depth its tokens are at."""

    def __init__(self, model: LanguageModel, batch: Batch, layers: Sequence[int] = ()) -> None:
        self._batch = batch
        self._texts = Texts(model, batch.ids.shape[1], layers, padding=batch.padding)

    def read(self, begin: int, end: int, keep: int) -> _Read:
        """Read columns begin to end of the batch."""
        logits = self._texts.read(self._batch.ids[:, begin:end], keep)
        return _Read(logits, self._texts.hidden)

    def draft(self, begin: int, end: int, keep: int, target: _Read) -> list[Tensor]:  # noqa: ARG002
        """Return what `logits` makes (B n, V) logits of, by depth."""
        return [self.read(begin, end, keep).logits]

    def logits(self, output: Tensor) -> Tensor:
        """Return (B n, V) logits."""
        return output.flatten(0, 1)


class _Head:
    """A head that reads a batch behind its target, at every depth."""

    def __init__(self, model: HiddenDrafter, batch: Batch, depths: int) -> None:
        self._model, self._batch = model, batch
        self._text = GivenText(model, depths)

    def draft(self, begin: int, end: int, keep: int, target: _Read) -> list[Tensor]:
        """Return what `logits` makes (B n, V) logits of, by depth."""
        assert target.hidden is not None
        batch = self._batch
        outputs = self._text.read(
            batch.ids[:, begin:end],
            target.hidden,
            batch.positions[:, begin:end],
            batch.mask[:, begin:end].bool(),
        )
        return [output[:, -keep:] for output in outputs]

    def logits(self, output: Tensor) -> Tensor:
        """Return (B n, V) logits: of all depths at once they would not fit into memory."""
        return self._model.logits(output.flatten(0, 1))


class _Read(NamedTuple):
    """What the target gave of a block."""

    logits: Tensor  # (B, keep, V)
    hidden: Tensor | None  # (B, n, layers, d)


@torch.inference_mode()
def teacher_force(
    pair: ComparedPair, batch: Batch, watch: Stopwatch, progress: Callable[[int], object]
) -> ForcedSteps:
    """Run both models over `batch`, a block of answer tokens at a time.

    The logits of a step are those after the token before it. Blocks bound what the logits of a
    full vocabulary take; the key-value caches make them one pass.
    """
    size, columns = batch.ids.shape
    drafter: _Model | _Head
    layers: tuple[int, ...] = ()
    if isinstance(pair.drafter, HiddenDrafter):
        layers = pair.drafter.layers
        drafter = _Head(pair.drafter, batch, pair.depths)
    else:
        drafter = _Model(pair.drafter, batch)
    target = _Model(pair.target, batch, layers)
    if batch.width > 1:
        with watch("models"):
            read = target.read(0, batch.width - 1, 1)
            drafter.draft(0, batch.width - 1, 1, read)
    rows = max(pair.target.vocab_size, pair.drafter.vocab_size)
    length = max(1, pair.block // (size * rows))
    parts = []
    for begin in range(batch.width - 1, columns - 1, length):
        end = min(begin + length, columns - 1)
        with watch("models"):
            read = target.read(begin, end, end - begin)
            drafts = drafter.draft(begin, end, end - begin, read)
        with watch("comparison"):
            logits = [drafter.logits(draft) for draft in drafts]
            parts.append(_measure(pair, read.logits.flatten(0, 1), logits, size))
        progress(size * (end - begin))
    return _joined(parts, dim=1)


def _measure(
    pair: ComparedPair, target: Tensor, drafts: Sequence[Tensor], size: int
) -> ForcedSteps:
    """Measure the (B n, V) logits of a block, the drafter's by depth.

    Much of it uses one thread of a processor, so each thread has rows of its own.
    """
    parts = in_threads(
        lambda rows: _measure_rows(pair, target[rows], [draft[rows] for draft in drafts]),
        len(target),
        target.device,
    )
    return _each(lambda tensor: tensor.unflatten(0, (size, -1)), _joined(parts, dim=0))


def _measure_rows(pair: ComparedPair, target: Tensor, drafts: Sequence[Tensor]) -> ForcedSteps:
    """Measure rows of logits; fields have no dimension of prompts."""
    left_out = torch.stack([_left_out(target, pair), _left_out(drafts[0], pair)], dim=1)
    target, drafts = target[:, : pair.rows], [draft[:, : pair.rows] for draft in drafts]
    at = [pair.temperature] if pair.sampled is None else [pair.temperature, pair.sampled]
    found, tempered = tempered_statistics(target, pair.k, at)
    unknown = torch.full_like(found.entropy, torch.nan)
    sampled = (unknown if pair.sampled is None else column[:, 0] for column in tempered)
    compared, depths = compare(target, drafts, pair.temperature, pair.sampled)
    draft = logit_statistics(drafts[0], pair.draft_k, pair.temperature)
    return ForcedSteps(found, Tempered(*sampled), draft, compared, depths, left_out)


def _joined(parts: Sequence[Any], dim: int) -> Any:
    """Return tuples of tensors, or of such tuples, joined along a dimension."""
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts), dim=dim)
    return type(parts[0])(*(_joined(column, dim) for column in zip(*parts, strict=True)))


def _each(change: Callable[[Tensor], Tensor], tensors: Any) -> Any:
    """Return a tuple of tensors, or of such tuples, with each of them changed."""
    if isinstance(tensors, Tensor):
        return change(tensors)
    return type(tensors)(*(_each(change, one) for one in tensors))


def _left_out(logits: Tensor, pair: ComparedPair) -> Tensor:
    """Return the (N,) probability of the rows beyond those compared."""
    if logits.shape[1] == pair.rows:
        return torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
    scaled = logits.float() / pair.temperature
    beyond = scaled[:, pair.rows :].logsumexp(1) - scaled.logsumexp(1)
    return beyond.double().exp()
