"""How far a drafter's q lies from the target's p: the plain twin of pipeline.models.logit_comparison.

All of it takes log-probabilities or logits of N steps, (N, V), and works in float64; -inf is a
token of probability zero. Divergences are in nats.
"""

from types import SimpleNamespace

import numpy as np
from scipy.special import log_softmax as scipy_log_softmax


def compare_logits(target_logits, draft_logits):
    """The columns of stage drafts, (N,) each; ranks are 1-based, ties go against the drafter."""
    p, q = log_softmax(target_logits), log_softmax(draft_logits)
    token, rank = drafted_token(target_logits, draft_logits)
    return SimpleNamespace(
        kl=kl(p, q),
        tv=total_variation(p, q),
        erss_acceptance=erss_acceptance(p, q),
        harmonic_mean=harmonic_mean(p, q),
        draft_token_id=token,
        draft_rank=rank,
        draft_log_prob=np.take_along_axis(p, token[:, None], axis=1)[:, 0],
        argmax_rank=argmax_rank(target_logits, draft_logits),
    )


def log_softmax(logits):
    """Return the (N, V) log-probabilities of logits."""
    return np.asarray(scipy_log_softmax(np.asarray(logits, dtype=np.float64), axis=1))


def kl(log_p, log_q):
    """Return KL(p||q) = sum q phi(p/q - 1), phi(u) = (1+u) log(1+u) - u.

    No term is negative, so nothing cancels where p and q nearly agree. With d = log(p/q),
    phi = d (e^d - 1) - (e^d - 1 - d). Where q lacks a token of p it is +inf.
    """
    p, q = np.exp(log_p), np.exp(log_q)
    with np.errstate(invalid="ignore"):
        d = log_p - log_q
        terms = q * (d * np.expm1(d) - (np.expm1(d) - d))
    return np.asarray(np.where(p == 0, q, np.where(q == 0, np.inf, terms)).sum(axis=1))


def total_variation(log_p, log_q):
    """Return half the sum of |p - q|; 1 - it is the acceptance of speculative sampling."""
    return np.asarray(np.abs(np.exp(log_p) - np.exp(log_q)).sum(axis=1) / 2)


def harmonic_mean(log_p, log_q):
    """Return the sum of p q / (p + q): equation (10) of arXiv 2504.15475."""
    p, q = np.exp(log_p), np.exp(log_q)
    return np.asarray((p * q / np.maximum(p + q, 1e-300)).sum(axis=1))


def erss_acceptance(log_p, log_q):
    """Return the probability that one exponential race has the same winner under p and q.

    sum_i 1 / sum_j max(p_j / p_i, q_j / q_i) (arXiv 2504.15475, Lemma C.2). With the tokens
    sorted by decreasing p/q, the maximum is p_j / p_i up to i and q_j / q_i after it.
    """
    with np.errstate(invalid="ignore"):
        d = np.nan_to_num(log_p - log_q, nan=0.0, posinf=np.inf, neginf=-np.inf)
    order = np.argsort(-d, axis=1, kind="stable")
    p, q = (np.take_along_axis(np.exp(x), order, axis=1) for x in (log_p, log_q))
    after = np.cumsum(q[:, ::-1], axis=1)[:, ::-1] - q
    below = np.cumsum(p, axis=1) * q + after * p
    return np.asarray(np.where((p > 0) & (q > 0), p * q / np.maximum(below, 1e-300), 0).sum(axis=1))


def drafted_token(target_logits, draft_logits):
    """Return the drafter's argmax and its target rank, the worst of tied ones, (N,) each."""
    order = np.argsort(-np.asarray(target_logits), axis=1, kind="stable")
    ranked = np.take_along_axis(draft_logits, order, axis=1)
    last = ranked.shape[1] - 1 - ranked[:, ::-1].argmax(axis=1)
    return np.take_along_axis(order, last[:, None], axis=1)[:, 0], 1 + last


def argmax_rank(target_logits, draft_logits):
    """Return the rank of the target's argmax under q, the worst under ties.

    1 + #{v != x0 : q(v) >= q(x0)}; of several target argmaxima, x0 is that of the lowest id.
    """
    first = target_logits.argmax(axis=1)[:, None]
    return np.asarray((draft_logits >= np.take_along_axis(draft_logits, first, axis=1)).sum(axis=1))
