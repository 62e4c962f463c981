"""Acceptance and certificates from two engines' logs: rounded values of the top tokens only.

Of both, an engine logged some log-probabilities at the same steps. A token that both list has
probabilities p and q between two ends; one that only the target lists has a q that is at most the
drafter's least, and the other way round; and the tails are whatever is left. So all that follows is
known between two ends, which contain the truth for every pair of distributions that fit.

Ends lie along the first axis of arrays: the least value, then the largest, both included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..certificates.certify import certify
from ..certificates.rounded import Box
from ..rules import Rule, Tree
from ..statistics.bootstrap import Flags, Floats, PromptBootstrap
from ..topk import TopK
from ..trees.acceptance import places_in_rows
from .summary import share_row

Judged = Mapping[str, tuple[Flags, Flags]]  # by statistic, the (N,) steps surely and possibly
LOW, HIGH = 0, 1


def compare_logged(target: TopK, draft: TopK) -> dict[str, NDArray[Any]]:
    """Compare two logs of the same N steps, with token ids of one vocabulary.

    Args:
        target: p, with a `log_prob_error`.
        draft: q, the same.

    Returns:
        By name, (N,) each: tv_low and tv_high, ends of the total variation (speculative sampling
        accepts with 1 - tv); kl_low and kl_high of KL(p || q), nats, the latter infinite wherever p
        may have mass on a token that the drafter did not list; draft_rank, the rank under p of the
        drafter's first token, from 1, and 0 if p did not list it; draft_prob_low and
        draft_prob_high of its probability under p; argmax_rank, the rank under q of p's first
        token, 0 if q did not list it.

    Raises:
        ValueError: the numbers of steps or the vocabularies differ.
    """
    if len(target) != len(draft) or target.vocab_size != draft.vocab_size:
        raise ValueError(
            f"{len(target)} and {len(draft)} steps over vocabularies of {target.vocab_size} and "
            f"{draft.vocab_size} tokens: both must agree"
        )
    p, q = np.stack(target.prob_range), np.stack(draft.prob_range)  # (2, N, K)
    p_tail, q_tail = np.stack(target.tail_range), np.stack(draft.tail_range)
    where = places_in_rows(target.ids, draft.ids)  # in q's list, of each of p's tokens; -1
    back = places_in_rows(draft.ids, target.ids)
    p_other = np.minimum(p[HIGH, :, -1], p_tail[HIGH])  # of a token that p does not list
    q_other = np.minimum(q[HIGH, :, -1], q_tail[HIGH])
    of_p, of_q = _taken(q, where, q_other), _taken(p, back, p_other)
    alone = back < 0
    rest = (  # the mass that neither lists
        _less(p_tail, alone.sum(axis=1) * p_other),
        _less(q_tail, (where < 0).sum(axis=1) * q_other),
    )
    groups = [(p, of_p), (np.where(alone, of_q, 0.0), np.where(alone, q, 0.0)), rest]
    more = sum(_above(a[LOW], b[HIGH]) for a, b in groups)
    less = sum(_above(b[LOW], a[HIGH]) for a, b in groups)
    most = np.minimum(
        _above(p[HIGH], of_p[LOW]) + p_tail[HIGH], _above(q[HIGH], of_q[LOW]) + q_tail[HIGH]
    )
    tv_high = np.minimum(most, 1.0)
    kl_low, kl_high = _kl(groups, p, of_p, where, p_tail)
    return {
        "tv_low": np.minimum(np.maximum(more, less), tv_high),
        "tv_high": tv_high,
        "kl_low": kl_low,
        "kl_high": kl_high,
        "draft_rank": (back[:, 0] + 1).astype(np.int32),
        "draft_prob_low": of_q[LOW, :, 0],
        "draft_prob_high": of_q[HIGH, :, 0],
        "argmax_rank": (where[:, 0] + 1).astype(np.int32),
    }


def judge_logged(
    target: TopK, pair: Mapping[str, NDArray[Any]], draft_k: int, rules: Sequence[Rule]
) -> dict[str, Judged]:
    """Apply rules to all steps; both ends allow for all that is not known.

    Args:
        target: p, N steps with a `log_prob_error`.
        pair: their comparison by `compare_logged`.
        draft_k: how many tokens q lists.
        rules: what is applied.

    Returns:
        By the label of each rule: acceptance, whether the drafter's first token is accepted;
        certified_tv, whether the total variation lies below its certificate; certified_kl, the same
        of KL, surely only where the whole of q is known.
    """
    found: dict[str, Any] = {
        rule.label: {"acceptance": _accepted(target, pair, draft_k, rule)} for rule in rules
    }
    for name in ("tv", "kl"):
        ends = certify(target, rules, divergence=name)
        low, high = pair[f"{name}_low"], pair[f"{name}_high"]
        for at, rule in enumerate(rules):
            least, most = ends.lower[:, at], ends.upper[:, at]
            sure = np.isinf(least) | (high < least), np.isinf(most) | (low < most)
            found[rule.label][f"certified_{name}"] = sure
    return found


def logged_violations(judged: Judged) -> NDArray[np.intp]:
    """Return the steps that are certainly certified and rejected: none, or a log is wrong."""
    sure = judged["certified_tv"][0] | judged["certified_kl"][0]
    return np.flatnonzero(sure & ~judged["acceptance"][1])


def logged_statistics(
    pair: Mapping[str, Floats], judged: Mapping[str, Judged], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Sum up all steps.

    Returns:
        One row a statistic: rule, statistic, value, optimistic, ci_low of value and ci_high of
        optimistic: the least and the most that the logs allow. Of a rule the shares of all steps
        that `judge_logged` names. Of the pair (rule empty): means of kl in nats and tv, and the
        acceptance of speculative sampling, at temperature 1.
    """
    of_pair = {name: (pair[f"{name}_low"], pair[f"{name}_high"]) for name in ("kl", "tv")}
    of_pair["acceptance"] = 1.0 - pair["tv_high"], 1.0 - pair["tv_low"]
    rows = [
        {"rule": rule, **share_row(name, bootstrap, *ends)}
        for rule, found in [*judged.items(), ("", of_pair)]
        for name, ends in found.items()
    ]
    return pd.DataFrame(rows)


