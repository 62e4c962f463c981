"""Whether stored columns can belong to one distribution: what `TopK` refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .topk_rows import MASKED

if TYPE_CHECKING:
    from .topk import Floats, TopK

TOLERANCE = 1e-6  # of masses, and of entropies relative to 1 + entropy: columns may be of float32
ENTRIES = 2**16  # probabilities held at a time


def check_columns(dist: TopK) -> None:
    """Check the columns of N steps against each other.

    Raises:
        ValueError: the first column and step that cannot be, and what is allowed there.
    """
    logits, tail, surprisal = dist.logits, dist.log_tail, dist.top_surprisal
    assert logits is not None
    others = dist.vocab_size - dist.k
    if dist.ids.min(initial=0) < 0 or dist.ids.max(initial=0) >= dist.vocab_size:
        inside = (dist.ids >= 0) & (dist.ids < dist.vocab_size)
        _refuse("top_ids", dist.ids, inside, f"token ids in [0, {dist.vocab_size})")
    _refuse("top_logits", logits[:, 0], np.isfinite(logits[:, 0]), "a finite largest logit")
    falling = logits[:, 1:] <= logits[:, :-1]
    _refuse("top_logits", logits[:, 1:], falling, "values that fall, -inf for masked tokens")
    possible = np.isfinite(surprisal) & (surprisal >= -TOLERANCE)
    _refuse("top_surprisal", surprisal, possible, "-log p0, at least 0")
    if not others:
        _refuse("log_tail", tail, tail == -np.inf, "-inf, as all V tokens are stored")
    _refuse("log_tail", tail, tail <= np.log1p(TOLERANCE), "the log of a mass of at most 1")
    last = _below(logits[:, -1:], dist)[:, 0] - surprisal  # log p_K
    most = last + np.log(max(1, others)) + TOLERANCE
    _refuse("log_tail", tail, tail <= most, f"at most that of {others} tokens of rank K", most)
    stored, surprise = _sums(dist)
    mass = np.exp(tail)
    whole = np.abs(stored + mass - 1.0) <= TOLERANCE
    if not whole.all():
        step = int(np.argmin(whole))
        raise ValueError(
            f"top_surprisal and log_tail of step {step}: by them the stored tokens have a mass of "
            f"{stored[step]:.9g} and the others {mass[step]:.9g}: give values with which all "
            "probabilities sum to 1"
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        least = surprise - np.where(mass > 0, mass * last, 0.0)
        most = surprise + np.where(mass > 0, mass * (np.log(others) - tail), 0.0)
    entropy, slack = dist.entropy, TOLERANCE * (1.0 + np.abs(dist.entropy))
    allowed = f"at most log V = {np.log(dist.vocab_size):.9g}, and with these probabilities at"
    _refuse("entropy", entropy, entropy >= least - slack, f"{allowed} least", least)
    _refuse("entropy", entropy, entropy <= most + slack, f"{allowed} most", most)


def check_log_probs(values: Floats, error: Floats, vocab_size: int) -> None:
    """Check (N, K) log-probabilities that may be off by `error`.

    Raises:
        ValueError: the first step that cannot be, and what is allowed there.
    """
    if values.shape[1] > vocab_size:
        raise ValueError(f"K={values.shape[1]} tokens of a vocabulary of {vocab_size}")
    _refuse("error", error, np.isfinite(error) & (error >= 0), "a finite number of at least 0")
    _refuse("log_probs", values[:, 0], np.isfinite(values[:, 0]), "a finite largest value")
    _refuse("log_probs", values, values <= error, "a logarithm of a probability, at most 0")
    _refuse("log_probs", values[:, 1:], values[:, 1:] <= values[:, :-1], "values that fall")
    least = np.exp(values - error).sum(axis=1)
    _refuse("log_probs", least, least <= 1.0 + TOLERANCE, "probabilities that sum to at most 1")


def _refuse(
    column: str,
    values: NDArray[Any],
    right: NDArray[np.bool_],
    allowed: str,
    limit: Floats | None = None,
) -> None:
    """Raise for the first step that is not right."""
    if right.all():
        return
    first = np.unravel_index(np.argmin(right), right.shape)
    more = "" if limit is None else f" {limit[first[0]]:.9g}"
    raise ValueError(
        f"{column} of step {first[0]}: {values[first]} is not allowed: give {allowed}{more}"
    )


def _below(logits: NDArray[np.floating[Any]], dist: TopK) -> Floats:
    """Return log(p / p0) of some of the stored logits."""
    assert dist.logits is not None
    return np.asarray((logits - dist.logits[:, :1].astype(np.float64)) / dist.temperature)


def _sums(dist: TopK) -> tuple[Floats, Floats]:
    """Return the (N,) mass of the stored tokens and the sum of their surprises -p log p."""
    assert dist.logits is not None
    weight, spread = np.empty((2, len(dist)))
    masked = np.isneginf(dist.logits[:, -1]).any()
    rows = max(1, ENTRIES // dist.k)
    for at in range(0, len(dist), rows):
        top = dist.logits[at : at + rows]
        below = top - top[:, :1].astype(np.float64)
        if dist.temperature != 1.0:
            below /= dist.temperature
        if masked:
            np.maximum(below, MASKED, out=below)  # 0 times -inf is no number
        w = np.exp(below)
        weight[at : at + rows] = w.sum(axis=1)
        spread[at : at + rows] = np.einsum("ij,ij->i", w, below)
    p0 = dist.top_probability
    return p0 * weight, p0 * (dist.top_surprisal * weight - spread)
