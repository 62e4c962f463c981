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

All compiled code of the module is in this file: numba's disk cache does not see changes of others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..array_input import as_array
from ..certificates.certify import certify, check_top_k
from ..rule_text import is_several, rules_from
from ..rules import Rule, Tree
from ..statistics.bootstrap import PromptBootstrap
from ..statistics.estimate import Estimate
from ..topk import Distributions, Floats, Indices, TopK
from ..validation import checked_integer, described

DRAWS = 200  # random directions a step
DRAWS_OF_MEANS = 50  # the same for means over many steps, whose own spread is far larger
TOKENS = 256  # of a step that have a direction of their own
LAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], Floats]] = {  # of xi
    "normal": lambda generator, shape: generator.standard_normal(shape),
    "laplace": lambda generator, shape: generator.laplace(0.0, math.sqrt(0.5), shape),
    "uniform": lambda generator, shape: generator.uniform(-math.sqrt(3.0), math.sqrt(3.0), shape),
}
compiled = numba.njit(cache=True, nogil=True, error_model="numpy")


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
            they are stored. The mass of all others counts as one token of average growth that never
            leads. This is optimistic above 1 nat, or where the tail has much mass; with the whole
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
    drawn = partial(_directions, law, draws, seed)
    shares = np.empty((len(dist), len(rules)))
    for at, part in dist.parts():
        shares[at] = _shares(part, at, rules, eps[at], min(tokens, dist.k), drawn)
    return shares if is_several(rule) else shares[:, 0]


