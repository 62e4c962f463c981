"""How far a drafter's q lies from the target's p: the plain twin of pipeline.stages.drafts.compare.

All of it takes log-probabilities or logits of N steps, (N, V), and works in float64; -inf is a
token of probability zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SERIES_BELOW = 0.05  # |log(p/q)| under which phi is summed as a series
# (n-1)/n! for n = 2..10: phi(e^d - 1) = e^d (d - 1) + 1 = sum (n-1)/n! d^n; the first term left
# out is below 1e-17 of the sum at |d| = 0.05
SERIES = (1 / 2, 1 / 3, 1 / 8, 1 / 30, 1 / 144, 1 / 840, 1 / 5760, 1 / 45360, 1 / 403200)


@dataclass(frozen=True)
class Comparison:
    """Target p against draft q at N steps; divergences in nats.

    Ranks are 1-based, by decreasing probability. Ties are broken against the drafter: of several
    most probable draft tokens the drafted one is that of worst target rank, and a token that q
    gives the probability of the target's argmax ranks before it.

    Attributes:
        kl: (N,) KL(p||q).
        reverse_kl: (N,) KL(q||p).
        tv: (N,) total variation; 1 - tv is the acceptance of speculative sampling.
        hellinger: (N,) squared Hellinger distance.
        erss_acceptance: (N,) acceptance of the first draft of exponential races.
        harmonic_mean: (N,) its lower bound, Lemma C.1 of arXiv 2504.15475.
        draft_entropy: (N,) entropy of q.
        draft_token_id: (N,) the drafter's most probable token.
        draft_rank: (N,) its rank under p, ties of p by token id.
        draft_log_prob: (N,) its log-probability under p.
        argmax_rank: (N,) rank of p's argmax under q.
    """

    kl: Floats
    reverse_kl: Floats
    tv: Floats
    hellinger: Floats
    erss_acceptance: Floats
    harmonic_mean: Floats
    draft_entropy: Floats
    draft_token_id: Integers
    draft_rank: Integers
    draft_log_prob: Floats
    argmax_rank: Integers


def compare_logits(
    target_logits: NDArray[np.floating], draft_logits: NDArray[np.floating]
) -> Comparison:
    """Compare the distributions of two (N, V) arrays of logits over the same vocabulary."""
    p, q = log_softmax(target_logits), log_softmax(draft_logits)
    token, rank = drafted_token(target_logits, draft_logits)
    return Comparison(
        kl=kl(p, q),
        reverse_kl=kl(q, p),
        tv=total_variation(p, q),
        hellinger=hellinger(p, q),
        erss_acceptance=erss_acceptance(p, q),
        harmonic_mean=harmonic_mean(p, q),
        draft_entropy=entropy(q),
        draft_token_id=token,
        draft_rank=rank,
        draft_log_prob=np.take_along_axis(p, token[:, None], axis=1)[:, 0],
        argmax_rank=argmax_rank(target_logits, draft_logits),
    )


def log_softmax(logits: NDArray[np.floating]) -> Floats:
    """Return the (N, V) log-probabilities of logits, in float64."""
    z = np.asarray(logits, dtype=np.float64)
    below = z - z.max(axis=1, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(axis=1, keepdims=True)))


def kl(log_p: Floats, log_q: Floats) -> Floats:
    """Return KL(p||q) = sum q phi(p/q - 1), phi(u) = (1+u) log(1+u) - u, in nats.

    Every term is non-negative, so nothing cancels where p and q nearly agree, and p = q gives
    exactly 0. With d = log(p/q), q phi = p d - (p - q), and the series of phi for small d.

    Returns:
        (N,); +inf where q is zero on a token of p.

    Example:
        >>> half = np.log([[0.5, 0.5]])
        >>> [float(round(x, 6)) for x in kl(half, np.log([[0.75, 0.25]]))]
        [0.143841]
    """
    p, q = np.exp(log_p), np.exp(log_q)
    with np.errstate(invalid="ignore"):
        d = log_p - log_q
    small = np.abs(d) < SERIES_BELOW
    x = np.where(small, d, 0.0)
    series = np.zeros_like(x)
    for coefficient in reversed(SERIES):
        series = coefficient + x * series
    with np.errstate(invalid="ignore"):
        large = p * d - (p - q)  # NaN where p = 0 and d = -inf; NaN where both are zero
    terms = np.where(small, q * x * x * series, np.where(p > 0, large, q))
    return np.asarray(terms.sum(axis=1))


def total_variation(log_p: Floats, log_q: Floats) -> Floats:
    """Return the (N,) total variation, half the sum of |p - q|."""
    return np.asarray(np.abs(np.exp(log_p) - np.exp(log_q)).sum(axis=1) / 2)


def hellinger(log_p: Floats, log_q: Floats) -> Floats:
    """Return the (N,) squared Hellinger distance 1 - sum sqrt(p q), as half of a sum of squares.

    Example:
        >>> hellinger(np.log([[0.5, 0.5]]), np.array([[0.0, -np.inf]])).round(6).tolist()
        [0.292893]
    """
    return np.asarray(((np.exp(log_p / 2) - np.exp(log_q / 2)) ** 2).sum(axis=1) / 2)


def harmonic_mean(log_p: Floats, log_q: Floats) -> Floats:
    """Return the (N,) sum of p q / (p + q): equation (10) of arXiv 2504.15475."""
    p, q = np.exp(log_p), np.exp(log_q)
    both = p + q
    return np.asarray(np.where(both > 0, p * q / np.where(both > 0, both, 1), 0).sum(axis=1))


def erss_acceptance(log_p: Floats, log_q: Floats) -> Floats:
    """Return the probability that one exponential race has the same winner under p and q.

    sum_i 1 / sum_j max(p_j / p_i, q_j / q_i) (arXiv 2504.15475, Lemma C.2 and its races). With
    the tokens sorted by decreasing p/q, the maximum is p_j / p_i up to i and q_j / q_i after
    it: O(V log V) for cumulated sums of p from the front and of q from the back.

    Returns:
        (N,), between `harmonic_mean` and 1 - `total_variation`.
    """
    with np.errstate(invalid="ignore"):
        d = np.nan_to_num(log_p - log_q, nan=0.0, posinf=np.inf, neginf=-np.inf)
    order = np.argsort(-d, axis=1, kind="stable")
    p = np.take_along_axis(np.exp(log_p), order, axis=1)
    q = np.take_along_axis(np.exp(log_q), order, axis=1)
    front = np.cumsum(p, axis=1)
    back = np.zeros_like(q)
    back[:, :-1] = np.cumsum(q[:, :0:-1], axis=1)[:, ::-1]
    below = front * q + back * p
    both = (p > 0) & (q > 0)
    return np.asarray(np.where(both, p * q / np.where(both, below, 1), 0).sum(axis=1))


def entropy(log_p: Floats) -> Floats:
    """Return the (N,) entropy in nats."""
    p = np.exp(log_p)
    return np.asarray(-np.where(p > 0, p * np.where(p > 0, log_p, 0), 0).sum(axis=1))


def drafted_token(
    target_logits: NDArray[np.floating], draft_logits: NDArray[np.floating]
) -> tuple[Integers, Integers]:
    """Return the drafter's argmax and its target rank, (N,) each.

    Of several tokens tied at the drafter's maximum it is the one of worst target rank: what is
    accepted must be accepted however the drafter breaks its ties.
    """
    tied = draft_logits == draft_logits.max(axis=1, keepdims=True)
    worst = np.where(tied, target_logits, np.inf).min(axis=1, keepdims=True)
    last = (tied & (target_logits == worst))[:, ::-1]
    token = draft_logits.shape[1] - 1 - last.argmax(axis=1)
    before = np.arange(draft_logits.shape[1]) < token[:, None]
    ahead = (target_logits > worst) | ((target_logits == worst) & before)
    return token, 1 + ahead.sum(axis=1)


def argmax_rank(
    target_logits: NDArray[np.floating], draft_logits: NDArray[np.floating]
) -> Integers:
    """Return the (N,) rank of the target's argmax under q, the worst under ties.

    1 + #{v != x0 : q(v) >= q(x0)}; of several target argmaxima, x0 is that of the lowest id.
    """
    first = target_logits.argmax(axis=1)[:, None]
    return np.asarray((draft_logits >= np.take_along_axis(draft_logits, first, axis=1)).sum(axis=1))
