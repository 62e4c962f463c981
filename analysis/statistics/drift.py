"""Drift: how far greedy answers deviate from the argmax of the model that scores them.

A greedy answer of a model whose logits are off by at most e takes a token whose logit here is at
most 2 e below the largest: z_1 - z_x = (z_1 - z'_1) + (z'_1 - z'_x) + (z'_x - z_x) <= e + 0 + e. So
greedy decoding is unchanged wherever z_1 - z_2 > 2 e, and a gap g at a step shows e >= g / 2.
Log-probabilities that were served with the answers show the difference itself: two models whose
logits differ by at most e have log-probabilities that differ by at most 2 e.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

ANOTHER = 0.1  # share of steps off the argmax above which another model is likelier than rounding
ERRORS = (0.01, 0.03, 0.1, 0.3, 1.0)  # of logits
TIE = 0.25  # logits: two steps of bfloat16 between 16 and 32


def gaps(token: np.ndarray, ids: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return z_1 - z_x of the emitted token x, -1 where it is the argmax, and z_1 - z_2.

    Args:
        token: (N,) emitted.
        ids: (N, K) the most probable, by decreasing logit.
        logits: (N, K) theirs.

    Returns:
        (N,) float32 each; of a token that is not among the K, the gap to the last of them, which
        is a lower bound. Where K = 1 the margin is infinite.

    Examples:
        >>> gaps(np.array([7, 8]), np.array([[7, 8], [7, 8]]), np.array([[3.0, 2.5], [1.0, 0.0]]))
        (array([-1.,  1.], dtype=float32), array([0.5, 1. ], dtype=float32))
    """
    is_token = ids == token[:, None]
    at = np.where(is_token.any(axis=1), is_token.argmax(axis=1), ids.shape[1] - 1)
    gap = logits[:, 0] - np.take_along_axis(logits, at[:, None], axis=1)[:, 0]
    margin = logits[:, 0] - logits[:, 1] if ids.shape[1] > 1 else np.full(len(ids), np.inf)
    gap = np.where(token == ids[:, 0], -1.0, gap)  # the second of two equal logits has gap 0
    return gap.astype(np.float32), margin.astype(np.float32)


def drift(gap: np.ndarray, margin: np.ndarray) -> dict[str, Any]:
    """Sum up gaps and margins (N,): the share of steps off the argmax, and what errors explain.

    Returns:
        steps, off and share; median_gap and largest_gap of those off; by_error: for each of
        `ERRORS` the share of steps at which such an error may change greedy decoding.
    """
    off = gap[gap >= 0]
    return {
        "steps": len(gap),
        "off": len(off),
        "share": len(off) / len(gap),
        "median_gap": float(np.median(off)) if len(off) else 0.0,
        "largest_gap": float(off.max(initial=0.0)),
        "by_error": {f"{error:g}": float(np.mean(margin <= 2 * error)) for error in ERRORS},
    }


def log_prob_differences(
    step: np.ndarray, token: np.ndarray, value: np.ndarray, ids: np.ndarray, log_probs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compare served log-probabilities with those of the model that scores the answers.

    Args:
        step: (M,) which of the N steps each belongs to.
        token: (M,) their tokens.
        value: (M,) served, nats.
        ids: (N, K) the most probable tokens of the scoring model.
        log_probs: (N, K) theirs, nats.

    Returns:
        (M,) whether the token is among the K, and |difference| of those that are, in nats.

    Examples:
        >>> log_prob_differences(
        ...     np.array([0, 0]), np.array([8, 5]), np.array([-1.5, -9.0]),
        ...     np.array([[7, 8]]), np.array([[-0.5, -1.25]]),
        ... )
        (array([ True, False]), array([0.25]))
    """
    is_token = ids[step] == token[:, None]
    stored = is_token.any(axis=1)
    own = log_probs[step[stored], is_token[stored].argmax(axis=1)]
    return stored, np.abs(value[stored] - own)


def log_prob_drift(difference: np.ndarray) -> dict[str, Any]:
    """Sum up differences of log-probabilities (M,), nats; empty without any.

    Returns:
        log_probs, how many; median_difference and largest_difference.
    """
    if not len(difference):
        return {}
    return {
        "log_probs": len(difference),
        "median_difference": float(np.median(difference)),
        "largest_difference": float(difference.max()),
    }


def compare_texts(
    token: np.ndarray, gap: np.ndarray, pairs: Sequence[tuple[slice, slice]]
) -> dict[str, Any]:
    """Say where answers to the same prompts part, and how far apart the two tokens are there.

    Both tokens stand behind the same text, so the model has one distribution for both: the larger
    of their gaps says how far their logits are apart, where one is the argmax.

    Args:
        token: (N,) emitted.
        gap: (N,) as of `gaps`, negative at the argmax.
        pairs: the steps of both answers to each prompt.
    """
    parted, after = [], []
    for one, other in pairs:
        length = min(one.stop - one.start, other.stop - other.start)
        here, there = (slice(part.start, part.start + length) for part in (one, other))
        apart = np.flatnonzero(token[here] != token[there])
        if len(apart):
            at = int(apart[0])
            after.append(at)
            parted.append(abs(max(gap[here][at], 0) - max(gap[there][at], 0)))
    return {
        "prompts": len(pairs),
        "parted": len(parted),
        "median_after": float(np.median(after)) if after else 0.0,
        "median_gap": float(np.median(parted)) if parted else 0.0,
        "largest_gap": float(max(parted, default=0.0)),
        "near_ties": int(sum(one <= TIE for one in parted)),
    }


def said(found: Mapping[str, Any]) -> str:
    """Return what `drift` or `compare_texts` found in words."""
    if "prompts" in found:
        return (
            f"of {found['prompts']} prompts in both {found['parted']} part, after "
            f"{found['median_after']:g} tokens (median), at a gap of {found['median_gap']:.3g} "
            f"(median, largest {found['largest_gap']:.3g}); {found['near_ties']} are near-ties "
            f"(at most {TIE:g})"
        )
    expected = ", ".join(f"{share:.2%} ({error})" for error, share in found["by_error"].items())
    by = (
        f", by a gap of {found['median_gap']:.3g} (median, largest {found['largest_gap']:.3g}): "
        "logits differ by at least half of that"
    )
    shown = ""
    if "log_probs" in found:
        shown = (
            f". {found['log_probs']} log-probabilities in the file differ from those here by "
            f"{found['median_difference']:.2g} nats (median, largest "
            f"{found['largest_difference']:.2g})"
        )
    return (
        f"{found['off']} of {found['steps']} greedy steps ({found['share']:.2%}) are not the "
        f"argmax here{by if found['off'] else ''}. Steps that an error of the logits may change: "
        f"{expected}{shown}"
    )
