"""Next-token distributions of many decoding steps, each stored by its top K tokens.

Stage distributions computes the same sums on the model's device, in
`pipeline.models.logit_statistics`; a test checks that both agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .array_input import as_array, as_rows
from .validation import checked_integer, checked_number, described

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.intp]
PART = 8192  # steps processed at a time
LOGITS_AT_ONCE = 2**21  # logits processed at a time
PROBABILITIES_AT_ONCE = 2**16  # probabilities checked at a time
MASKED = -1e300  # stands for -inf: its exp is 0, and 0 times it is 0
TOLERANCE = 1e-9  # error allowed in sums of float64 probabilities; float32 can exceed it
PRINTED_ERROR = 1e-6  # error allowed in sums of probabilities that are printed or float32
ROUNDING = 1e-12  # assumed error of float64 probabilities, logarithms and sums; far above the true


class Distributions(Protocol):
    """The distributions of N steps: a `TopK`, or a file of them that is read part by part."""

    @property
    def k(self) -> int:
        """The number of stored tokens of a step."""

    @property
    def top_probability(self) -> Floats:
        """(N,) the probability of the argmax."""

    def __len__(self) -> int: ...

    def parts(self, wanted: Flags | None = None) -> Iterator[tuple[Indices, TopK]]:
        """Yield the indices and the distributions of the `wanted` (N,) steps, part by part."""


@dataclass(frozen=True, eq=False)
class TopK:
    """The K most probable tokens of N steps, with the mass and the entropy of the V - K others.

    Ranks are by decreasing probability, ties by token id; column 0 is the argmax. Build it with
    `from_probabilities`, `from_logits` or `from_columns`.

    Attributes:
        ids: (N, K) int32, token ids.
        logits: (N, K) float32 (or float64, if given so) raw logits, -inf for masked tokens, or
            None when only probabilities are known.
        top_surprisal: (N,) float64, -log p0: the log of the sum of exp(logit / temperature) over
            all V tokens, less the largest. All probabilities follow from it without loss, also
            where logits are large.
        log_tail: (N,) float64, log of the mass outside the top K; -inf when there is none.
        entropy: (N,) float64, nats, over all V tokens.
        vocab_size: V.
        temperature: of the distribution described; logits stay raw.
        stored_probs: (N, K) float64, or None when the distribution is given by logits.
        log_prob_error: (N, K), the largest error of each log-probability, nats; None where the
            stored numbers are exact. With errors all certificates are intervals
            (`certificates.intervals`), and `entropy` is its lower end.
    """

    ids: NDArray[np.int32]
    logits: NDArray[np.floating[Any]] | None
    top_surprisal: Floats
    log_tail: Floats
    entropy: Floats
    vocab_size: int
    temperature: float = 1.0
    stored_probs: Floats | None = None
    log_prob_error: Floats | None = None

    @classmethod
    def from_probabilities(cls, p: ArrayLike, k: int | None = None) -> TopK:
        """Build steps from full probability vectors, keeping k tokens (all by default).

        `p` is (N, V), NumPy or PyTorch; zeros are allowed, and (V,) is one step.

        Raises:
            ValueError: p is no distribution a row, or k is not in [1, V].

        >>> TopK.from_probabilities([[0.2, 0.5, 0.3]], k=2).ids.tolist()
        [[1, 2]]
        """
        full = as_rows("p", p).astype(np.float64)
        allowed = "rows of probabilities that sum to 1; logits are for TopK.from_logits"
        _check_steps("p", full, full >= 0, allowed)
        total = full.sum(axis=1)
        _check_steps("sum of p", total, np.abs(total - 1.0) <= PRINTED_ERROR, allowed)
        k = _stored_count(k, full.shape[1])
        order, ranked = _top(full, full.shape[1])
        with np.errstate(divide="ignore"):
            log_tail = np.log(ranked[:, k:].sum(axis=1))
        return cls(
            ids=np.ascontiguousarray(order[:, :k]),
            logits=None,
            top_surprisal=-np.log(ranked[:, 0]),
            log_tail=log_tail,
            entropy=_surprise(ranked).sum(axis=1),
            vocab_size=full.shape[1],
            stored_probs=np.ascontiguousarray(ranked[:, :k]),
        )

    @classmethod
    def from_logits(cls, logits: ArrayLike, k: int | None = None, temperature: float = 1.0) -> TopK:
        """Build steps from full rows of logits, keeping k tokens (all by default).

        `logits` are (N, V), raw, NumPy or PyTorch on any device; (V,) is one step. -inf is a masked
        token, of probability 0. Half precision is read as float32, which is exact.

        Raises:
            ValueError: a logit is NaN or +inf, a row is all -inf, or k or temperature out of range.

        >>> dist = TopK.from_logits([1.0, -np.inf, 1.0])
        >>> dist.ids.tolist(), dist.probs.round(3).tolist()
        ([[0, 2, 1]], [[0.5, 0.5, 0.0]])
        """
        full = as_rows("logits", logits)
        k = _stored_count(k, full.shape[1])
        temperature = checked_number("temperature", temperature, 0.0)
        largest = full.max(axis=1)  # NaN if the row has a NaN
        _check_steps(
            "largest logit", largest, np.isfinite(largest), "finite logits, -inf for masked"
        )
        rows = max(1, LOGITS_AT_ONCE // full.shape[1])
        starts = range(0, max(1, len(full)), rows)
        parts = [_moments(full[begin : begin + rows], k, temperature) for begin in starts]
        columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
        ids, stored, surprisal, log_tail, entropy = columns
        return cls(ids, stored, surprisal, log_tail, entropy, full.shape[1], temperature)

    @classmethod
    def from_columns(
        cls,
        top_ids: ArrayLike,
        top_logits: ArrayLike,
        top_surprisal: ArrayLike,
        log_tail: ArrayLike,
        entropy: ArrayLike,
        vocab_size: int,
        temperature: float = 1.0,
    ) -> TopK:
        """Build steps from stored columns, without copying them. They are described at the class.

        All but the raw logits are at the given temperature, and `log_tail` is good to 1e-9.

        Raises:
            ValueError: a shape, type or temperature is impossible, a step does not sum to 1, or the
                tokens that are not stored have a larger mass than they can have.
        """
        logits = np.ascontiguousarray(as_rows("top_logits", top_logits))
        moments = {"top_surprisal": top_surprisal, "log_tail": log_tail, "entropy": entropy}
        columns = {
            name: np.ascontiguousarray(as_array(name, column)) for name, column in moments.items()
        }
        steps = len(logits)
        for name, column in columns.items():
            if column.dtype != np.float64 or column.shape != (steps,):
                raise ValueError(
                    f"{name} is {column.dtype} {column.shape}: give ({steps},) float64"
                )
        vocab_size = checked_integer("vocab_size", vocab_size)
        ids = _token_ids(top_ids, logits, vocab_size)
        temperature = checked_number("temperature", temperature, 0.0)
        dist = cls(ids, logits, **columns, vocab_size=vocab_size, temperature=temperature)
        tail = np.exp(dist.log_tail)
        mass, least = _stored_mass(dist, logits)
        total = tail + mass
        allowed = f"columns whose probabilities sum to 1, within {TOLERANCE:g}"
        _check_steps("sum of probabilities", total, np.abs(total - 1.0) <= TOLERANCE, allowed)
        most = (dist.vocab_size - dist.k) * least + TOLERANCE
        allowed = (
            "the log of a mass that is possible with no other token above the K-th probability"
        )
        _check_steps("log_tail", dist.log_tail, tail <= most, allowed)
        _check_steps("entropy", dist.entropy, dist.entropy >= -TOLERANCE, "nats, at least 0")
        return dist

    @classmethod
    def from_log_probs(
        cls, top_ids: ArrayLike, log_probs: ArrayLike, error: ArrayLike, vocab_size: int
    ) -> TopK:
        """Build steps from the K largest log-probabilities, as an engine prints them.

        Raw logits, the tail and the entropy are unknown. Certificates are therefore intervals,
        and a rule that compares raw logits raises an error.

        `log_probs` (N, K) are natural logarithms, in descending order, `error` the largest error of
        each, a number or (N, K). A larger vocabulary is sound too, and makes intervals wider.
        Values above 0 by the rounding of float32 count as 0.

        Raises:
            ValueError: shapes disagree, an id stands twice in a row, values rise or are above 0, an
                error is below 0 or not finite, sums of probabilities are too large, or leave more
                to the other tokens than these can have.

        >>> TopK.from_log_probs([[7, 3]], [[-0.69, -1.2]], 0.005, vocab_size=50).k
        2
        """
        values = as_rows("log_probs", log_probs).astype(np.float64)
        off = as_array("error", error)
        if off.dtype.kind not in "fiu":
            raise ValueError(
                f"error is {described(error)}: give nats, a number or one for each value"
            )
        off = off.astype(np.float64)
        if off.shape not in ((), values.shape):
            raise ValueError(f"error is {off.shape}: give a number, or {values.shape} numbers")
        off = np.broadcast_to(off, values.shape)
        vocab_size = checked_integer("vocab_size", vocab_size)
        ids = _token_ids(top_ids, values, vocab_size)
        if (repeated := np.diff(np.sort(ids, axis=1), axis=1) == 0).any():
            step = int(np.argmax(repeated.any(axis=1)))
            raise ValueError(f"ids of step {step} has a token twice: give each token once")
        _check_steps("error", off, (off >= 0) & np.isfinite(off), "nats, at least 0")
        _check_steps(
            "log_probs", values, values <= PRINTED_ERROR, "natural logarithms of probabilities"
        )
        values = np.minimum(values, 0.0)
        _check_steps(
            "log_probs", values[:, 1:], values[:, 1:] <= values[:, :-1], "values that fall"
        )
        least = np.exp(values - off).sum(axis=1)
        _check_steps("sum of probabilities", least, least <= 1.0 + PRINTED_ERROR, "at most 1")
        probs = np.exp(values)
        others = vocab_size - ids.shape[1]
        with np.errstate(divide="ignore"):
            log_tail = np.log(np.clip(1.0 - probs.sum(axis=1), 0.0, None if others else 0.0))
        unknown = np.zeros(len(values))
        dist = cls(
            ids=ids,
            logits=None,
            top_surprisal=-values[:, 0],
            log_tail=log_tail,
            entropy=unknown,
            vocab_size=vocab_size,
            stored_probs=probs,
            log_prob_error=off,
        )
        _, high = dist.prob_range
        rest = 1.0 - high.sum(axis=1)
        possible = rest <= others * high[:, -1] + PRINTED_ERROR
        allowed = f"at most what the {others} can have, none of them more probable than rank K"
        _check_steps("mass of the other tokens", rest, possible, allowed)
        return replace(dist, entropy=dist.entropy_range[0])

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, steps: int | slice | NDArray[Any]) -> TopK:
        """Return a selection of the steps: views for a number or a slice, copies for indices.

        Raises:
            IndexError: there is no such step, or `steps` are not (n,) indices or (N,) booleans.
        """
        if isinstance(steps, int | np.integer):
            first = range(len(self))[steps]
            steps = slice(first, first + 1)
        if not isinstance(steps, slice) and np.ndim(steps) != 1:
            raise IndexError(f"steps={steps!r:.40}: give a number, a slice, or (n,) indices")
        stored = [(spec.name, getattr(self, spec.name)) for spec in fields(self)]
        arrays: Any = {name: x[steps] for name, x in stored if isinstance(x, np.ndarray)}
        return replace(self, **arrays)

    def parts(self, wanted: Flags | None = None) -> Iterator[tuple[Indices, TopK]]:
        """Yield the indices and the distributions of the `wanted` (N,) steps, part by part.

        They are in order, at most `PART` steps at a time. None: all steps.
        """
        steps = np.arange(len(self)) if wanted is None else np.flatnonzero(wanted)
        for begin in range(0, len(steps), PART):
            part = steps[begin : begin + PART]
            yield part, self[slice(begin, begin + PART) if wanted is None else part]

    @property
    def k(self) -> int:
        """K, the number of stored tokens of a step."""
        return int(self.ids.shape[1])

    @cached_property
    def log_probs(self) -> Floats:
        """(N, K) float64 log-probabilities; -inf where p = 0."""
        if self.logits is None:
            assert self.stored_probs is not None
            with np.errstate(divide="ignore"):
                return np.asarray(np.log(self.stored_probs))
        below = (self.logits - self.logits[:, :1].astype(np.float64)) / self.temperature
        return np.asarray(below - self.top_surprisal[:, None])

    @cached_property
    def probs(self) -> Floats:
        """(N, K) float64 probabilities, not renormalised."""
        return self.stored_probs if self.stored_probs is not None else np.exp(self.log_probs)

    @cached_property
    def prob_range(self) -> tuple[Floats, Floats]:
        """Least and largest stored probabilities, exp(l -+ `log_prob_error`), (N, K) each.

        They are tightened so that they fall along each row, as the probabilities do.
        """
        assert self.log_prob_error is not None
        off = self.log_prob_error + ROUNDING
        low = self.log_probs - off
        high = self.log_probs + off
        low = np.maximum.accumulate(low[:, ::-1], axis=1)[:, ::-1]
        high = np.minimum.accumulate(high, axis=1)
        return np.exp(low), np.minimum(np.exp(high), 1.0)

    @cached_property
    def tail_range(self) -> tuple[Floats, Floats]:
        """Least and largest mass T outside the top K, (N,) each: 1 - sum p, at most (V - K) p_K."""
        others = self.vocab_size - self.k
        low, high = self.prob_range
        if not others:
            return np.zeros(len(self)), np.zeros(len(self))
        least, most = (1.0 - part.sum(axis=1) for part in (high, low))
        most = np.minimum(np.maximum(most + ROUNDING, 0.0), others * high[:, -1])
        return np.minimum(np.maximum(least - ROUNDING, 0.0), most), most

    @cached_property
    def entropy_range(self) -> tuple[Floats, Floats]:
        """Least and largest entropy, nats, from the stored probabilities alone, (N,) each.

        x log(1/x) is concave, so the term of a stored token is least at an end of its range. The
        tail's entropy is least if every token is as probable as rank K, T log(1/p_K), and largest
        if all are equal, T log((V - K) / T). No entropy exceeds log V.
        """
        others = self.vocab_size - self.k
        low, high = self.prob_range
        at_ends = np.stack([_surprise(low), _surprise(high)])
        peak = np.where((low < 1 / np.e) & (1 / np.e < high), 1 / np.e, at_ends.max(axis=0))
        least, most = self.tail_range
        with np.errstate(divide="ignore", invalid="ignore"):
            last = np.where(least > 0, -least * np.log(high[:, -1]), 0.0)
            mass = np.minimum(most, others / np.e)
            even = np.where(mass > 0, mass * (np.log(others) - np.log(mass)), 0.0)
        lowest = at_ends.min(axis=0).sum(axis=1) + last
        highest = peak.sum(axis=1) + even
        highest = np.minimum(highest + ROUNDING, np.log(self.vocab_size))
        return np.maximum(lowest - ROUNDING, 0.0), highest

    @cached_property
    def top_probability(self) -> Floats:
        """(N,) float64, p0, the probability of the argmax."""
        if self.stored_probs is not None:
            return np.ascontiguousarray(self.stored_probs[:, 0])
        return np.asarray(np.exp(-self.top_surprisal))


def _stored_count(k: int | None, size: int) -> int:
    return size if k is None else checked_integer("k", k, 1, size)


def _token_ids(top_ids: ArrayLike, values: NDArray[Any], vocab_size: int) -> NDArray[np.int32]:
    """Return the ids as int32; ValueError if their shape, type or range is wrong."""
    ids = as_array("ids", top_ids)
    if ids.shape != values.shape or values.shape[1] > vocab_size:
        raise ValueError(
            f"ids {ids.shape} and values {values.shape} of {vocab_size} tokens: give both as "
            "(steps, K), K at most the size of the vocabulary"
        )
    if ids.dtype.kind not in "iu":
        raise ValueError(f"ids are {ids.dtype}: give integers")
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise ValueError(f"ids has {wrong}: give token ids in [0, {vocab_size - 1}]")
    return ids.astype(np.int32, copy=False)


def _top(values: NDArray[Any], k: int) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Return the ids and values of the k largest entries of each row, ties by id."""
    ids: NDArray[Any] = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    if k < values.shape[1]:
        least = np.partition(values, -k, axis=1)[:, -k, None]
        above = values > least
        equal = values == least
        room = k - above.sum(axis=1, keepdims=True)
        selected = above | (equal & (np.cumsum(equal, axis=1) <= room))
        ids = np.nonzero(selected)[1].reshape(len(values), k)
    chosen = np.take_along_axis(values, ids, axis=1)
    order = np.argsort(-chosen, axis=1, kind="stable")
    ranked = np.take_along_axis(ids, order, axis=1).astype(np.int32)
    return ranked, np.take_along_axis(chosen, order, axis=1)