def usual_statistics(
    dist: Distributions,
    rules: Sequence[Rule],
    kl: ArrayLike,
    bootstrap: PromptBootstrap,
    *,
    draws: int = DRAWS_OF_MEANS,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Return the mean of `typical_acceptance` over all steps, a row a rule.

    `kl` are the KLs of a drafter's steps, (N,), or one number for a usual drafter at that KL.
    `bootstrap` is over the prompts of the steps.

    Returns:
        Rows rule, statistic ("usual_drafter"), value, ci_low and ci_high, as `rule_statistics`
        gives them.
    """
    shares = typical_acceptance(dist, list(rules), kl, draws=draws, seed=seed)
    rows = []
    for rule, share in zip(rules, shares.T, strict=True):
        estimate = Estimate(*map(float, bootstrap.ratio_interval(share)))
        rows.append({"rule": rule.label, "statistic": "usual_drafter", **estimate.columns()})
    return rows


def _step_kls(kl: ArrayLike, size: int) -> Floats:
    eps = as_array("kl", kl)
    if eps.dtype.kind not in "fiu":
        raise ValueError(f"kl is {described(kl)}: give nats, a number or one a step")
    if eps.shape not in ((), (size,)) or not np.all(eps >= 0):
        said = f"least {np.min(eps)}" if eps.shape in ((), (size,)) else f"shape {eps.shape}"
        raise ValueError(f"kl has the {said}: give nats of at least 0, a number or ({size},)")
    return np.ascontiguousarray(np.broadcast_to(eps, (size,)), dtype=np.float64)


def _directions(law: str, draws: int, seed: int, step: int, tokens: int) -> Floats:
    """Return the directions (draws, tokens) at a step."""
    return LAWS[law](np.random.default_rng([seed, step]), (draws, tokens))


def _shares(
    dist: TopK,
    at: Indices,
    rules: Sequence[Rule],
    eps: Floats,
    tokens: int,
    drawn: Callable[[int, int], Floats],
) -> Floats:
    """Return (n, R) shares of the steps `at`, from directions of so many tokens `drawn` at each."""
    given = replace(dist, log_prob_error=None)
    found = certify(given, rules)
    trees = np.array([isinstance(rule, Tree) for rule in rules])
    width = np.array([rule.m if isinstance(rule, Tree) else 0 for rule in rules])
    # ranks that are accepted or, of a tree, suffice; beyond the tokens nothing leads
    limits = np.where(
        trees, width, np.where(found.accepted_count < 1, tokens, found.accepted_count)
    )
    certain = (eps[:, None] < found.lower) | np.isinf(found.lower)  # or nothing is rejected
    shares = np.where(certain, 1.0, 0.0)
    logs = np.ascontiguousarray(given.log_probs[:, :tokens])
    log_tail = np.logaddexp(given.log_tail, _log_sum(given.log_probs[:, tokens:]))
    # at a KL of 0 the draft is the target: what is not certain is a tie, which counts as rejected
    for step in np.flatnonzero(~certain.all(axis=1) & np.isfinite(eps) & (eps > 0.0)):
        xi = drawn(int(at[step]), tokens)
        share = accepted_shares(logs[step], log_tail[step], xi, eps[step], limits[step], trees)
        shares[step] = np.where(certain[step], 1.0, share)
    return shares


def _log_sum(logs: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(logs).sum(axis=1)))


@compiled
def divergence_at(logs: Floats, log_tail: float, xi: Floats, s: float, mean: float) -> float:
    """Return KL(p || q_s); the others grow as one token, by E exp(s xi) = exp(s^2 / 2)."""
    if s == 0.0:
        return 0.0
    tail = log_tail + s * s / 2.0
    most = tail
    for v in range(len(logs)):
        most = max(most, logs[v] + s * xi[v])
    total = math.exp(tail - most)
    for v in range(len(logs)):
        total += math.exp(logs[v] + s * xi[v] - most)
    return most + math.log(total) - s * mean


@compiled
def led_within(
    logs: Floats, log_tail: float, xi: Floats, mean: float, eps: float, need: int
) -> int:
    """Return the largest rank, from 0, that leads at a KL of at most eps; stop from `need` on."""
    lead = 0
    last = 0
    s = 0.0
    while last < need:
        after = -1
        first = math.inf
        for v in range(len(logs)):
            if xi[v] > xi[lead]:
                cross = (logs[lead] - logs[v]) / (xi[v] - xi[lead])
                if cross < first or (cross == first and after >= 0 and xi[v] > xi[after]):
                    first = cross
                    after = v
        if after < 0:
            break
        s = max(s, first)
        if after > last:
            if divergence_at(logs, log_tail, xi, s, mean) > eps:
                break
            last = after
        lead = after
    return last


@compiled
def first_crossings(logs: Floats, xi: Floats, crossings: Floats) -> None:
    """Write the smallest s at which lines cross that of x0, ascending; +inf if there are fewer."""
    crossings[:] = math.inf
    last = len(crossings) - 1
    for v in range(1, len(logs)):
        if xi[v] > xi[0]:
            cross = (logs[0] - logs[v]) / (xi[v] - xi[0])
            place = last
            if cross < crossings[place]:
                while place > 0 and crossings[place - 1] > cross:
                    crossings[place] = crossings[place - 1]
                    place -= 1
                crossings[place] = cross


@compiled
def accepted_shares(
    logs: Floats,
    log_tail: float,
    directions: Floats,
    eps: float,
    limits: NDArray[np.int64],
    trees: NDArray[np.bool_],
) -> Floats:
    """Return (R,) the share of directions (draws, K) that each rule accepts at one step.

    `limits` are n of rules that accept n ranks, m of trees.
    """
    count = np.zeros(len(limits))
    ranks = 0
    width = 0
    for r in range(len(limits)):
        if trees[r]:
            width = max(width, min(limits[r], len(logs)))
        else:
            ranks = max(ranks, limits[r])
    crossings = np.empty(width)
    p = np.exp(logs)
    for draw in range(len(directions)):
        xi = directions[draw]
        mean = 0.0
        for v in range(len(logs)):
            mean += p[v] * xi[v]
        last = led_within(logs, log_tail, xi, mean, eps, ranks) if ranks else 0
        within = 0  # tokens that have passed x0
        if width:
            first_crossings(logs, xi, crossings)
            while within < width and crossings[within] < math.inf:
                if divergence_at(logs, log_tail, xi, crossings[within], mean) > eps:
                    break
                within += 1
        for r in range(len(limits)):
            passed = within if trees[r] else last
            if passed < limits[r]:
                count[r] += 1.0
    return count / len(directions)