def _accepted(
    target: TopK, pair: Mapping[str, NDArray[Any]], draft_k: int, rule: Rule
) -> tuple[Flags, Flags]:
    """Return where a rule surely, and possibly, accepts the drafter's first token."""
    rank, argmax_rank = pair["draft_rank"], pair["argmax_rank"]
    if isinstance(rule, Tree):
        listed = argmax_rank > 0
        sure = listed & (argmax_rank <= rule.m)
        return sure, sure | (~listed & (draft_k < rule.m))
    low, high, most_rank = Box(target).thresholds(rule)
    inside = (rank > 0) & (rank <= most_rank)
    maybe = inside | ((rank == 0) & (target.k < most_rank))
    return (
        (rank == 1) | (inside & (pair["draft_prob_low"] > high)),
        (rank == 1) | (maybe & (pair["draft_prob_high"] > low)),
    )


def _taken(ends: Floats, at: NDArray[np.intp], other: Floats) -> Floats:
    """Return the ends of tokens by their places; a token without one has at most `other`."""
    missing = np.stack([np.zeros_like(other), other])[:, :, None]
    return np.where(at < 0, missing, np.take_along_axis(ends, np.maximum(at, 0)[None], axis=2))


def _less(tail: Floats, others: Floats) -> Floats:
    """Return the ends, (2, N, 1), of what is left of a tail without at most `others`."""
    return np.stack([np.maximum(tail[LOW] - others, 0.0), tail[HIGH]])[:, :, None]


def _above(a: Floats, b: Floats) -> Floats:
    return np.asarray(np.maximum(a - b, 0.0).sum(axis=-1))


def _kl(
    groups: Sequence[tuple[Floats, Floats]],
    p: Floats,
    of_p: Floats,
    where: NDArray[np.intp],
    tail: Floats,
) -> tuple[Floats, Floats]:
    """Bound KL(p || q), the sum of p log(p / q), and of f(p, q) = p log(p / q) - p + q as well.

    f is never below 0 and rises as p and q part, so it is least at the ends that are next to each
    other; joined tokens have no larger sum (f is convex and homogeneous). p log(p / q) falls in q
    and is convex in p, so it is largest at q's lower end and an end of p. That sum has no term
    where p = 0, so it is known where every token with p > 0 is listed by both.
    """
    least = np.zeros(len(where))
    for a, b in groups:
        least += np.sum(_divergence(a[LOW], b[HIGH], a[LOW] > b[HIGH]), axis=-1)
        least += np.sum(_divergence(a[HIGH], b[LOW], b[LOW] > a[HIGH]), axis=-1)
    corners = _divergence(p, of_p[LOW], True, masses=False)
    known = ((where >= 0) | (p[HIGH] <= 0.0)).all(axis=1) & (tail[HIGH] <= 0.0)
    most = np.where(known, corners.max(axis=0).sum(axis=1), np.inf)
    return np.minimum(least, most), most


def _divergence(p: Floats, q: Floats, where: Flags | bool, masses: bool = True) -> Floats:
    """Return p log(p / q), with `masses` less p - q and so at least 0; 0 elsewhere."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0)
    return np.where(where, np.maximum(value - p + q, 0.0) if masses else value, 0.0)
