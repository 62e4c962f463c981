"""Full rows of numbers, ranked and summed up: what `TopK` stores of logits or probabilities.

The stage distributions computes the same on its device (`pipeline.models.logit_statistics`), and is
tested against this.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ENTRIES = 2**21  # logits worked on at a time
MASKED = -1e300  # stands for -inf: its exp is 0, and 0 times it is 0


class Summary(NamedTuple):
    """Of N rows of logits: the top K, and in nats the moments of the whole."""

    ids: NDArray[np.int32]  # (N, K), by decreasing logit, ties by id
    logits: NDArray[np.floating[Any]]  # (N, K)
    top_surprisal: Floats  # (N,)
    log_tail: Floats  # (N,), -inf where no other token has any mass
    entropy: Floats  # (N,)


def as_rows(name: str, value: Any) -> NDArray[Any]:
    """Return numbers as an array (steps, vocabulary) of float32 or float64; one row is one step.

    NumPy, PyTorch (any device and dtype) and whatever NumPy can read are taken.

    Raises:
        ValueError: these are no real numbers, or not of that shape; the message says `name`.
    """
    if hasattr(value, "detach"):  # a tensor of PyTorch, which is not imported here
        value = value.detach().cpu()
        value = value.numpy() if value.element_size() == 8 else value.float().numpy()
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.empty((), dtype=object)
    if array.dtype.kind not in "fiu":
        what = "complex numbers" if array.dtype.kind == "c" else type(value).__name__
        raise ValueError(f"{name} holds no rows of real numbers ({what}): give (steps, vocabulary)")
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(
            f"{name} has the shape {array.shape}: give (steps, vocabulary), or one row"
        )
    half = array.dtype in (np.float16, np.float32)
    return array.astype(np.float32 if half else np.float64, copy=False)


def check_size(k: Any, size: int) -> int:
    """Return how many of `size` tokens are stored: k, or all of them when it is None.

    Raises:
        ValueError: k is no integer in [1, size].
    """
    if k is None:
        return size
    if not is_integer(k) or not 1 <= k <= size:
        raise ValueError(f"k={k!r} is not allowed: give an integer in [1, {size}]")
    return int(k)


def is_integer(value: Any) -> bool:
    """Say whether this is a whole number, of Python or NumPy; booleans are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def top(values: NDArray[Any], k: int) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Return ids and values of the k largest of each row, by decreasing value, ties by id."""
    ids: NDArray[Any] = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    if k < values.shape[1]:
        least = np.partition(values, -k, axis=1)[:, -k, None]
        above, equal = values > least, values == least
        room = k - above.sum(axis=1, keepdims=True)
        kept = above | (equal & (np.cumsum(equal, axis=1) <= room))
        ids = np.nonzero(kept)[1].reshape(len(values), k)
    chosen = np.take_along_axis(values, ids, axis=1)
    order = np.argsort(-chosen, axis=1, kind="stable")
    ranked = np.take_along_axis(ids, order, axis=1).astype(np.int32)
    return ranked, np.take_along_axis(chosen, order, axis=1)


def rank_and_sum(logits: NDArray[Any], k: int, temperature: float) -> Summary:
    """Return the top k and the moments of logits (N, V), some rows at a time.

    Raises:
        ValueError: a logit is NaN or +inf, or all of a row are -inf.
    """
    rows = max(1, ENTRIES // logits.shape[1])
    parts = [
        _summary(logits[at : at + rows], k, temperature, at)
        for at in range(0, max(1, len(logits)), rows)
    ]
    if len(parts) == 1:
        return parts[0]
    return Summary(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _summary(logits: NDArray[Any], k: int, temperature: float, begin: int) -> Summary:
    largest = logits.max(axis=1)
    right = np.isfinite(largest)  # the maximum of a row with a NaN is NaN
    if not right.all():
        row = int(np.argmin(right))
        what = "only masked tokens (-inf)" if largest[row] == -np.inf else f"a {largest[row]}"
        raise ValueError(f"logits of step {begin + row} hold {what}: give numbers, -inf for masked")
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
    return Summary(ids, stored, surprisal, log_tail, entropy)