def _moments(logits: NDArray[Any], k: int, temperature: float) -> tuple[NDArray[Any], ...]:
    """Return ids, logits, top_surprisal, log_tail and entropy of logits (N, V)."""
    ids, stored = _top(logits, k)
    with np.errstate(over="ignore"):
        log_ratio = (logits - stored[:, :1].astype(np.float64)) / temperature  # log(p / p0)
    log_ratio = np.maximum(log_ratio, MASKED)
    ratio = np.exp(log_ratio)
    weighted = (ratio * log_ratio).sum(axis=1)
    np.put_along_axis(ratio, ids[:, :1], 0.0, axis=1)  # x0, whose ratio is exactly 1
    surprisal = np.log1p(ratio.sum(axis=1))  # the same for every k
    entropy = surprisal - weighted * np.exp(-surprisal)
    log_tail = np.full(len(logits), -np.inf)
    if k < logits.shape[1]:
        np.put_along_axis(log_ratio, ids, -np.inf, axis=1)
        largest = log_ratio.max(axis=1)
        tail = np.exp(log_ratio - largest[:, None]).sum(axis=1)  # relative to it: no underflow
        log_tail = np.where(largest > MASKED, largest + np.log(tail) - surprisal, -np.inf)
    return ids, stored, surprisal, log_tail, entropy


def _surprise(p: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, -p * np.log(p), 0.0)


def _stored_mass(dist: TopK, logits: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return the sum and the least of each step's stored probabilities, (N,) each."""
    rows = max(1, PROBABILITIES_AT_ONCE // dist.k)
    mass = np.empty(len(dist))
    least = np.empty(len(dist))
    for start in range(0, len(dist), rows):
        part = logits[start : start + rows]
        below = (part - part[:, :1].astype(np.float64)) / dist.temperature
        weight = np.exp(below)
        mass[start : start + rows] = weight.sum(axis=1)
        least[start : start + rows] = weight[:, -1]
    return mass * dist.top_probability, least * dist.top_probability


def _check_steps(name: str, values: NDArray[Any], valid: NDArray[np.bool_], allowed: str) -> None:
    """Raise for the first step whose value is not allowed."""
    if not valid.all():
        first = np.unravel_index(np.argmin(valid), valid.shape)
        raise ValueError(f"{name} of step {first[0]} is {values[first]:.9g}: give {allowed}")
