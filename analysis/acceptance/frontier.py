"""All rules on one plane: what each gains, tokens a call, against what it costs.

The cost is either how often the output departs from the target's argmax, or the log-likelihood that
this gives up. A tree departs nowhere, and pays in nodes instead. So a rule is dominated where
another emits at least as many tokens a call for at most its cost with at most its nodes, and is
better in one of the three. The frontier are the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..rules.builtin import Tree
from ..rules.rule import Rule
from ..statistics.bootstrap import Flags, Floats, Numbers, PromptBootstrap
from .realised import Steps, Verdict

COSTS = ("departure", "nats")


def frontier(steps: Steps, verdicts: Sequence[Verdict], bootstrap: PromptBootstrap) -> pd.DataFrame:
    """Place rules on the planes of gain and cost, and say which are on the frontier.

    Args:
        steps: a drafter beside its target.
        verdicts: of the rules.
        bootstrap: over prompts.

    Returns:
        Two rows a rule, one a cost (departure: share of steps at which a token other than the
        target's argmax is emitted; nats: log p(x0) - log p(y) of the emitted y, mean over steps):
        rule, cost, nodes (drafted tokens a level: m of a tree, else 1), tokens (a call, drafts of
        any length, per_call), tokens_low, tokens_high, cut (share of calls that trajectories' ends
        cut), value (of the cost), ci_low, ci_high, frontier (share of resamples in which no rule
        dominates it) and better (label of the rule with most tokens that dominates it, empty where
        none does).
    """
    labels = [verdict.rule.label for verdict in verdicts]
    nodes = np.array([nodes_of(verdict.rule) for verdict in verdicts])
    accepted = np.stack([verdict.accepted for verdict in verdicts], axis=1)
    last = np.append(steps.trajectories.starts[1:], len(steps)) - 1
    ends = accepted[last]  # (P, R)
    calls = _by_prompt(~accepted, steps) + ends
    tokens = _with_draws(bootstrap.steps[:, None], bootstrap) / _with_draws(calls, bootstrap)
    low, high = bootstrap.interval(tokens[1:])
    cut = ends.sum(axis=0) / calls.sum(axis=0)
    frames = []
    for name, lost in zip(COSTS, _lost(steps, verdicts), strict=True):
        sums = _with_draws(_by_prompt(lost, steps), bootstrap)
        cost = sums / _with_draws(bootstrap.steps[:, None], bootstrap)
        limits = bootstrap.interval(cost[1:])
        free, best = np.empty(tokens.shape, dtype=bool), []
        for at in range(len(verdicts)):
            above = dominates(tokens, cost, nodes, at)
            free[:, at] = ~above.any(axis=1)
            there = np.flatnonzero(above[0])
            best.append(labels[there[np.argmax(tokens[0, there])]] if there.size else "")
        frame = {
            "rule": labels,
            "cost": name,
            "nodes": nodes,
            "tokens": tokens[0],
            "tokens_low": low,
            "tokens_high": high,
            "cut": cut,
            "value": cost[0],
            "ci_low": limits[0],
            "ci_high": limits[1],
            "frontier": free[1:].mean(axis=0),
            "better": best,
        }
        frames.append(pd.DataFrame(frame))
    return pd.concat(frames, ignore_index=True)


def nodes_of(rule: Rule) -> int:
    """Return how many tokens are drafted for a level of the text."""
    return rule.m if isinstance(rule, Tree) else 1


def dominates(tokens: Floats, cost: Floats, nodes: np.ndarray, at: int) -> Flags:
    """Return which rules dominate the one at an index, (B, R), from (B, R) tokens and costs.

    Example:
        >>> tokens, cost = np.array([[2.0, 3.0, 3.0]]), np.array([[0.1, 0.1, 0.0]])
        >>> dominates(tokens, cost, np.array([1, 1, 4]), 0).tolist()
        [[False, True, False]]
    """
    mine = tokens[:, at, None], cost[:, at, None], nodes[at]
    as_good = (tokens >= mine[0]) & (cost <= mine[1]) & (nodes <= mine[2])
    return np.asarray(as_good & ((tokens > mine[0]) | (cost < mine[1]) | (nodes < mine[2])))


def _lost(steps: Steps, verdicts: Sequence[Verdict]) -> tuple[Floats, Floats]:
    """Return departures and nats given up, (N, R) each."""
    other = steps.draft_rank > 1
    departs = np.stack([v.accepted & other & v.rule.judges_tokens for v in verdicts], axis=1)
    nats = np.where(other, -steps.target.top_surprisal - steps.draft_log_prob, 0.0)[:, None]
    return departs.astype(np.float64), np.where(departs, nats, 0.0)


def _by_prompt(values: Floats | Flags, steps: Steps) -> Floats:
    return np.add.reduceat(values, steps.trajectories.starts, axis=0, dtype=np.float64)


def _with_draws(per_prompt: Numbers, bootstrap: PromptBootstrap) -> Floats:
    """Return the sums over all prompts, and below them those of the resamples: (1 + B, R)."""
    return np.concatenate([per_prompt.sum(axis=0, keepdims=True), bootstrap.sums(per_prompt)])
