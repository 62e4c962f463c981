"""A target and a drafter of which only the top of each distribution is known, rounded.

Of both, an engine logged some log-probabilities at the same steps. A token that both list has
probabilities p and q between two ends; one that only the target lists has a q that is at most the
drafter's least, and the other way round; and the tails are whatever is left. So all that follows is
known between two ends, which contain the truth for every pair of distributions that fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..certificates.certify import certify
from ..certificates.rounded import Box
from ..rules import Rule, Tree
from ..statistics.bootstrap import Flags, Floats, PromptBootstrap
from ..topk import TopK
from .summary import share_row

Ranks = NDArray[np.int32]

STATISTICS = ("acceptance", "certified_tv", "certified_kl")  # of a rule
Judged = Mapping[str, tuple[Flags, Flags]]  # by statistic, the (N,) steps surely and possibly
ENTRIES = 2**22  # comparisons held at a time


class Range(NamedTuple):
    """The least and the largest value, both included."""

    low: Floats
    high: Floats


@dataclass(frozen=True, eq=False)
class LoggedPair:
    """A drafter q beside its target p at N steps.

    Attributes:
        target: p, K log-probabilities.
        tv: (N,) ends of the total variation; speculative sampling accepts with 1 - tv.
        kl: (N,) ends of KL(p || q), nats; the upper one is infinite wherever p may have mass on a
            token that the drafter did not list.
        draft_rank: (N,) rank under p of the drafter's first token, from 1; 0 if p did not list it.
        draft_prob: (N,) ends of its probability under p.
        argmax_rank: (N,) rank under q of p's first token; 0 if q did not list it.
        draft_k: how many tokens q lists.
    """

    target: TopK
    tv: Range
    kl: Range
    draft_rank: Ranks
    draft_prob: Range
    argmax_rank: Ranks
    draft_k: int

    def __len__(self) -> int:
        return len(self.target)


def compare_logged(target: TopK, draft: TopK) -> LoggedPair:
    """Compare two logs of the same steps, with token ids of one vocabulary.

    Args:
        target: p, N steps with a `log_prob_error`.
        draft: q, the same.

    Raises:
        ValueError: the numbers of steps or the vocabularies differ.
    """
    if len(target) != len(draft) or target.vocab_size != draft.vocab_size:
        raise ValueError(
            f"{len(target)} and {len(draft)} steps over vocabularies of {target.vocab_size} and "
            f"{draft.vocab_size} tokens: both must agree"
        )
    p, q = Range(*target.prob_range), Range(*draft.prob_range)
    p_tail, q_tail = Range(*target.tail_range), Range(*draft.tail_range)
    where = _places(target.ids, draft.ids)  # in q's list, of each of p's tokens; -1
    back = _places(draft.ids, target.ids)
    p_other = np.minimum(p.high[:, -1], p_tail.high)  # of a token that p does not list
    q_other = np.minimum(q.high[:, -1], q_tail.high)
    of_p, of_q = _taken(q, where, q_other), _taken(p, back, p_other)
    alone = back < 0
    rest = (
        _rest(p_tail, alone.sum(axis=1) * p_other),
        _rest(q_tail, (where < 0).sum(axis=1) * q_other),
    )
    groups = [(p, of_p), (_only(of_q, alone), _only(q, alone)), rest]
    more = sum(np.sum(_above(a.low, b.high), axis=-1) for a, b in groups)
    less = sum(np.sum(_above(b.low, a.high), axis=-1) for a, b in groups)
    most = np.minimum(
        np.sum(_above(p.high, of_p.low), axis=1) + p_tail.high,
        np.sum(_above(q.high, of_q.low), axis=1) + q_tail.high,
    )
    tv = Range(np.maximum(more, less), np.minimum(most, 1.0))
    first = back[:, 0]
    return LoggedPair(
        target,
        Range(np.minimum(tv.low, tv.high), tv.high),
        _kl(groups, p, of_p, where, p_tail),
        (first + 1).astype(np.int32),
        Range(of_q.low[:, 0], of_q.high[:, 0]),
        (where[:, 0] + 1).astype(np.int32),
        draft.k,
    )


def judge_logged(pair: LoggedPair, rules: Sequence[Rule]) -> dict[str, Judged]:
    """Apply rules to all steps; both ends allow for all that is not known.

    Returns:
        By the label of each rule: acceptance, whether the drafter's first token is accepted;
        certified_tv, whether the total variation lies below its certificate; certified_kl, the same
        of KL, surely only where the whole of q is known.
    """
    by_tv = certify(pair.target, rules, divergence="tv")
    by_kl = certify(pair.target, rules)
    found: dict[str, Judged] = {}
    for at, rule in enumerate(rules):
        certified = [
            (
                np.isinf(ends.lower[:, at]) | (distance.high < ends.lower[:, at]),
                np.isinf(ends.upper[:, at]) | (distance.low < ends.upper[:, at]),
            )
            for ends, distance in ((by_tv, pair.tv), (by_kl, pair.kl))
        ]
        found[rule.label] = dict(zip(STATISTICS, (_accepted(pair, rule), *certified), strict=True))
    return found


def logged_violations(judged: Judged) -> NDArray[np.intp]:
    """Return the steps that are surely certified and surely rejected: none, or a log is wrong."""
    sure = judged["certified_tv"][0] | judged["certified_kl"][0]
    return np.flatnonzero(sure & ~judged["acceptance"][1])


def logged_statistics(
    pair: LoggedPair, judged: Mapping[str, Judged], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Sum up all steps.

    Returns:
        One row a statistic: rule, statistic, value, optimistic, ci_low of value and ci_high of
        optimistic: the least and the most that the logs allow. Of a rule the shares of all steps
        that `judge_logged` names. Of the pair (rule empty): means of kl in nats and tv, and the
        acceptance of speculative sampling, at temperature 1.
    """
    of_pair = {"kl": pair.kl, "tv": pair.tv, "acceptance": (1.0 - pair.tv.high, 1.0 - pair.tv.low)}
    rows = [
        {"rule": rule, **share_row(name, bootstrap, *ends)}
        for rule, found in [*judged.items(), ("", of_pair)]
        for name, ends in found.items()
    ]
    return pd.DataFrame(rows)


