"""Next-token distributions of many decoding steps, of which only the top K tokens are stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

SUM_TOLERANCE = 1e-6  # probabilities may come from float32; they are never renormalised


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


@dataclass(frozen=True, eq=False)
class TopK:
    """The K most probable tokens of N steps, and what is known of the V - K others.

    Ranks are by decreasing probability, ties by token id; column 0 is the argmax. Build it with
    `from_probabilities` or `from_columns`.

    Attributes:
        ids: (N, K) int32, token ids.
        logits: (N, K) float32 raw logits, or None when only probabilities are known.
        logsumexp: (N,) float64, log of the sum of exp(logit / temperature) over all V tokens.
        log_tail: (N,) float64, log of the mass outside the top K; -inf when there is none.
        entropy: (N,) float64, nats, over all V tokens.
        vocab_size: V.
        temperature: of the distribution described; logits stay raw.
        stored_probs: (N, K) float64, or None when the distribution is given by logits.
        entropy_error: how far the entropy may be off, relative to 1 + entropy. Intervals allow
            for it; infinite means that the entropy is not to be used.
    """

    ids: NDArray[np.int32]
    logits: NDArray[np.float32] | None
    logsumexp: Floats
    log_tail: Floats
    entropy: Floats
    vocab_size: int
    temperature: float = 1.0
    stored_probs: Floats | None = None
    entropy_error: float = 1e-9

    @classmethod
    def from_probabilities(cls, p: ArrayLike, k: int | None = None) -> TopK:
        """Describe full probability vectors by their k most probable tokens (all by default).

        Args:
            p: (N, V), rows that sum to one; zeros are allowed.
            k: how many tokens to store, at most V.

        Raises:
            ValueError: p is not (N, V), holds a negative or non-finite number, or a row does
                not sum to one; or k is not in [1, V].

        Example:
            >>> TopK.from_probabilities([[0.2, 0.5, 0.3]], k=2).ids.tolist()
            [[1, 2]]
        """
        if np.iscomplexobj(p):
            raise ValueError("p holds complex numbers: give probabilities")
        full = np.asarray(p, dtype=np.float64)
        if full.ndim != 2 or full.shape[1] == 0:
            raise ValueError(f"p has shape {full.shape}: give (steps, vocabulary)")
        if not np.all(np.isfinite(full)) or np.any(full < 0):
            raise ValueError("p holds a negative or non-finite number: give probabilities")
        if np.any(np.abs(full.sum(axis=1) - 1.0) > SUM_TOLERANCE):
            row = int(np.argmax(np.abs(full.sum(axis=1) - 1.0)))
            raise ValueError(f"row {row} of p sums to {full[row].sum():.9g}: rows must sum to 1")
        size = full.shape[1]
        k = size if k is None else k
        if not _is_integer(k) or not 1 <= k <= size:
            raise ValueError(f"k={k!r} is not allowed: give an integer in [1, {size}]")
        order = np.argsort(-full, axis=1, kind="stable").astype(np.int32)
        ranked = np.take_along_axis(full, order, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            surprise = np.where(ranked > 0, -ranked * np.log(ranked), 0.0)
            log_tail = np.log(ranked[:, k:].sum(axis=1))
        return cls(
            ids=np.ascontiguousarray(order[:, :k]),
            logits=None,
            logsumexp=np.zeros(len(full)),
            log_tail=log_tail,
            entropy=surprise.sum(axis=1),
            vocab_size=size,
            stored_probs=np.ascontiguousarray(ranked[:, :k]),
        )

    @classmethod
    def from_columns(
        cls,
        top_ids: ArrayLike,
        top_logits: ArrayLike,
        logsumexp: ArrayLike,
        log_tail: ArrayLike,
        entropy: ArrayLike,
        vocab_size: int,
        temperature: float = 1.0,
    ) -> TopK:
        """Take the columns of a stored dump, without copying them.

        Args:
            top_ids: (N, K) int32.
            top_logits: (N, K) float32, raw, by decreasing value, ties by id.
            logsumexp: (N,), at the given temperature, over the full vocabulary.
            log_tail: (N,), at the given temperature.
            entropy: (N,) nats, at the given temperature, accurate to `entropy_error`.
            vocab_size: V >= K.
            temperature: above 0; of the distribution whose certificates are wanted.

        Raises:
            ValueError: shapes disagree, K > V, the temperature is not above 0, or a number is
                none that a distribution has; the message names the column.
        """
        ids = np.asarray(top_ids, dtype=np.int32)
        logits = np.ascontiguousarray(top_logits, dtype=np.float32)
        if logits.ndim != 2 or logits.shape[1] == 0 or ids.shape != logits.shape:
            raise ValueError(
                f"top_ids {ids.shape} and top_logits {logits.shape}: "
                "both must have the same shape (steps, K), K at least 1"
            )
        if not _is_integer(vocab_size) or logits.shape[1] > vocab_size:
            raise ValueError(
                f"K={logits.shape[1]} tokens are stored of a vocabulary of {vocab_size!r}: "
                "give an integer that K does not exceed"
            )
        if not temperature > 0:
            raise ValueError(f"temperature={temperature} is not allowed: give a number above 0")

        def column(name: str, value: ArrayLike) -> Floats:
            array = np.ascontiguousarray(value, dtype=np.float64)
            if array.shape != logits.shape[:1]:
                raise ValueError(f"{name} has shape {array.shape}: expected {logits.shape[:1]}")
            return array

        dist = cls(
            ids,
            logits,
            column("logsumexp", logsumexp),
            column("log_tail", log_tail),
            column("entropy", entropy),
            vocab_size,
            float(temperature),
        )
        dist._check()
        return dist

    def _check(self) -> None:
        """Check what can be seen in one look at a step: that it can describe a distribution."""
        most = 1.0 + SUM_TOLERANCE

        def check(name: str, values: NDArray[Any], right: NDArray[np.bool_], allowed: str) -> None:
            if not right.all():
                row = int(np.argmin(right))
                raise ValueError(f"{name} of step {row} is {values[row]}: give {allowed}")

        for name in ("logsumexp", "entropy"):
            values = getattr(self, name)
            check(name, values, np.isfinite(values), "a finite number")
        check("entropy", self.entropy, self.entropy >= -SUM_TOLERANCE, "at least 0")
        tail = self.log_tail
        check("log_tail", tail, tail <= np.log(most), "the logarithm of a mass of at most 1")
        p0 = self.top_probability
        check("the largest probability", p0, p0 <= most, "a logsumexp not below the largest logit")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, steps: slice | NDArray[np.intp]) -> TopK:
        """Return some of the steps; arrays are views for a slice, copies for indices."""

        def cut(array: Any) -> Any:
            return None if array is None else array[steps]

        return replace(
            self,
            ids=self.ids[steps],
            logits=cut(self.logits),
            logsumexp=self.logsumexp[steps],
            log_tail=self.log_tail[steps],
            entropy=self.entropy[steps],
            stored_probs=cut(self.stored_probs),
        )

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
        scaled = self.logits.astype(np.float64) / self.temperature
        return np.asarray(scaled - self.logsumexp[:, None])

    @cached_property
    def probs(self) -> Floats:
        """(N, K) float64 probabilities, not renormalised."""
        return self.stored_probs if self.stored_probs is not None else np.exp(self.log_probs)

    @cached_property
    def top_probability(self) -> Floats:
        """(N,) float64, p0, the probability of the argmax."""
        if self.stored_probs is not None:
            return self.stored_probs[:, 0]
        assert self.logits is not None
        first = self.logits[:, 0].astype(np.float64) / self.temperature
        return np.asarray(np.exp(first - self.logsumexp))
