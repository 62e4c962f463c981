"""The usual drafter: how often drafts are accepted if the drafter errs in a random direction.

A certificate is about the worst drafter at a KL. Here q_s is proportional to p exp(s xi), with one
independent xi of mean 0 and variance 1 for each token, and s such that KL(p || q_s) = eps. The
share of such drafters that a rule accepts is A(eps) (docs/method.md, "The usual drafter"). It is a
model: nothing is fitted, and a real drafter may be accepted less often.

KL(p || q_s) = log sum p exp(s xi) - s sum p xi grows in s, so a drafter is accepted iff eps is
below r(xi), the KL at which it is first rejected. r is at least the certificate: A = 1 below it.

- A rule that accepts n ranks rejects once the largest of the lines log p + s xi belongs to a token
  behind rank n. The largest lines are followed from breakpoint to breakpoint, without a grid. The
  accepted tokens may lead again at a larger s, so A is then a lower bound; under strict greedy two
  lines cross once, and A is exact.
- A tree of width m rejects once m lines have crossed that of x0, which is exact as well.

Where a drafter is first rejected does not depend on eps, so one set of directions answers for any
number of rules and KLs.

All compiled code of the module is in this file: numba's disk cache does not see changes of others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..array_input import as_array
from ..certificates.certify import certify, check_top_k
from ..rule_text import is_several, rules_from
from ..rules import Rule, Tree
from ..statistics.bootstrap import PromptBootstrap
from ..statistics.estimate import Estimate
from ..topk import Distributions, Floats, TopK
from ..validation import checked_integer, described

DRAWS = 200  # random directions a step
DRAWS_OF_MEANS = 50  # the same for means over many steps, whose own spread is far larger
MOST_DRAWS = 2**24  # of all steps together, for means over very many
LEAST_DRAWS = 4  # a step, however many steps there are
TOKENS = 256  # of a step that have a direction of their own


def laplace(generator: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Return what `generator.laplace` does at variance 1, in half the time."""
    u = generator.random(shape)
    is_above = u >= 0.5
    tail = np.maximum(np.where(is_above, 2.0 - u - u, u + u), 2.0**-53)
    return np.where(is_above, -math.sqrt(0.5), math.sqrt(0.5)) * np.log(tail)


LAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], Floats]] = {  # of xi
    "normal": lambda generator, shape: generator.standard_normal(shape),
    "laplace": laplace,
    "uniform": lambda generator, shape: generator.uniform(-math.sqrt(3.0), math.sqrt(3.0), shape),
}
Counts = NDArray[np.unsignedinteger[Any]]
PER_LOG_2 = 1 / math.log(2)
LOG_2 = float.fromhex("0x1.62E42FEFA38p-1")  # few digits, so that its multiples are exact
LOG_2_REST = float.fromhex("0x1.EF35793C7673p-45")
INTEGER = 1.5 * 2.0**52  # its sum with a small number is an integer, in the last bits
compiled = numba.njit(cache=True, nogil=True, error_model="numpy")
vectorised = numba.njit(  # adds in any order; NaN does not occur
    cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "nnan", "nsz"}
)


def typical_acceptance(
    dist: Distributions,
    rule: str | Rule | Sequence[str | Rule],
    kl: ArrayLike,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    law: str = "normal",
    tokens: int = TOKENS,
) -> Floats:
    """Return the share of random drafters at a KL whose draft is accepted, at each step.

    The directions of a step depend on the seed and its number alone, so the share falls in `kl`,
    and rises from a rule to a more relaxed one. It has the standard error sqrt(A (1 - A) / draws).
    Rounded log-probabilities are used as they are given.

    Args:
        dist: N steps of the target.
        rule: a rule, given as to `certify`, or a list of R.
        kl: KL(p || q) of the drafter in nats, (N,) or one number. Give the KL of each step: their
            mean in its place gives too small a share. At +inf the share is 0, unless nothing is
            rejected; at 0 a tie with x0 counts as rejected.
        draws: random directions a step.
        seed: of the directions.
        law: of the directions: "normal"; heavier "laplace" and lighter "uniform" tails tell how
            much the answer depends on it.
        tokens: of each step, the most probable ones, that have a direction of their own, as far as
            they are stored. The mass of all others counts as one token that never leads and grows
            by exp(s^2 / 2), the mean of exp(s xi) of the normal law, whatever `law` is. This is
            optimistic above 1 nat, or where the tail has much mass; with the whole
            vocabulary nothing is left out.

    Returns:
        (N,), or (N, R) for a list. 1 where the KL is below the certificate.

    Raises:
        ValueError: an argument is not what is allowed, or as of `certify`.

    >>> dist = TopK.from_probabilities([0.6, 0.3, 0.1])
    >>> typical_acceptance(dist, "greedy", 0.02), typical_acceptance(dist, "greedy", np.inf)
    (array([1.]), array([0.]))
    """
    if not hasattr(dist, "parts"):
        check_top_k(dist)
    rules = rules_from(rule)
    eps = _step_kls(kl, len(dist))
    draws = checked_integer("draws", draws)
    tokens = checked_integer("tokens", tokens)
    seed = checked_integer("seed", seed, 0)
    if law not in LAWS:
        raise ValueError(f"law={law!r:.40} is not allowed: give one of {', '.join(LAWS)}")
    columns = [(rule, eps) for rule in rules]
    counts = usual_counts(dist, columns, [law], draws=draws, seed=seed, tokens=tokens)[law]
    shares = np.ascontiguousarray(counts.T / draws)
    return shares if is_several(rule) else shares[:, 0]