def _accepted(pair: LoggedPair, rule: Rule) -> tuple[Flags, Flags]:
    """Return where a rule surely, and possibly, accepts the drafter's first token."""
    rank = pair.draft_rank
    if isinstance(rule, Tree):
        listed = pair.argmax_rank > 0
        sure = listed & (pair.argmax_rank <= rule.m)
        return sure, sure | (~listed & (pair.draft_k < rule.m))
    low, high, most_rank = Box(pair.target).thresholds(rule)
    inside = (rank > 0) & (rank <= most_rank)
    maybe = inside | ((rank == 0) & (pair.target.k < most_rank))
    return (
        (rank == 1) | (inside & (pair.draft_prob.low > high)),
        (rank == 1) | (maybe & (pair.draft_prob.high > low)),
    )


def _places(ids: NDArray[np.int32], among: NDArray[np.int32]) -> NDArray[np.intp]:
    """Return where in its row of `among` each of `ids` stands, (N, K), or -1."""
    places = np.empty(ids.shape, dtype=np.intp)
    rows = max(1, ENTRIES // (ids.shape[1] * among.shape[1]))
    for at in range(0, len(ids), rows):
        same = ids[at : at + rows, :, None] == among[at : at + rows, None, :]
        places[at : at + rows] = np.where(same.any(axis=2), same.argmax(axis=2), -1)
    return places


def _taken(ends: Range, places: NDArray[np.intp], other: Floats) -> Range:
    """Return the ends of tokens by their places; a token without one has at most `other`."""
    at = np.maximum(places, 0)
    low, high = (np.take_along_axis(side, at, axis=1) for side in ends)
    return Range(np.where(places < 0, 0.0, low), np.where(places < 0, other[:, None], high))


def _only(ends: Range, flags: Flags) -> Range:
    return Range(np.where(flags, ends.low, 0.0), np.where(flags, ends.high, 0.0))


def _rest(tail: Range, others: Floats) -> Range:
    """Return the ends of the mass that neither lists, (N, 1)."""
    return Range(np.maximum(tail.low - others, 0.0)[:, None], tail.high[:, None])


def _above(a: Floats, b: Floats) -> Floats:
    return np.maximum(a - b, 0.0)


def _kl(
    groups: list[tuple[Range, Range]], p: Range, of_p: Range, where: NDArray[np.intp], tail: Range
) -> Range:
    """Bound KL(p || q), the sum of p log(p / q), and of f(p, q) = p log(p / q) - p + q as well.

    f is never below 0 and rises as p and q part, so it is least at the ends that are next to each
    other; joined tokens have no larger sum (f is convex and homogeneous). p log(p / q) falls in q
    and is convex in p, so it is largest at q's lower end and an end of p. That sum has no term
    where p = 0, so it is known where every token with p > 0 is listed by both.
    """
    least = np.zeros(len(where))
    for a, b in groups:
        least += np.sum(_divergence(a.low, b.high, a.low > b.high), axis=-1)
        least += np.sum(_divergence(a.high, b.low, b.low > a.high), axis=-1)
    corners = [_divergence(x, of_p.low, True, masses=False) for x in p]
    known = ((where >= 0) | (p.high <= 0.0)).all(axis=1) & (tail.high <= 0.0)
    most = np.where(known, np.max(corners, axis=0).sum(axis=1), np.inf)
    return Range(np.minimum(least, most), most)


def _divergence(p: Floats, q: Floats, where: Flags | bool, masses: bool = True) -> Floats:
    """Return p log(p / q), with `masses` less p - q and so at least 0; 0 elsewhere."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0)
    return np.where(where, np.maximum(value - p + q, 0.0) if masses else value, 0.0)
