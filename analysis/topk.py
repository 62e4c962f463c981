"""Next-token distributions of many decoding steps, each stored by its top K tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .topk_rows import (
    Floats,
    as_rows,
    check_columns,
    check_log_probs,
    check_size,
    is_integer,
    rank_and_sum,
    surprise,
    top,
)

__all__ = ["Floats", "TopK"]

ROUNDING = 1e-12  # of sums of probabilities, far above that of float64
SUM_TOLERANCE = 1e-6  # probabilities may come from float32; they are never renormalised


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
            (`certificates.rounded`), and `entropy` is its lower end.
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

        Args:
            p: (N, V), rows that sum to one, NumPy or PyTorch; zeros are allowed. (V,) is one
                step.
            k: number of tokens to store, at most V.

        Raises:
            ValueError: p is not (N, V), holds a negative or non-finite number, or a row does
                not sum to one. Or k is not in [1, V].

        Examples:
            >>> TopK.from_probabilities([[0.2, 0.5, 0.3]], k=2).ids.tolist()
            [[1, 2]]
        """
        full = as_rows("p", p).astype(np.float64)
        if not np.all(np.isfinite(full)) or np.any(full < 0):
            raise ValueError(
                "p holds a negative or non-finite number: give probabilities, or logits to "
                "TopK.from_logits"
            )
        off = np.abs(full.sum(axis=1) - 1.0)
        if np.any(off > SUM_TOLERANCE):
            row = int(np.argmax(off))
            raise ValueError(
                f"row {row} of p sums to {full[row].sum():.9g}: rows must sum to 1; logits are "
                "for TopK.from_logits"
            )
        k = check_size(k, full.shape[1])
        order, ranked = top(full, full.shape[1])
        with np.errstate(divide="ignore"):
            log_tail = np.log(ranked[:, k:].sum(axis=1))
        return cls(
            ids=np.ascontiguousarray(order[:, :k]),
            logits=None,
            top_surprisal=-np.log(ranked[:, 0]),
            log_tail=log_tail,
            entropy=surprise(ranked).sum(axis=1),
            vocab_size=full.shape[1],
            stored_probs=np.ascontiguousarray(ranked[:, :k]),
        )

    @classmethod
    def from_logits(cls, logits: ArrayLike, k: int | None = None, temperature: float = 1.0) -> TopK:
        """Build steps from full rows of logits, keeping k tokens (all by default).

        Args:
            logits: (N, V), raw, NumPy or PyTorch on any device; (V,) is one step. -inf is a
                masked token, of probability 0. Half precision is read as float32, which is exact.
            k: number of tokens to store, at most V.
            temperature: of the distribution, above 0.

        Raises:
            ValueError: logits are not (N, V), hold NaN or +inf, or a row is entirely masked. Or
                k is not in [1, V], or the temperature is not above 0.

        Examples:
            >>> dist = TopK.from_logits([1.0, -np.inf, 1.0])
            >>> dist.ids.tolist(), dist.probs.round(3).tolist()
            ([[0, 2, 1]], [[0.5, 0.5, 0.0]])
        """
        full = as_rows("logits", logits)
        size = full.shape[1]
        moments = rank_and_sum(full, check_size(k, size), _above_zero(temperature))
        return cls(*moments, vocab_size=size, temperature=float(temperature))

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
        """Build steps from stored columns, without copying them.

        Args:
            top_ids: (N, K) int32.
            top_logits: (N, K) float32, raw, by decreasing value, ties by id; -inf for masked
                tokens. Float64 stays float64.
            top_surprisal: (N,) float64, -log p0 at the given temperature, over the full vocabulary.
            log_tail: (N,) float64, at the given temperature, good to 1e-9; to its own rounding
                where one token is left.
            entropy: (N,) float64, nats, at the given temperature.
            vocab_size: V >= K.
            temperature: of the distribution to certify, above 0.

        Raises:
            ValueError: shapes disagree, K > V, the temperature is not above 0, a column has less
                than float64 precision, or columns contradict each other (masses do not sum to 1,
                an entropy is impossible, ...). The message names the column and the step.
        """
        ids = np.asarray(top_ids, dtype=np.int32)
        logits = np.ascontiguousarray(as_rows("top_logits", top_logits))
        if ids.shape != logits.shape:
            raise ValueError(
                f"top_ids {ids.shape} and top_logits {logits.shape}: "
                "both must have the same shape (steps, K), K at least 1"
            )
        if not is_integer(vocab_size) or logits.shape[1] > vocab_size:
            raise ValueError(
                f"K={logits.shape[1]} tokens are stored of a vocabulary of {vocab_size!r}: "
                "give an integer that K does not exceed"
            )

        def column(name: str, value: ArrayLike) -> Floats:
            raw = np.asarray(value)
            if raw.dtype.kind == "f" and raw.dtype.itemsize < 8:
                raise ValueError(
                    f"{name} is {raw.dtype}: give float64, from which certificates are exact, or "
                    "log-probabilities and their error to TopK.from_log_probs"
                )
            array = np.ascontiguousarray(raw, dtype=np.float64)
            if array.shape != logits.shape[:1]:
                raise ValueError(f"{name} has shape {array.shape}: expected {logits.shape[:1]}")
            return array

        columns = (
            ids,
            logits,
            column("top_surprisal", top_surprisal),
            column("log_tail", log_tail),
            column("entropy", entropy),
            int(vocab_size),
            _above_zero(temperature),
        )
        check_columns(*columns)
        return cls(*columns)

    @classmethod
    def from_log_probs(
        cls, top_ids: ArrayLike, log_probs: ArrayLike, error: ArrayLike, vocab_size: int
    ) -> TopK:
        """Build steps from the K largest log-probabilities, as an engine prints them.

        Raw logits, the tail and the entropy are unknown. Certificates are therefore intervals,
        and a rule that compares raw logits raises an error.

        Args:
            top_ids: (N, K) int32, in the order of the values.
            log_probs: (N, K) natural logarithms, in descending order; -inf is a probability of 0.
            error: the largest error of each, at least 0; a number or (N, K).
            vocab_size: V >= K. A value above V is sound too, and makes intervals wider.

        Raises:
            ValueError: shapes disagree, values rise or are not log-probabilities, the
                probabilities of a step sum to more than 1 plus their errors, or K exceeds V.

        Examples:
            >>> TopK.from_log_probs([[7, 3]], [[-0.69, -1.2]], 0.005, vocab_size=50).k
            2
        """
        values = as_rows("log_probs", log_probs).astype(np.float64)
        off = np.broadcast_to(np.asarray(error, dtype=np.float64), values.shape)
        ids = np.asarray(top_ids, dtype=np.int32)
        if ids.shape != values.shape:
            raise ValueError(f"top_ids {ids.shape} and log_probs {values.shape}: shapes must agree")
        check_log_probs(values, off, vocab_size)
        probs, others = np.exp(values), int(vocab_size) - ids.shape[1]
        with np.errstate(divide="ignore"):
            log_tail = np.log(np.clip(1.0 - probs.sum(axis=1), 0.0, None if others else 0.0))
        dist = cls(
            ids,
            None,
            -values[:, 0],
            log_tail,
            np.zeros(len(values)),
            int(vocab_size),
            stored_probs=probs,
            log_prob_error=off,
        )
        return replace(dist, entropy=dist.entropy_range[0])

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, steps: slice | NDArray[np.intp]) -> TopK:
        """Return a selection of the steps: views for a slice, copies for indices."""
        stored = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        rows: dict[str, Any] = {
            name: x[steps] for name, x in stored.items() if isinstance(x, np.ndarray)
        }
        return replace(self, **rows)

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
        """The (N, K) lower and upper end of each probability, from `log_prob_error`.

        exp(l - error) and exp(l + error), both made to fall along a row as the probabilities do.
        """
        error = 0.0 if self.log_prob_error is None else self.log_prob_error
        low, high = self.log_probs - error, self.log_probs + error
        low = np.maximum.accumulate(low[:, ::-1], axis=1)[:, ::-1]
        high = np.minimum.accumulate(high, axis=1)
        return np.exp(low), np.minimum(np.exp(high), 1.0)

    @cached_property
    def tail_range(self) -> tuple[Floats, Floats]:
        """The (N,) least and largest mass T outside the top K, from the stored tokens alone.

        T is between 1 - sum high and 1 - sum low. No token exceeds rank K: T is at most
        (V - K) p_K.
        """
        others, (low, high) = self.vocab_size - self.k, self.prob_range
        if not others:
            return np.zeros(len(self)), np.zeros(len(self))
        least, most = (1.0 - part.sum(axis=1) for part in (high, low))
        most = np.minimum(most + ROUNDING, others * high[:, -1])
        return np.minimum(np.maximum(least - ROUNDING, 0.0), most), most

    @cached_property
    def entropy_range(self) -> tuple[Floats, Floats]:
        """The (N,) least and largest entropy, nats, from the stored probabilities alone.

        x log(1/x) is concave, so the term of a stored token is least at an end of its range. The
        tail's entropy is least if every token is as probable as rank K, T log(1/p_K), and largest
        if all are equal, T log((V - K) / T).
        """
        others, (low, high) = self.vocab_size - self.k, self.prob_range
        at_ends = np.stack([surprise(low), surprise(high)])
        peak = np.where((low < 1 / np.e) & (1 / np.e < high), 1 / np.e, at_ends.max(axis=0))
        least, most = self.tail_range
        with np.errstate(divide="ignore", invalid="ignore"):
            last = np.where(least > 0, -least * np.log(high[:, -1]), 0.0)
            mass = np.minimum(most, others / np.e)
            even = np.where(mass > 0, mass * (np.log(others) - np.log(mass)), 0.0)
        return at_ends.min(axis=0).sum(axis=1) + last, peak.sum(axis=1) + even

    @cached_property
    def top_probability(self) -> Floats:
        """(N,) float64, p0, the probability of the argmax."""
        if self.stored_probs is not None:
            return np.ascontiguousarray(self.stored_probs[:, 0])
        return np.asarray(np.exp(-self.top_surprisal))


def _above_zero(temperature: Any) -> float:
    if not isinstance(temperature, int | float | np.number) or not 0 < temperature < np.inf:
        raise ValueError(f"temperature={temperature!r} is not allowed: give a number above 0")
    return float(temperature)
