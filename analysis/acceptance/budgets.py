"""What a mean KL certifies of a drafter, beside a bound at every step and beside what happens.

Three numbers at the drafter's mean KL eps, for acceptance and for tokens a call:

- uniform: the KL is at most eps at every step;
- budget: its mean over the steps is at most eps (`analysis.beyond.budget`);
- realised: what this drafter, whose mean KL is eps, does.

A budget is the weaker assumption, and certifies less than the uniform bound. What is realised is
never below it. Certificates that are intervals count by their lower ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..beyond.budget import certified_tokens, spend
from ..statistics.bootstrap import Flags, Floats, Integers, Numbers, PromptBootstrap
from ..statistics.trajectories import Trajectories, calls_made
from .realised import Steps, Verdict


def budget_of_drafter(
    steps: Steps, verdict: Verdict, bootstrap: PromptBootstrap, draft_length: int | None = None
) -> pd.DataFrame:
    """Return the three numbers of one rule at the drafter's mean KL, with intervals.

    The intervals are of what is certified at this level, and of what is realised.

    Returns:
        Rows with rule, kind (uniform, budget, realised), eps, statistic (acceptance,
        tokens, and with a draft length gamma tokens_<gamma>, with drafts of at most so many),
        value, ci_low and ci_high (NaN of a budget at a draft length).
    """
    prompts, eps = bootstrap.prompts, float(steps.kl.mean())
    last = np.zeros(len(steps), dtype=bool)
    last[_ends(steps.trajectories)] = True
    inner = np.where(last, np.inf, verdict.lower)  # whose rejection begins another call
    weights = np.concatenate([np.ones((1, bootstrap.count)), bootstrap.weights])
    sizes, ends = weights @ bootstrap.steps, weights.sum(axis=1)

    def counted(flags: Flags) -> Floats:
        return np.asarray(weights @ np.bincount(prompts, weights=flags))

    def spent(certificates: Floats) -> Floats:
        return resampled_rejections(certificates, prompts, weights, np.asarray(sizes * eps))

    found: dict[tuple[str, str], Floats] = {
        ("uniform", "acceptance"): 1.0 - counted(_reached(verdict.lower, eps)) / sizes,
        ("budget", "acceptance"): 1.0 - spent(verdict.lower) / sizes,
        ("realised", "acceptance"): 1.0 - counted(~verdict.accepted) / sizes,
        ("uniform", "tokens"): sizes / (ends + counted(_reached(inner, eps))),
        ("budget", "tokens"): sizes / (ends + spent(inner)),
        ("realised", "tokens"): sizes / (ends + counted(~verdict.accepted & ~last)),
    }
    rows = [
        (kind, name, float(draws[0]), *map(float, bootstrap.interval(draws[1:])))
        for (kind, name), draws in found.items()
    ]
    if draft_length is not None:
        rows += _limited(steps, verdict, eps, bootstrap, draft_length)
    columns = ["kind", "statistic", "value", "ci_low", "ci_high"]
    return pd.DataFrame(rows, columns=columns).assign(eps=eps, rule=verdict.rule.label)


def _limited(
    steps: Steps, verdict: Verdict, eps: float, bootstrap: PromptBootstrap, draft_length: int
) -> Iterator[tuple[str, str, float, float, float]]:
    """Yield kind, statistic, tokens a call and their interval, with drafts of a limited length."""
    name, certain = f"tokens_{draft_length}", ~_reached(verdict.lower, eps)
    for kind, flags in (("uniform", certain), ("realised", verdict.accepted)):
        calls = calls_made(flags[:, None], steps.trajectories, draft_length)[:, 0]
        low, high = bootstrap.interval(bootstrap.sums(bootstrap.steps) / bootstrap.sums(calls))
        yield kind, name, float(len(steps) / calls.sum()), float(low), float(high)
    ends = _ends(steps.trajectories)
    value = certified_tokens(verdict.lower, ends, eps, draft_length)
    yield "budget", name, value, math.nan, math.nan


def resampled_rejections(
    certificates: Floats, prompts: Numbers, weights: Floats, budgets: Floats
) -> Floats:
    """Return the most steps that a budget can reject, of each of B weightings of the prompts.

    The cheapest steps are rejected first; of a step that is drawn several times, as many as can be
    paid.

    Args:
        certificates: (N,) nats, +inf where nothing is rejected.
        prompts: (N,) of each step, 0 .. P-1.
        weights: (B, P), whole numbers, how often each prompt is drawn.
        budgets: (B,) nats in all, at least 0; may be infinite.

    Returns:
        (B,).

    Examples:
        >>> resampled_rejections(
        ...     np.array([0.25, 0.5, 1.0]), np.array([0, 1, 1]), np.array([[3.0, 1.0]]),
        ...     np.array([1.3])
        ... ).tolist()
        [4.0]
    """
    finite, found = np.flatnonzero(np.isfinite(certificates)), np.zeros(len(weights))
    order = finite[np.argsort(certificates[finite], kind="stable")]
    spend(certificates[order], prompts[order], weights, budgets, found)
    return found


def _reached(certificates: Floats, eps: float) -> Flags:
    """Return the steps that some draft of this KL rejects; none without a certificate."""
    return np.isfinite(certificates) & (certificates <= eps)


def _ends(trajectories: Trajectories) -> Integers:
    """Return the (P,) last steps of the trajectories."""
    return np.asarray(np.append(trajectories.starts[1:], len(trajectories.prompts)) - 1)