def usual_counts(
    dist: Distributions,
    columns: Sequence[tuple[Rule, float | Floats]],
    laws: Sequence[str],
    *,
    draws: int,
    seed: int = 0,
    tokens: int = TOKENS,
) -> dict[str, Counts]:
    """Return how many of `draws` random drafters are accepted at each step, (C, N), by law.

    Each of C columns is a rule and a KL, a number or (N,) one a step. All columns share their
    directions, and so cost little more than one. Arguments are those of `typical_acceptance`, which
    checks them.
    """
    rules = [rule for rule, _ in columns]
    shape = len(columns), len(dist)
    counts: dict[str, Counts] = {law: np.empty(shape, np.min_scalar_type(draws)) for law in laws}
    for at, part in dist.parts():
        kls = [np.broadcast_to(kl, len(dist))[at] for _, kl in columns]
        asked = _Asked.of(part, rules, np.stack(kls, axis=1), min(tokens, dist.k))
        for of_law in counts.values():
            of_law[:, at] = np.where(asked.certain, draws, 0).T
        for step in np.flatnonzero(asked.uncertain.any(axis=1)):
            uncertain = asked.uncertain[step]
            bits = np.random.PCG64([seed, int(at[step])])
            first = bits.state
            for law, of_law in counts.items():
                bits.state = first
                xi = LAWS[law](np.random.Generator(bits), (draws, asked.logs.shape[1]))
                of_law[uncertain, at[step]] = draws - asked.rejected(int(step), xi)
    return counts


