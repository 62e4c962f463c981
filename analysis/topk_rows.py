"""The arrays behind `TopK`: full rows are ranked and summed, stored columns are checked.

The stage distributions computes the same sums on its device (`pipeline.models.logit_statistics`).
Its tests compare the two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ENTRIES = 2**21  # logits processed at a time
CHECKED = 2**16  # probabilities checked at a time
MASKED = -1e300  # stands for -inf: its exp is 0, and 0 times it is 0
# Error allowed in masses, and in entropies relative to 1 + entropy. Float64 stays far below it. A
# column that passed through float32 exceeds it where it moves a mass.
TOLERANCE = 1e-9
PRINTED = 1e-6  # error allowed in the sum of printed probabilities


def as_rows(name: str, value: Any) -> NDArray[Any]:
    """Return an array (steps, vocabulary) of float32 or float64; one row is one step.

    Takes NumPy, PyTorch (any device and dtype) and anything else that NumPy can read.

    Raises:
        ValueError: the values are not real numbers, or have another shape; the message names
            `name`.
    """
    if hasattr(value, "detach"):  # a tensor of PyTorch, which is not imported here
        value = value.detach().cpu()
        value = value.numpy() if value.element_size() == 8 else value.float().numpy()
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.empty((), dtype=object)
    if array.dtype.kind not in "fiu":
        content = "complex numbers" if array.dtype.kind == "c" else type(value).__name__
        raise ValueError(
            f"{name} holds no rows of real numbers ({content}): give (steps, vocabulary)"
        )
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(
            f"{name} has the shape {array.shape}: give (steps, vocabulary), or one row"
        )
    half = array.dtype in (np.float16, np.float32)
    return array.astype(np.float32 if half else np.float64, copy=False)


def check_size(k: Any, size: int) -> int:
    """Return K, the number of tokens to store: k, or `size` when k is None.

    Raises:
        ValueError: k is not an integer in [1, size].
    """
    if k is None:
        return size
    if not is_integer(k) or not 1 <= k <= size:
        raise ValueError(f"k={k!r} is not allowed: give an integer in [1, {size}]")
    return int(k)


def is_integer(value: Any) -> bool:
    """Return whether this is an integer of Python or NumPy; booleans are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def top(values: NDArray[Any], k: int) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Return the ids and values of the k largest entries of each row, ties by id."""
    ids: NDArray[Any] = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    if k < values.shape[1]:
        least = np.partition(values, -k, axis=1)[:, -k, None]
        above, equal = values > least, values == least
        room = k - above.sum(axis=1, keepdims=True)
        selected = above | (equal & (np.cumsum(equal, axis=1) <= room))
        ids = np.nonzero(selected)[1].reshape(len(values), k)
    chosen = np.take_along_axis(values, ids, axis=1)
    order = np.argsort(-chosen, axis=1, kind="stable")
    ranked = np.take_along_axis(ids, order, axis=1).astype(np.int32)
    return ranked, np.take_along_axis(chosen, order, axis=1)


def rank_and_sum(
    logits: NDArray[Any], k: int, temperature: float
) -> tuple[NDArray[np.int32], NDArray[Any], Floats, Floats, Floats]:
    """Return the top k and the moments of logits (N, V), computed a few rows at a time.

    Returns:
        ids (N, K) and logits (N, K), by decreasing logit, ties by id; and (N,) each, with
        p = exp(z / temperature) / sum exp(z / temperature): -log p0, the log of the mass behind
        rank K (-inf where there is none), and the entropy -sum p log p.

    Raises:
        ValueError: a logit is NaN or +inf, or all of a row are -inf.
    """
    rows = max(1, ENTRIES // logits.shape[1])
    parts = [
        _summary(logits[start : start + rows], k, temperature, start)
        for start in range(0, max(1, len(logits)), rows)
    ]
    if len(parts) == 1:
        return parts[0]
    ids, stored, surprisal, log_tail, entropy = map(np.concatenate, zip(*parts, strict=True))
    return ids, stored, surprisal, log_tail, entropy


def _summary(
    logits: NDArray[Any], k: int, temperature: float, begin: int
) -> tuple[NDArray[np.int32], NDArray[Any], Floats, Floats, Floats]:
    largest = logits.max(axis=1)
    right = np.isfinite(largest)  # the maximum of a row with a NaN is NaN
    if not right.all():
        row = int(np.argmin(right))
        content = "only masked tokens (-inf)" if largest[row] == -np.inf else f"a {largest[row]}"
        raise ValueError(
            f"logits of step {begin + row} hold {content}: give numbers, -inf for masked"
        )
    ids, stored = top(logits, k)
    with np.errstate(over="ignore"):
        below = (logits - largest[:, None].astype(np.float64)) / temperature
    below = np.maximum(below, MASKED)
    weight = np.exp(below)
    spread = (weight * below).sum(axis=1)
    np.put_along_axis(weight, ids[:, :1], 0.0, axis=1)
    surprisal = np.log1p(weight.sum(axis=1))  # the same for every k
    entropy = surprisal - spread * np.exp(-surprisal)
    log_tail = np.full(len(logits), -np.inf)
    if k < logits.shape[1]:
        np.put_along_axis(below, ids, -np.inf, axis=1)
        drop = below.max(axis=1)
        tail = np.exp(below - drop[:, None]).sum(axis=1)  # of its own largest: no underflow
        log_tail = np.where(drop > MASKED, drop + np.log(tail) - surprisal, -np.inf)
    return ids, stored, surprisal, log_tail, entropy


def check_columns(
    ids: NDArray[np.int32],
    logits: NDArray[np.floating[Any]],
    surprisal: Floats,
    log_tail: Floats,
    entropy: Floats,
    vocab_size: int,
    temperature: float,
) -> None:
    """Check that the stored columns of N steps can belong to one distribution.

    Raises:
        ValueError: names the first impossible column and step, and what is allowed there.
    """
    others = vocab_size - ids.shape[1]
    if ids.min(initial=0) < 0 or ids.max(initial=0) >= vocab_size:
        inside = (ids >= 0) & (ids < vocab_size)
        _refuse("top_ids", ids, inside, f"token ids in [0, {vocab_size})")
    _refuse("top_logits", logits[:, 0], np.isfinite(logits[:, 0]), "a finite largest logit")
    falling = logits[:, 1:] <= logits[:, :-1]
    _refuse("top_logits", logits[:, 1:], falling, "values that fall, -inf for masked tokens")
    possible = np.isfinite(surprisal) & (surprisal >= -TOLERANCE)
    _refuse("top_surprisal", surprisal, possible, "-log p0, at least 0")
    if not others:
        all_stored = "-inf, as all V tokens are stored"
        _refuse("log_tail", log_tail, log_tail == -np.inf, all_stored)
    below_one = log_tail <= np.log1p(TOLERANCE)
    _refuse("log_tail", log_tail, below_one, "the log of a mass of at most 1")
    last = (logits[:, -1] - logits[:, 0].astype(np.float64)) / temperature - surprisal  # log p_K
    most = last + np.log(max(1, others)) + TOLERANCE
    limit = f"at most that of {others} tokens of rank K"
    _refuse("log_tail", log_tail, log_tail <= most, limit, most)
    stored, surprise = _stored_sums(logits, surprisal, temperature)
    mass = np.exp(log_tail)
    whole = np.abs(stored + mass - 1.0) <= TOLERANCE
    if not whole.all():
        step = int(np.argmin(whole))
        raise ValueError(
            f"top_surprisal and log_tail of step {step} give the stored tokens a mass of "
            f"{stored[step]:.9g} and the others {mass[step]:.9g}: give values with which all "
            f"probabilities sum to 1, within {TOLERANCE:g}"
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        least = surprise - np.where(mass > 0, mass * last, 0.0)
        most = surprise + np.where(mass > 0, mass * (np.log(others) - log_tail), 0.0)
    slack = TOLERANCE * (1.0 + np.abs(entropy))
    allowed = f"at most log V = {np.log(vocab_size):.9g}, and with these probabilities at"
    _refuse("entropy", entropy, entropy >= least - slack, f"{allowed} least", least)
    _refuse("entropy", entropy, entropy <= most + slack, f"{allowed} most", most)


def check_log_probs(values: Floats, error: Floats, vocab_size: int) -> None:
    """Check (N, K) log-probabilities with errors of up to `error`.

    Raises:
        ValueError: names the first impossible step, and what is allowed there.
    """
    if values.shape[1] > vocab_size:
        raise ValueError(f"K={values.shape[1]} tokens of a vocabulary of {vocab_size}")
    _refuse("error", error, np.isfinite(error) & (error >= 0), "a finite number of at least 0")
    _refuse("log_probs", values[:, 0], np.isfinite(values[:, 0]), "a finite largest value")
    _refuse("log_probs", values, values <= error, "a logarithm of a probability, at most 0")
    _refuse("log_probs", values[:, 1:], values[:, 1:] <= values[:, :-1], "values that fall")
    least = np.exp(values - error).sum(axis=1)
    _refuse("log_probs", least, least <= 1.0 + PRINTED, "probabilities that sum to at most 1")


def _refuse(
    column: str,
    values: NDArray[Any],
    right: NDArray[np.bool_],
    allowed: str,
    limit: Floats | None = None,
) -> None:
    """Raise for the first step whose value is not allowed."""
    if right.all():
        return
    first = np.unravel_index(np.argmin(right), right.shape)
    more = "" if limit is None else f" {limit[first[0]]:.9g}"
    raise ValueError(
        f"{column} of step {first[0]}: {values[first]} is not allowed: give {allowed}{more}"
    )


def _stored_sums(
    logits: NDArray[np.floating[Any]], surprisal: Floats, temperature: float
) -> tuple[Floats, Floats]:
    """Return the sums of p and of -p log p over the stored tokens, (N,) each."""
    weight, spread = np.empty((2, len(logits)))
    masked = np.isneginf(logits[:, -1]).any()
    rows = max(1, CHECKED // logits.shape[1])
    for start in range(0, len(logits), rows):
        top = logits[start : start + rows]
        below = top - top[:, :1].astype(np.float64)
        if temperature != 1.0:
            below /= temperature
        if masked:
            np.maximum(below, MASKED, out=below)  # 0 times -inf is NaN
        w = np.exp(below)
        weight[start : start + rows] = w.sum(axis=1)
        spread[start : start + rows] = np.einsum("ij,ij->i", w, below)
    p0 = np.exp(-surprisal)
    return p0 * weight, p0 * (surprisal * weight - spread)


def surprise(p: Floats) -> Floats:
    """Return -p log p, 0 where p = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, -p * np.log(p), 0.0)
