"""Drift: the deviation of greedy answers from the argmax of the model that scores them.

If another model's logits z' differ from z by at most e, its greedy token x has a logit here at most
2 e below the largest: z_1 - z_x = (z_1 - z'_1) + (z'_1 - z'_x) + (z'_x - z_x) <= e + 0 + e. So
greedy decoding is unchanged wherever z_1 - z_2 > 2 e, and a gap g at a step implies e >= g / 2.
Log-probabilities served with the answers show the difference itself: if the logits differ by at
most e, the log-probabilities differ by at most 2 e.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

ANOTHER = 0.1  # share of steps off the argmax above which rounding is an unlikely cause
ERRORS = (0.01, 0.03, 0.1, 0.3, 1.0)  # of logits
TIE = 0.25  # logits: two steps of bfloat16 between 16 and 32


def gaps(token: np.ndarray, ids: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return z_1 - z_x of the emitted token x, -1 where it is the argmax; z_1 - z_2; and stored.

    Args:
        token: (N,) emitted.
        ids: (N, K) the most probable tokens, by decreasing logit.
        logits: (N, K) their logits.

    Returns:
        (N,) float32 twice, and bool: whether the token is among the K. Of another one the gap is
        that of the last of the K, a lower bound. With K = 1 the margin is infinite.

    Examples:
        >>> gap, margin, stored = gaps(
        ...     np.array([7, 9]), np.array([[7, 8], [7, 8]]), np.array([[3.0, 2.5], [1.0, 0.0]]))
        >>> gap.tolist(), margin.tolist(), stored.tolist()
        ([-1.0, 1.0], [0.5, 1.0], [True, False])
    """
    is_token = ids == token[:, None]
    stored = is_token.any(axis=1)
    rank = np.where(stored, is_token.argmax(axis=1), ids.shape[1] - 1)
    gap = logits[:, 0] - np.take_along_axis(logits, rank[:, None], axis=1)[:, 0]
    margin = logits[:, 0] - logits[:, 1] if ids.shape[1] > 1 else np.full(len(ids), np.inf)
    gap = np.where(token == ids[:, 0], -1.0, gap)  # the second of two equal logits has gap 0
    return gap.astype(np.float32), margin.astype(np.float32), stored


def drift(gap: np.ndarray, margin: np.ndarray, stored: np.ndarray) -> dict[str, Any]:
    """Summarise the result (N,) of `gaps`: steps off the argmax, and those an error may change.

    Returns:
        steps; off, the number of steps off the argmax, and share; median_gap and largest_gap of
        these steps; unstored, the number of these whose gap is a lower bound; by_error: for each
        of `ERRORS` the share of steps at which a logit error of that size may change greedy
        decoding.
    """
    off = gap[gap >= 0]
    return {
        "steps": len(gap),
        "off": len(off),
        "share": len(off) / len(gap),
        "median_gap": float(np.median(off)) if len(off) else 0.0,
        "largest_gap": float(off.max(initial=0.0)),
        "unstored": int((~stored).sum()),
        "by_error": {f"{error:g}": float(np.mean(margin <= 2 * error)) for error in ERRORS},
    }


def log_prob_differences(
    step: np.ndarray, token: np.ndarray, value: np.ndarray, ids: np.ndarray, log_probs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compare served log-probabilities with those of the model that scores the answers.

    Args:
        step: (M,) index of the step of each served value, among N.
        token: (M,) its token.
        value: (M,) the served log-probability, nats.
        ids: (N, K) the most probable tokens of the scoring model.
        log_probs: (N, K) their log-probabilities, nats.

    Returns:
        (M,) whether the token is among the K, and the |difference| of those that are, nats.

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
    """Summarise (M,) differences of log-probabilities, nats; empty if there are none.

    Returns:
        log_probs, their number; median_difference and largest_difference.
    """
    if not len(difference):
        return {}
    return {
        "log_probs": len(difference),
        "median_difference": float(np.median(difference)),
        "largest_difference": float(difference.max()),
    }


def compare_texts(
    token: np.ndarray, gap: np.ndarray, stored: np.ndarray, pairs: Sequence[tuple[slice, slice]]
) -> dict[str, Any]:
    """Compare two answers to each prompt: their first difference, and the logit gap there.

    Both tokens follow the same text, so one distribution of the model covers both. The gap is the
    larger of the two: that of the token farther from the argmax. All answers have one length limit,
    so one that ends where the other goes on differs from it.

    Args:
        token: (N,) emitted.
        gap: (N,) as from `gaps`, negative at the argmax.
        stored: (N,) likewise; elsewhere the gap is a lower bound, and the token no near-tie.
        pairs: the steps of both answers to each prompt.

    Returns:
        prompts; parted, the number of pairs that differ; shorter, those of them in which one answer
        is the beginning of the other; median_after, the median number of equal tokens before the
        first difference; median_gap, largest_gap and near_ties of the gaps there.
    """
    gaps_apart, after, shorter, near_ties = [], [], 0, 0
    for first, second in pairs:
        length = min(first.stop - first.start, second.stop - second.start)
        own, others = (slice(part.start, part.start + length) for part in (first, second))
        apart = np.flatnonzero(token[own] != token[others])
        if len(apart):
            step = int(apart[0])
            after.append(step)
            gaps_apart.append(max(gap[own][step], gap[others][step], 0))
            near_ties += stored[own][step] and stored[others][step] and gaps_apart[-1] <= TIE
        elif first.stop - first.start != second.stop - second.start:
            after.append(length)
            shorter += 1
    return {
        "prompts": len(pairs),
        "parted": len(after),
        "shorter": shorter,
        "median_after": float(np.median(after)) if after else 0.0,
        "median_gap": float(np.median(gaps_apart)) if gaps_apart else 0.0,
        "largest_gap": float(max(gaps_apart, default=0.0)),
        "near_ties": int(near_ties),
    }


def drift_in_words(facts: Mapping[str, Any]) -> str:
    """Return the result of `drift` or `compare_texts` as a sentence."""
    if facts.get("parted") == 0:
        return f"both have the same text for all {facts['prompts']} prompts"
    if "prompts" in facts:
        ends = f" ({facts['shorter']} end where the other goes on)" if facts["shorter"] else ""
        return (
            f"of {facts['prompts']} prompts in both {facts['parted']} differ{ends}, first after "
            f"{facts['median_after']:g} tokens (median), at a gap of {facts['median_gap']:.3g} "
            f"(median, largest {facts['largest_gap']:.3g}); {facts['near_ties']} are near-ties "
            f"(at most {TIE:g})"
        )
    expected = ", ".join(f"{share:.2%} ({error})" for error, share in facts["by_error"].items())
    by = (
        f", by a gap of {facts['median_gap']:.3g} (median, largest {facts['largest_gap']:.3g}): "
        "logits differ by at least half of that"
    )
    if facts["unstored"]:
        by += f" ({facts['unstored']} are not among the stored tokens: their gaps may be larger)"
    shown = ""
    if "log_probs" in facts:
        shown = (
            f". {facts['log_probs']} log-probabilities in the file differ from those here by "
            f"{facts['median_difference']:.2g} nats (median, largest "
            f"{facts['largest_difference']:.2g})"
        )
    return (
        f"{facts['off']} of {facts['steps']} greedy steps ({facts['share']:.2%}) are not the "
        f"argmax here{by if facts['off'] else ''}. Steps that an error of the logits may change: "
        f"{expected}{shown}"
    )
