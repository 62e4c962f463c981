"""Divergences between the target's p and the drafter's q, from the logits of both on given text.

All of it is over the full vocabulary and is computed where the models run, a few rows at a time.
Ties are broken against the drafter: of several most probable draft tokens the drafted one is that
of worst target rank, and a token that q gives the probability of the target's argmax ranks before
it. Tests hold all of it against plain formulas (tests/divergences.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.models.devices import in_threads
from pipeline.models.divergences import divergence_sums, zero_for_nan
from pipeline.models.heads.feature_head import GivenText
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.logit_statistics import (
    CPU_CHUNK,
    MASKED_LOGIT,
    Found,
    logit_statistics,
    ranks_of,
)
from pipeline.models.passes import Batch, Texts, concat_columns

CUDA_CHUNK = 1 << 23  # float64 values of one array on a GPU; about ten are held at once
AT_DEPTH = ("kl", "tv", "draft_token_id", "draft_rank", "draft_log_prob", "argmax_rank")


def compare_logits(
    target: Tensor,
    drafts: Sequence[Tensor],
    temperature: float,
    sampled: float | None = None,
    completed: Tensor | None = None,
) -> Found:
    """Compare raw logits (B, V) with those of a drafter at each depth, a few rows at a time.

    Ranks are those of the raw logits; the distributions are at `temperature`. The drafter at depth
    1 is also compared by schemes of stochastic verification, there and at `sampled`, NaN for None.

    Args:
        target: of p.
        drafts: of q, by depth.
        temperature: of p, q and q'.
        sampled: of the answers; None where they are not p's own.
        completed: of a q' that gives every token a probability, for a drafter that can't draft
            them all (`HiddenDrafter.completed`).

    Returns:
        (B,) each, the columns of stage drafts; and of `AT_DEPTH` (B, depths).
    """
    columns = []
    for part in _parts(target):
        some = [draft[part] for draft in drafts]
        whole = None if completed is None else completed[part]
        columns.append(_compare(target[part], some, temperature, sampled, whole))
    return concat_columns(columns)


def _parts(logits: Tensor) -> list[slice]:
    """Return the rows of logits (B, V) that are compared at once."""
    rows = max(1, (CUDA_CHUNK if logits.is_cuda else CPU_CHUNK) // logits.shape[1])
    return [slice(begin, begin + rows) for begin in range(0, len(logits), rows)]


def _compare(
    target: Tensor,
    drafts: Sequence[Tensor],
    temperature: float,
    sampled: float | None,
    completed: Tensor | None,
) -> Found:
    # argmax leaves open which of equal logits it takes; of booleans, the first is wanted
    first = _first(target == target.amax(1, keepdim=True))[:, None]
    below = _below(target)
    log_p, p = _distribution(below, temperature)
    pair: Found = {}
    depths = []
    for draft in drafts:
        token, rank = _drafted(target, draft)
        below_q = _below(draft)
        log_q, q = _distribution(below_q, temperature)
        sums = divergence_sums(log_p, p, log_q, q)
        columns = {
            "kl": sums["kl"],
            "tv": sums["tv"],
            "draft_token_id": token,
            "draft_rank": rank,
            "draft_log_prob": log_p.gather(1, token[:, None])[:, 0],
            "argmax_rank": (draft >= draft.gather(1, first)).sum(1),
        }
        depths.append(columns)
        if pair:
            continue
        pair = columns | {
            "draft_entropy": -torch.linalg.vecdot(q, log_q.clamp_(min=MASKED_LOGIT)),
            **_sampled((below, below_q), sampled),
        }
    if completed is not None:
        pair["full_kl"] = _completed_kl(log_p, p, completed, pair["draft_token_id"], temperature)
    return pair | {f"depth_{name}": torch.stack([d[name] for d in depths], 1) for name in AT_DEPTH}


def _completed_kl(
    log_p: Tensor, p: Tensor, completed: Tensor, token: Tensor, temperature: float
) -> Tensor:
    """Return KL(p||q') (B,) where the drafted token is a first choice of q', elsewhere inf.

    Where both have the same first choice, what certifies q' certifies the drafter.
    """
    first = completed.gather(1, token[:, None])[:, 0] >= completed.amax(1)
    kl = divergence_sums(log_p, p, *_distribution(_below(completed), temperature))["kl"]
    return torch.where(first, kl, torch.inf)


def _sampled(below: tuple[Tensor, Tensor], temperature: float | None) -> Found:
    """Return the acceptance rates of stochastic verification at a temperature; NaN for None."""
    names = ("tv", "erss_acceptance", "harmonic_mean")
    if temperature is None:
        unknown = torch.full_like(below[0][:, 0], torch.nan)
        return {f"sampled_{name}": unknown for name in names}
    order = _decreasing(zero_for_nan(below[0] - below[1]))
    (log_p, p), (log_q, q) = (_distribution(z, temperature) for z in below)
    sums = divergence_sums(log_p, p, log_q, q)
    sums["erss_acceptance"] = _erss_acceptance(p, q, order)
    return {f"sampled_{name}": sums[name] for name in names}


def _below(logits: Tensor) -> Tensor:
    """Return the distance of logits below the largest; exact, whatever its size."""
    z = logits.double()
    return z - z.amax(1, keepdim=True)


def _distribution(below: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and probabilities."""
    log_p = below / temperature
    p = log_p.exp()
    total = p.sum(1, keepdim=True)
    return log_p.sub_(total.log()), p.div_(total)


def _erss_acceptance(p: Tensor, q: Tensor, order: Tensor) -> Tensor:
    """Return the probability that one exponential race has the same winner under p and q.

    sum_i 1 / sum_j max(p_j / p_i, q_j / q_i) (arXiv 2504.15475, Lemma C.2 and its races). With the
    tokens sorted by decreasing p/q, the maximum is p_j / p_i up to i and q_j / q_i after it:
    cumulated sums of p from the front and of q from the back.

    `order` (B, V) holds the tokens by decreasing p/q; where the ratio ties, any order gives the
    same sums. A token without probability under p and q contributes nothing.
    """
    p, q = p.gather(1, order), q.gather(1, order)
    back = torch.zeros_like(q)
    back[:, :-1] = q[:, 1:].flip(1).cumsum(1).flip(1)
    below = p.cumsum(1).mul_(q).add_(back.mul_(p))
    return zero_for_nan(p.mul_(q).div_(below)).sum(1)


def _decreasing(values: Tensor) -> Tensor:
    """Return the columns (B, V) of each row by decreasing value, those of equal ones in any order.

    On a processor NumPy sorts several times as fast as torch.
    """
    if values.is_cuda:
        return values.argsort(dim=1, descending=True)
    return torch.from_numpy(np.argsort(values.neg().numpy(), axis=1))


def _drafted(target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    """Return the drafter's argmax, of tied ones that of worst target rank, and this rank."""
    tied = draft == draft.amax(1, keepdim=True)
    worst = torch.where(tied, target, torch.inf).amin(1, keepdim=True)
    token = draft.shape[1] - 1 - _first((tied & (target == worst)).flip(1))
    return token, ranks_of(token, target)


def _first(flags: Tensor) -> Tensor:
    """Return the first true column of each row."""
    columns = torch.arange(flags.shape[1], 0, -1, device=flags.device, dtype=torch.int32)
    return flags.shape[1] - (flags * columns).amax(1).long()


@dataclass(frozen=True)
class ComparedPair:
    """The pair that is compared, and the rows that are held at once."""

    target: LanguageModel
    drafter: LanguageModel | HiddenDrafter
    rows: int  # of logits that are compared: pipeline.models.prompt_tokens.common_rows
    k: int
    draft_k: int  # of the drafter's distribution
    temperature: float
    block: int  # logits of one model held at once
    depths: int = 1  # of a draft at which the drafter is compared; more than one for a head
    sampled: float | None = None  # temperature of the answers, None where they are not p's own


class PairTexts:
    """B given texts that a target and its drafter read, block after block."""

    def __init__(
        self,
        target: LanguageModel,
        drafter: LanguageModel | HiddenDrafter,
        capacity: int,
        depths: int = 1,
        padding: Tensor | None = None,
    ) -> None:
        """Start empty, see `Texts`; a head drafts at `depths` from 1 on."""
        self._drafter, self._padding = drafter, padding
        layers = drafter.layers if isinstance(drafter, HiddenDrafter) else ()
        self._target = Texts(target, capacity, layers, padding)
        if isinstance(drafter, HiddenDrafter):
            self._given = GivenText(drafter.head, depths)
        else:
            self._own = Texts(drafter, capacity, padding=padding)

    def read(self, ids: Tensor, keep: int) -> tuple[Tensor, list[Tensor], Tensor | None]:
        """Read tokens (B, n); return logits (B keep, V) after the last `keep` of each text.

        They are the target's, the drafter's by depth, and those of `HiddenDrafter.completed`.
        """
        begin, head = self._target.length, self._drafter
        logits = self._target.read(ids, keep).flatten(0, 1)
        if not isinstance(head, HiddenDrafter):
            return logits, [self._own.read(ids, keep).flatten(0, 1)], None
        at = torch.arange(begin, self._target.length, device=ids.device)[None]
        if self._padding is not None:
            at = at - self._padding[:, None]
        assert self._target.hidden is not None
        read = self._given.read(head.embed(ids), self._target.hidden, at.clamp(min=0), at >= 0)
        outputs = [output[:, -keep:].flatten(0, 1) for output in read]
        drafts = [head.logits(output) for output in outputs]
        return logits, drafts, head.completed(outputs[0], drafts[0])


@torch.inference_mode()
def teacher_force(pair: ComparedPair, batch: Batch, progress: Callable[[int], object]) -> Found:
    """Run both models over `batch` and return the columns of each step, (B, n, ...).

    The columns are those of the stage, and `left_out` (B, n, 2): the probability of rows that one
    model has alone, target and drafter. `progress` is told the steps that were done.
    """
    size, width = batch.ids.shape
    texts = PairTexts(pair.target, pair.drafter, width, pair.depths, batch.padding)
    rows = max(pair.target.vocab_size, pair.drafter.vocab_size)
    parts = []
    for begin, end, steps in batch.blocks(pair.block, rows):
        read = texts.read(batch.ids[:, begin:end], max(steps, 1))
        if steps:
            columns = measure(pair, *read)
            parts.append(
                {name: column.unflatten(0, (size, steps)) for name, column in columns.items()}
            )
            progress(size * steps)
    return concat_columns(parts, dim=1)


def measure(
    pair: ComparedPair, target: Tensor, drafts: Sequence[Tensor], completed: Tensor | None
) -> Found:
    """Measure (N, V) logits, the drafter's by depth.

    Much of it uses one thread of a processor, so each thread has rows of its own.
    """

    def measured(rows: slice) -> Found:
        left_out = [_left_out(logits[rows], pair) for logits in (target, drafts[0])]
        p, *qs = (logits[rows, : pair.rows] for logits in (target, *drafts))
        columns = logit_statistics(p, pair.k, pair.temperature)
        draft = logit_statistics(qs[0], pair.draft_k, pair.temperature)
        columns |= {f"draft_{name}": values for name, values in draft.items()}
        whole = None if completed is None else completed[rows, : pair.rows]
        columns |= compare_logits(p, qs, pair.temperature, pair.sampled, whole)
        return columns | {"left_out": torch.stack(left_out, dim=1)}

    return concat_columns(in_threads(measured, len(target), target.device))


def _left_out(logits: Tensor, pair: ComparedPair) -> Tensor:
    """Return the (N,) probability of the rows beyond those compared."""
    if logits.shape[1] == pair.rows:
        return torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
    scaled = logits.float() / pair.temperature
    beyond = scaled[:, pair.rows :].logsumexp(1) - scaled.logsumexp(1)
    return beyond.double().exp()