def usual_statistics(
    dist: Distributions,
    rules: Sequence[Rule],
    kl: ArrayLike,
    bootstrap: PromptBootstrap,
    *,
    draws: int | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Return the mean of `typical_acceptance` over all steps, a row a rule.

    `kl` are the KLs of a drafter's steps, (N,), or one number for a usual drafter at that KL.
    `bootstrap` is over the prompts of the steps. Without `draws` there are `draws_of_means`.

    Returns:
        Rows rule, statistic ("usual_drafter"), value, ci_low and ci_high, as `rule_statistics`
        gives them.
    """
    draws = draws_of_means(len(dist)) if draws is None else draws
    shares = typical_acceptance(dist, list(rules), kl, draws=draws, seed=seed)
    rows = []
    for rule, share in zip(rules, shares.T, strict=True):
        estimate = Estimate(*map(float, bootstrap.ratio_interval(share)))
        rows.append({"rule": rule.label, "statistic": "usual_drafter", **estimate.columns()})
    return rows


def draws_of_means(steps: int) -> int:
    """Return the random directions a step for means over so many steps.

    >>> [draws_of_means(steps) for steps in (100, 300_000, 1_000_000, 5_000_000)]
    [50, 50, 16, 4]
    """
    return max(LEAST_DRAWS, min(DRAWS_OF_MEANS, MOST_DRAWS // max(steps, 1)))


def _step_kls(kl: ArrayLike, size: int) -> Floats:
    eps = as_array("kl", kl)
    if eps.dtype.kind not in "fiu":
        raise ValueError(f"kl is {described(kl)}: give nats, a number or one a step")
    if eps.shape not in ((), (size,)) or not np.all(eps >= 0):
        said = f"least {np.min(eps)}" if eps.shape in ((), (size,)) else f"shape {eps.shape}"
        raise ValueError(f"kl has the {said}: give nats of at least 0, a number or ({size},)")
    return np.ascontiguousarray(np.broadcast_to(eps, (size,)), dtype=np.float64)


class Directions(NamedTuple):
    """Directions at a step."""

    xi: Floats  # (draws, T)
    means: Floats  # (draws,) sum p xi
    highest: Floats  # (draws,) the largest xi


class _Asked(NamedTuple):
    """What is asked of n steps, in C columns."""

    logs: Floats  # (n, T) log-probabilities of the tokens with a direction
    log_tail: Floats  # (n,) of all others
    eps: Floats  # (n, C) KLs
    ranks: NDArray[np.int64]  # (n, C) that are accepted; 0 for trees
    widths: NDArray[np.int64]  # (C,) of trees; 0 for other rules, and where all tokens fit in
    certain: NDArray[np.bool_]  # (n, C) accepted in every direction
    uncertain: NDArray[np.bool_]  # (n, C) to be counted; what is neither is rejected

    @classmethod
    def of(cls, dist: TopK, rules: Sequence[Rule], eps: Floats, tokens: int) -> _Asked:
        given = replace(dist, log_prob_error=None)
        distinct = list(dict.fromkeys(rules))
        column = [distinct.index(rule) for rule in rules]
        found = certify(given, distinct)
        lower = found.lower[:, column]
        accepted = found.accepted_count[:, column]
        trees = np.array([isinstance(rule, Tree) for rule in rules])
        widths = [rule.m if isinstance(rule, Tree) and rule.m < tokens else 0 for rule in rules]
        certain = (eps < lower) | np.isinf(lower)  # or nothing is rejected
        return cls(
            logs=np.ascontiguousarray(given.log_probs[:, :tokens]),
            log_tail=np.logaddexp(given.log_tail, _log_sum(given.log_probs[:, tokens:])),
            eps=eps,
            # beyond the tokens nothing leads
            ranks=np.where(trees, 0, np.where(accepted < 1, tokens, accepted)),
            widths=np.array(widths),
            certain=certain,
            # at a KL of 0 the draft is the target: what is not certain is a tie, so rejected
            uncertain=~certain & np.isfinite(eps) & (eps > 0.0),
        )

    def rejected(self, step: int, xi: Floats) -> NDArray[np.int64]:
        """Return how many directions xi (draws, T) are rejected at a step, by uncertain column."""
        open_ = self.uncertain[step]
        return rejections(
            self.logs[step],
            self.log_tail[step],
            Directions(xi, xi @ np.exp(self.logs[step]), xi.max(axis=1)),
            self.eps[step, open_],
            self.ranks[step, open_],
            self.widths[open_],
        )


def _log_sum(logs: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(logs).sum(axis=1)))


@compiled
def exponential(x: float) -> float:
    """Return exp(x), within 4e-16 of it, for x in [-700, 0]; unlike math.exp it is vectorised.

    x = n log 2 + r, and exp(r) is its Taylor polynomial of degree 13.
    """
    shifted = x * PER_LOG_2 + INTEGER
    n = shifted - INTEGER
    r = (x - n * LOG_2) - n * LOG_2_REST
    y = 1.0 / 479001600.0 + r * (1.0 / 6227020800.0)
    y = 1.0 / 39916800.0 + r * y
    y = 1.0 / 3628800.0 + r * y
    y = 1.0 / 362880.0 + r * y
    y = 1.0 / 40320.0 + r * y
    y = 1.0 / 5040.0 + r * y
    y = 1.0 / 720.0 + r * y
    y = 1.0 / 120.0 + r * y
    y = 1.0 / 24.0 + r * y
    y = 1.0 / 6.0 + r * y
    y = 1.0 / 2.0 + r * y
    y = 1.0 + r * y
    y = 1.0 + r * y
    bits = np.float64(y).view(np.int64) + (np.float64(shifted).view(np.int64) << 52)
    return float(np.int64(bits).view(np.float64))


@vectorised
def largest(values: Floats) -> float:
    """Return the largest of the values."""
    most = values[0]
    for value in values:
        most = max(most, value)
    return float(most)


@vectorised
def total(values: Floats) -> float:
    """Return the sum of the values."""
    added = 0.0
    for value in values:
        added += value
    return added


@compiled
def divergence_at(
    logs: Floats, log_tail: float, xi: Floats, s: float, mean: float, terms: Floats
) -> float:
    """Return KL(p || q_s); the other tokens count as one, which grows by exp(s^2 / 2).

    That is E exp(s xi) of the normal law; it stands for the other laws, too. `terms` (K,) is room
    for the tokens' shares of the sum.
    """
    if s == 0.0:
        return 0.0
    tail = log_tail + s * s / 2.0
    for v in range(len(logs)):
        terms[v] = logs[v] + s * xi[v]
    most = max(tail, largest(terms))
    for v in range(len(logs)):
        below = terms[v] - most
        terms[v] = exponential(below if below > -700.0 else -700.0)
    return float(most + math.log(total(terms) + math.exp(tail - most)) - s * mean)


@compiled
def next_lead(logs: Floats, xi: Floats, lead: int, most: float) -> tuple[int, float]:
    """Return the line that next crosses that of `lead`, and s there; -1 if none does.

    `most` is the largest of xi. Tokens are sorted by falling log p: if even the slope `most`,
    starting at this token, would cross after `first`, no later token crosses earlier.
    """
    after = -1
    first = math.inf
    for v in range(len(logs)):
        if logs[lead] - logs[v] > first * (most - xi[lead]):
            break
        if xi[v] > xi[lead]:
            cross = (logs[lead] - logs[v]) / (xi[v] - xi[lead])
            if cross < first or (cross == first and after >= 0 and xi[v] > xi[after]):
                first = cross
                after = v
    return after, first


@compiled
def first_crossings(logs: Floats, xi: Floats, crossings: Floats, most: float) -> None:
    """Write the smallest s at which lines cross that of x0, ascending; +inf if there are fewer."""
    crossings[:] = math.inf
    last = len(crossings) - 1
    for v in range(1, len(logs)):
        if logs[0] - logs[v] > crossings[last] * (most - xi[0]):
            break
        if xi[v] > xi[0]:
            cross = (logs[0] - logs[v]) / (xi[v] - xi[0])
            place = last
            if cross < crossings[place]:
                while place > 0 and crossings[place - 1] > cross:
                    crossings[place] = crossings[place - 1]
                    place -= 1
                crossings[place] = cross


@compiled
def lead_points(
    logs: Floats, xi: Floats, most: float, ranks: NDArray[np.int64], points: Floats
) -> None:
    """Write the s at which a token behind the accepted `ranks` (C,) first leads; not where 0."""
    lead = 0
    last = 0  # the largest rank, from 0, that has led
    s = 0.0
    while last < ranks.max():
        after, first = next_lead(logs, xi, lead, most)
        if after < 0:
            break
        s = max(s, first)
        for c in range(len(ranks)):
            if last < ranks[c] <= after:
                points[c] = s
        last = max(last, after)
        lead = after


@compiled
def tree_points(
    logs: Floats, xi: Floats, most: float, widths: NDArray[np.int64], points: Floats
) -> None:
    """Write the s at which `widths` (C,) many lines have crossed that of x0; not where 0."""
    if widths.max() == 0:
        return
    crossings = np.empty(widths.max())
    first_crossings(logs, xi, crossings, most)
    for c in range(len(widths)):
        if widths[c]:
            points[c] = crossings[widths[c] - 1]


@compiled
def rejections(
    logs: Floats,
    log_tail: float,
    directions: Directions,
    eps: Floats,
    ranks: NDArray[np.int64],
    widths: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return (C,) how many directions are rejected at one step, by rule and KL.

    `ranks` and `widths` (C,) are as in `_Asked`; `eps` (C,) are finite.
    """
    rejected = np.zeros(len(eps), dtype=np.int64)
    points = np.empty(len(eps))
    terms = np.empty(len(logs))
    for draw in range(len(directions.xi)):
        xi = directions.xi[draw]
        most = directions.highest[draw]
        points[:] = math.inf
        lead_points(logs, xi, most, ranks, points)
        tree_points(logs, xi, most, widths, points)
        known = -1.0
        kl = 0.0
        for c in range(len(eps)):
            if points[c] == math.inf:
                continue
            if points[c] != known:
                known = points[c]
                kl = divergence_at(logs, log_tail, xi, known, directions.means[draw], terms)
            if kl <= eps[c]:
                rejected[c] += 1
    return rejected
