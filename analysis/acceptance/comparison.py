"""Compare a drafter's logits with its target's, in NumPy: KL and ranks.

Stage drafts does the same in torch, on the models' device (`pipeline.models.logit_comparison`). A
test checks that both agree. Ties count against the drafter: of several most probable draft tokens
the one of worst target rank is drafted, and tokens that are as probable under q as the target's
argmax rank before it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..array_input import as_rows
from ..topk import LOGITS_AT_ONCE, Floats


class Compared(NamedTuple):
    """KL and ranks of a drafter at N steps, (N,) each. Ranks are of raw logits, from 1."""

    kl: Floats  # KL(p || q), nats; +inf where q lacks a token of p
    draft_rank: NDArray[np.int32]  # target rank of the drafter's argmax
    draft_log_prob: Floats  # target log-probability of the drafter's argmax
    argmax_rank: NDArray[np.int32]  # rank of the target's argmax under the drafter


def logit_rows(name: str, logits: Any) -> NDArray[Any]:
    """Return raw logits (N, V); ValueError if a row has NaN or +inf, or masks every token."""
    rows = as_rows(name, logits)
    largest = rows.max(axis=1)  # NaN if the row has a NaN
    wrong = np.flatnonzero(~np.isfinite(largest))
    if len(wrong):
        raise ValueError(
            f"{name}: the largest logit of step {wrong[0]} is {largest[wrong[0]]}: give finite "
            "logits, -inf for masked tokens"
        )
    return rows


def compare_arrays(target: NDArray[Any], draft: NDArray[Any], temperature: float) -> Compared:
    """Compare raw logits (N, V) of a target with those of a drafter at the same steps."""
    rows = max(1, LOGITS_AT_ONCE // target.shape[1])
    starts = range(0, max(1, len(target)), rows)
    parts = [
        _compare_rows(target[begin : begin + rows], draft[begin : begin + rows], temperature)
        for begin in starts
    ]
    return Compared(*map(np.concatenate, zip(*parts, strict=True)))


def _compare_rows(target: NDArray[Any], draft: NDArray[Any], temperature: float) -> Compared:
    first = target.argmax(axis=1)[:, None]
    token = _drafted(target, draft)[:, None]
    drafted_logit = np.take_along_axis(target, token, axis=1)
    before = np.arange(target.shape[1]) < token
    log_p, log_q = (_log_softmax(z, temperature) for z in (target, draft))
    return Compared(
        kl=_kl(log_p, log_q),
        draft_rank=_count((target > drafted_logit) | ((target == drafted_logit) & before))
        + np.int32(1),
        draft_log_prob=np.take_along_axis(log_p, token, axis=1)[:, 0],
        argmax_rank=_count(draft >= np.take_along_axis(draft, first, axis=1)),
    )


def _drafted(target: NDArray[Any], draft: NDArray[Any]) -> NDArray[np.intp]:
    """Return (N,) the drafter's argmax; of tied tokens that of worst target rank."""
    tied = draft == draft.max(axis=1, keepdims=True)
    lowest = np.where(tied, target, np.inf)[:, ::-1].argmin(axis=1)  # of ties the last id
    return np.asarray(target.shape[1] - 1 - lowest)


def _log_softmax(logits: NDArray[Any], temperature: float) -> Floats:
    below = logits.astype(np.float64)
    below -= below.max(axis=1, keepdims=True)  # exact, whatever the size of the logits
    below /= temperature
    return np.asarray(below - np.log(np.exp(below).sum(axis=1, keepdims=True)))


def _kl(log_p: Floats, log_q: Floats) -> Floats:
    """Return KL(p || q) as the sum of p (d + e^-d - 1), d = log(p/q).

    The terms add up to KL plus sum q - sum p = 0. None is negative, and p = q gives exactly 0.
    """
    p = np.exp(log_p)
    q = np.exp(log_q)
    with np.errstate(invalid="ignore", over="ignore"):
        d = log_p - log_q
        q_minus_p = np.where(np.abs(d) < 1, p * np.expm1(-d), q - p)
        terms = p * d + q_minus_p
    terms = np.where(log_q == -np.inf, np.inf, terms)
    terms = np.where(p == 0, q, terms)
    return np.asarray(np.maximum(terms.sum(axis=1), 0.0))


def _count(flags: NDArray[np.bool_]) -> NDArray[np.int32]:
    return np.asarray(flags.sum(axis=1, dtype=np.int32))
