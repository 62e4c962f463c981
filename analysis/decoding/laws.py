"""Verification laws of speculative decoding: which drafted tokens are kept, what is emitted next.

A verification step has n drafted tokens in a row, and the target's distributions after the n + 1
prefixes that they form. A law says how many of the drafted tokens are accepted (the first a of
them) and which token follows: a correction when a < n, the bonus token when a = n. Randomness
comes in as numbers, so that every law is a plain function and can be enumerated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]
Rows = Callable[[int], tuple[Floats, Floats | None]]
ChainVerdict = tuple[int, int]  # accepted tokens, and the token emitted after them


def leading(accepted: Flags) -> int:
    """Return how many of the (n,) tests succeed before the first failure.

    Example:
        >>> leading(np.array([True, True, False, True]))
        2
    """
    return int(np.argmin(accepted)) if not np.all(accepted) else len(accepted)


def match(drafted: Sequence[int], choices: Sequence[int]) -> ChainVerdict:
    """Accept drafted tokens as long as they are what the target chooses by itself.

    Greedy speculative decoding (Algorithm 4 of arXiv 2606.30265) when the choices are argmaxes;
    exponential races (Algorithm 2 of arXiv 2504.15475) when they are the winners of `race`. What
    is emitted is always the target's choice, whatever was drafted: the law is lossless.

    Args:
        drafted: n tokens.
        choices: the target's n + 1 choices after each prefix of the draft.
    """
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == choices[accepted]:
        accepted += 1
    return accepted, choices[accepted]


def relaxed(accepts: Flags, argmax: Sequence[int]) -> ChainVerdict:
    """Accept while a rule does, then emit the target's argmax (Algorithm 1 of arXiv 2601.15498).

    Args:
        accepts: (n,) decisions of `Rule.accepts` on the drafted tokens.
        argmax: the target's n + 1 argmaxes.
    """
    accepted = leading(accepts)
    return accepted, argmax[accepted]


def race(logits: Floats, log_times: Floats) -> NDArray[np.intp]:
    """Return the winners (n,) of exponential races, in log space (Gumbel-max).

    Token i arrives at e_i / p_i; the first arrival is the argmax of log p_i - log e_i, for which
    logits serve as well as log-probabilities.

    Args:
        logits: (n, V), divided by the temperature.
        log_times: (n, V) logarithms of independent Exp(1) numbers.
    """
    winners: NDArray[np.intp] = np.argmax(logits - log_times, axis=-1)
    return winners


def sampling_accepts(p: Floats, q: Floats, uniforms: Floats) -> Flags:
    """Accept tokens drawn from q with probability min(1, p/q) (arXiv 2211.17192).

    Args:
        p: (n,) target probabilities of the drafted tokens.
        q: (n,) draft probabilities of them, above 0.
        uniforms: (n,) uniform numbers in [0, 1).
    """
    return np.asarray(uniforms * q < p)


def residual(p: Floats, q: Floats) -> Floats:
    """Return the weights max(0, p - q) (V,), not normalised, of the corrected token.

    Where p <= q everywhere no rejection is possible but by rounding; p itself is returned then.
    """
    weights = np.maximum(p - q, 0)
    return weights if weights.any() else p


def pick(weights: Floats, uniform: float) -> int:
    """Return the token drawn with probability proportional to `weights` (V,), by inversion."""
    cumulated = np.cumsum(weights, dtype=np.result_type(weights, np.float64))
    at = int(np.searchsorted(cumulated, uniform * cumulated[-1], side="right"))
    if at == len(weights):  # uniform * total rounded up to the total
        at = int(np.flatnonzero(weights)[-1])
    return at


def speculative_sampling(
    p: Floats,
    q: Floats,
    uniforms: Floats,
    rows: Rows,
    token_uniform: Callable[[int], float],
    also: Flags | None = None,
) -> ChainVerdict:
    """Speculative sampling (Algorithm 3 of arXiv 2606.30265): lossless unless `also` accepts more.

    Args:
        p: (n,) target probabilities of the drafted tokens.
        q: (n,) draft probabilities of them; 1 for a drafter that does not draw.
        uniforms: (n,) uniform numbers of the tests.
        rows: gives the target's and the draft's distribution (V,) after the first a drafted
            tokens; None instead of the draft's for a = n. Asked once.
        token_uniform: gives the uniform number with which the token after the first a drafted
            ones is drawn.
        also: (n,) tokens that are accepted whatever their test says: MARS above temperature 0.
    """
    tests = sampling_accepts(p, q, uniforms)
    accepted = leading(tests if also is None else tests | also)
    target, draft = rows(accepted)
    weights = target if draft is None else residual(target, draft)
    return accepted, pick(weights, token_uniform(accepted))


def block_verification(
    drafted: Sequence[int],
    target: Floats,
    draft: Floats,
    uniforms: Floats,
    token_uniform: Callable[[int], float],
) -> ChainVerdict:
    """Block verification (Algorithm 2 of arXiv 2403.10444): lossless, and never shorter on average.

    The longest prefix whose own test succeeds is accepted, so a token that fails can be saved by
    a later one. With w_i = min(1, w_{i-1} p/q) at drafted token i, w_0 = 1, and r_i the sum of
    max(0, w_i P - Q) over the tokens after it, test i succeeds with probability
    r_i / (r_i + 1 - w_i), the last with w_n. What follows a accepted tokens is drawn from
    max(0, w_a P - Q), after all of them from P.

    Args:
        drafted: n tokens, each drawn from the draft's distribution after those before it.
        target: (n + 1, V) the target's distributions after each prefix of the draft.
        draft: (n, V) the draft's.
        uniforms: (n,) uniform numbers of the tests.
        token_uniform: gives the uniform number with which the token after the first a drafted
            ones is drawn.
    """
    n = len(drafted)
    kept, excess = [1], []
    for i, token in enumerate(drafted):
        kept.append(min(kept[i] * target[i, token] / draft[i, token], 1))
        rest = np.maximum(kept[-1] * target[i + 1] - draft[i + 1], 0) if i + 1 < n else kept[-1]
        excess.append(np.sum(rest))
    accepted = block_accepts(kept[1:], excess, uniforms)
    weights = target[n]
    if accepted < n:
        weights = residual(kept[accepted] * target[accepted], draft[accepted])
    return accepted, pick(weights, token_uniform(accepted))


def block_accepts(kept: Iterable[Any], excess: Iterable[Any], uniforms: Floats) -> int:
    """Return how many tokens block verification accepts: those of the last success.

    Args:
        kept: (n,) w_1 to w_n of `block_verification`.
        excess: (n,) r_1 to r_(n-1), and w_n.
        uniforms: at least n uniform numbers.
    """
    accepted = 0
    for i, (w, r) in enumerate(zip(kept, excess, strict=True)):
        if uniforms[i] * (r + 1 - w) < r:
            accepted = i + 1
    return accepted


def history(
    indicators: Sequence[bool], draft_length: int, limit: int | None = None
) -> list[tuple[int, int, int]]:
    """Return the calls of greedy speculative decoding whose tests have the given outcomes.

    The walk over teacher-forced indicators: a call tests up to `draft_length` positions and
    ends at the first failure, which it corrects; when all succeed, the next position is filled
    by the bonus token and never tested. Drafts never reach beyond the last position but one, as
    each call emits a token of its own.

    Args:
        indicators: (N,) whether the drafted token is accepted at each position after the first
            token, which comes from the prompt alone.
        draft_length: at least 1.
        limit: positions that the answer might have had, where a token ended it before them;
            None where it has as many as it might.

    Returns:
        Of each call the position of its first drafted token, drafted and accepted tokens.
    """
    limit = len(indicators) if limit is None else limit
    calls, position = [], 0
    while position < len(indicators):
        drafted = min(draft_length, limit - position - 1)
        accepted = leading(np.asarray(indicators[position : position + drafted], dtype=np.bool_))
        calls.append((position, drafted, accepted))
        position += accepted + 1
    return calls
