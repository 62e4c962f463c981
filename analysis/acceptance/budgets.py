"""Acceptance certified by a drafter's mean KL, by a bound at every step, and measured.

Three numbers at the drafter's mean KL eps, for acceptance and for tokens a call:

- uniform: the KL is at most eps at every step;
- budget: its mean over the steps is at most eps (`analysis.beyond.budget`);
- measured: by this drafter, whose mean KL is eps.

A budget is the weaker assumption and certifies less than the uniform bound; the measured number is
never below it. Interval certificates count by their lower ends.

For a head, acceptance refers to depth 1 and its mean KL there. Tokens a call are measured by depth,
and certified at the mean over steps of the largest KL of all depths, which bounds the KL of each.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from ..beyond.budget import certified_tokens
from ..statistics.bootstrap import Flags, Floats, Integers, Numbers, PromptBootstrap
from ..statistics.trajectories import count_calls
from .judgement import Judgement, Steps

KINDS = ("uniform", "budget", "measured")


def budget_of_drafter(
    steps: Steps, judgement: Judgement, bootstrap: PromptBootstrap, draft_length: int
) -> pd.DataFrame:
    """Return acceptance and tokens a call of one rule at the drafter's mean KL, with intervals.

    The intervals are over prompts, at this fixed level of KL.

    Returns:
        Rows with rule, kind (uniform, budget, measured), eps, statistic (acceptance, tokens, and
        tokens_<gamma>, with drafts of at most `draft_length`), value, ci_low and ci_high (NaN for
        the budget at a draft length).
    """
    eps, prompts, own = float(steps.kl.mean()), bootstrap.prompts, bootstrap.steps
    eps_of_tokens, starts = float(steps.largest_kl.mean()), steps.trajectories.starts
    weights = np.concatenate([np.ones((1, bootstrap.count)), bootstrap.weights])
    sizes: Floats = np.asarray(weights @ own, dtype=np.float64)
    tokens: Floats = np.asarray(weights @ (own - 1), dtype=np.float64)
    inner = judgement.lower.copy()
    inner[starts] = np.inf  # the prompt's pass emits the first token
    inner[steps.trajectories.ends - 1] = np.inf  # a rejection there starts no further call
    flags = {"uniform": ~_reached(judgement.lower, eps), "measured": judgement.accepted}
    by_depth = {
        "uniform": ~_reached(judgement.lower, eps_of_tokens)[None],
        "measured": judgement.accepted_by_depth,
    }

    def counted(numbers: Numbers) -> Floats:
        """Return the sums of (P,) numbers for each weighting of the prompts, (1 + B,)."""
        return np.asarray(weights @ numbers)

    def spent(certificates: Floats, mean: float) -> Floats:
        return resampled_rejections(certificates, prompts, weights, np.asarray(sizes * mean))

    draws_of: dict[tuple[str, str], Floats] = {}
    for kind, accepted in flags.items():
        draws_of["acceptance", kind] = counted(np.bincount(prompts, weights=accepted)) / sizes
        for name, gamma in (("tokens", None), (f"tokens_{draft_length}", draft_length)):
            counts = count_calls(by_depth[kind][..., None], steps.trajectories, gamma)
            draws_of[name, kind] = _ratio(tokens, counted(counts.calls[:, 0]))
    draws_of["acceptance", "budget"] = 1.0 - spent(judgement.lower, eps) / sizes
    calls = weights @ (own > 1) + spent(inner, eps_of_tokens)
    draws_of["tokens", "budget"] = _ratio(tokens, calls)
    promised = _drafted_tokens(steps, judgement.lower, eps_of_tokens, draft_length)
    draws_of[f"tokens_{draft_length}", "budget"] = np.append(
        promised, np.full(len(sizes) - 1, np.nan)
    )
    rows = [
        (kind, name, float(draws[0]), *map(float, bootstrap.interval(draws[1:])), mean)
        for name, mean in (
            ("acceptance", eps),
            ("tokens", eps_of_tokens),
            (f"tokens_{draft_length}", eps_of_tokens),
        )
        for kind in KINDS
        for draws in [draws_of[name, kind]]
    ]
    columns = ["kind", "statistic", "value", "ci_low", "ci_high", "eps"]
    return pd.DataFrame(rows, columns=columns).assign(rule=judgement.rule.label)


def _ratio(tokens: Floats, calls: Floats) -> Floats:
    """Return tokens a call; NaN without calls, if no answer has a second token."""
    return np.divide(tokens, calls, out=np.full_like(tokens, np.nan), where=calls > 0)


def _drafted_tokens(steps: Steps, certificates: Floats, eps: float, draft_length: int) -> float:
    """Return `certified_tokens` over the drafted steps, all but each trajectory's first.

    The whole budget of KL can be spent on them.
    """
    tested = np.delete(certificates, steps.trajectories.starts)
    if len(tested) == 0:
        return math.nan
    lengths = steps.trajectories.ends - steps.trajectories.starts - 1
    ends = np.cumsum(lengths[lengths > 0]) - 1
    return certified_tokens(tested, ends, eps * len(certificates) / len(tested), draft_length)


def resampled_rejections(
    certificates: Floats, prompts: Integers, weights: Floats, budgets: Floats
) -> Floats:
    """Return the most steps that a budget can reject, for each of B weightings of the prompts.

    The cheapest steps are rejected first; of a step drawn several times, as many copies as the
    budget allows. They are located in two levels, like the quantiles of `PromptBootstrap`.

    Args:
        certificates: (N,) nats, +inf where nothing is rejected.
        prompts: (N,) index of the prompt of each step, 0 .. P-1.
        weights: (B, P), integers, the multiplicity of each prompt.
        budgets: (B,) total nats, at least 0; may be infinite.

    Returns:
        (B,).

    Examples:
        >>> resampled_rejections(
        ...     np.array([0.25, 0.5, 1.0]), np.array([0, 1, 1]), np.array([[3, 1]]), np.array([1.3])
        ... ).tolist()
        [4.0]
    """
    finite = np.flatnonzero(np.isfinite(certificates))
    order = finite[np.argsort(certificates[finite], kind="stable")]
    size, count = len(order), weights.shape[1]
    if size == 0:
        return np.zeros(len(weights))
    block = math.isqrt(size) + 1
    blocks = -(-size // block)
    cost = np.full(blocks * block, np.inf)  # the padding belongs to a prompt that is never drawn
    owner = np.full(blocks * block, count)
    cost[:size], owner[:size] = certificates[order], prompts[order]
    drawn = np.column_stack([weights, np.zeros(len(weights))])
    cell = owner[:size] * blocks + np.arange(size) // block
    paid = np.bincount(cell, weights=cost[:size], minlength=count * blocks).reshape(count, blocks)
    steps = np.bincount(cell, minlength=count * blocks).reshape(count, blocks)
    spent, passed = (
        np.column_stack([np.zeros(len(weights)), np.cumsum(weights @ sums, axis=1)])
        for sums in (paid, steps)
    )
    whole = np.minimum(np.sum(spent[:, 1:] <= budgets[:, None], axis=1), blocks - 1)
    row = np.arange(len(weights))
    left = budgets - spent[row, whole]
    times = drawn[row[:, None], owner.reshape(blocks, block)[whole]]
    price = cost.reshape(blocks, block)[whole]
    running = np.cumsum(np.where(times > 0, times * np.where(times > 0, price, 0.0), 0.0), axis=1)
    before = np.column_stack([np.zeros(len(weights)), running[:, :-1]])
    with np.errstate(divide="ignore", invalid="ignore"):
        copies = np.floor((left[:, None] - before) / price)
    copies = np.where(np.isnan(copies), np.inf, copies)  # price and budget are 0
    affordable = np.clip(np.where(left[:, None] >= before, copies, 0.0), 0.0, times)
    return np.asarray(passed[row, whole] + affordable.sum(axis=1))


def _reached(certificates: Floats, eps: float) -> Flags:
    """Return (N,) whether some draft with this KL is rejected; False where nothing is rejected."""
    return np.isfinite(certificates) & (certificates <= eps)
