"""A drafter's logits beside its target's, in NumPy: for logits that are at hand as arrays.

Stage drafts compares where the models run, with torch (`pipeline.models.logit_comparison`). A test
holds the two equal. Ties go against the drafter: of several most probable draft tokens the drafted
one is that of worst target rank, and a token that q gives the probability of the target's argmax
ranks before it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..topk import LOGITS_AT_ONCE, Floats, as_rows


class Compared(NamedTuple):
    """A drafter at N steps, (N,) each; ranks are of raw logits, from 1."""

    kl: Floats  # KL(p || q), nats; +inf where q lacks a token of p
    draft_rank: NDArray[np.int32]  # target rank of the drafter's argmax
    draft_log_prob: Floats  # its target log-probability
    argmax_rank: NDArray[np.int32]  # rank of the target's argmax under the drafter


def logit_rows(name: str, logits: Any) -> NDArray[Any]:
    """Return raw logits (N, V); ValueError names them if a row is not one of logits."""
    rows = as_rows(name, logits)
    largest = rows.max(axis=1)  # of a row with a NaN it is NaN
    wrong = np.flatnonzero(~np.isfinite(largest))
    if len(wrong):
        raise ValueError(
            f"{name}: the largest logit of step {wrong[0]} is {largest[wrong[0]]}: give finite "
            "logits, -inf for masked tokens"
        )
    return rows


def compare_logits(target: NDArray[Any], draft: NDArray[Any], temperature: float) -> Compared:
    """Compare raw logits (N, V) of a target with those of a drafter at the same steps."""
    rows = max(1, LOGITS_AT_ONCE // target.shape[1])
    starts = range(0, max(1, len(target)), rows)
    parts = [
        _compare_rows(target[at : at + rows], draft[at : at + rows], temperature) for at in starts
    ]
    return Compared(*map(np.concatenate, zip(*parts, strict=True)))


def _compare_rows(target: NDArray[Any], draft: NDArray[Any], temperature: float) -> Compared:
    first = target.argmax(axis=1)[:, None]
    token = _drafted(target, draft)[:, None]
    own = np.take_along_axis(target, token, axis=1)
    before = np.arange(target.shape[1]) < token
    log_p, log_q = (_log_softmax(z, temperature) for z in (target, draft))
    return Compared(
        kl=_kl(log_p, log_q),
        draft_rank=_count((target > own) | ((target == own) & before)) + np.int32(1),
        draft_log_prob=np.take_along_axis(log_p, token, axis=1)[:, 0],
        argmax_rank=_count(draft >= np.take_along_axis(draft, first, axis=1)),
    )


def _drafted(target: NDArray[Any], draft: NDArray[Any]) -> NDArray[np.intp]:
    """Return the drafter's argmax (N,), of tied ones that of worst target rank."""
    tied = draft == draft.max(axis=1, keepdims=True)
    lowest = np.where(tied, target, np.inf)[:, ::-1].argmin(axis=1)  # of equal ones the last id
    return np.asarray(target.shape[1] - 1 - lowest)


def _log_softmax(logits: NDArray[Any], temperature: float) -> Floats:
    below = logits.astype(np.float64)
    below -= below.max(axis=1, keepdims=True)  # exact, whatever the size of the logits
    below /= temperature
    return np.asarray(below - np.log(np.exp(below).sum(axis=1, keepdims=True)))


def _kl(log_p: Floats, log_q: Floats) -> Floats:
    """Return the sum of p (d + e^-d - 1), d = log(p/q): no term is negative, p = q gives 0."""
    p, q = np.exp(log_p), np.exp(log_q)
    with np.errstate(invalid="ignore", over="ignore"):
        d = log_p - log_q
        apart = np.where(np.abs(d) < 1, p * np.expm1(-d), q - p)
        terms = p * d + apart
    lacking = np.where(log_q == -np.inf, np.inf, terms)
    return np.asarray(np.maximum(np.where(p == 0, q, lacking).sum(axis=1), 0.0))


def _count(flags: NDArray[np.bool_]) -> NDArray[np.int32]:
    return np.asarray(flags.sum(axis=1, dtype=np.int32))
