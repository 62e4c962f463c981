"""Gain and cost of rules, compared with the optimum on the same drafts.

Emitting a drafted token y instead of x0 costs c(y) = log(p0 / p(y)) nats, or p0 - p(y) in
probability. Given pairs of step and drafted token, no choice of accepted steps, even one that knows
q, accepts more at the same total cost than the cheapest ones (a knapsack with equal values): the
tokens below a threshold on c. So multiplicative rules are optimal for nats, additive ones for
probability.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..statistics.bootstrap import Flags, Floats, PromptBootstrap
from ..statistics.trajectories import count_calls
from .budgets import resampled_rejections
from .judgement import Judgement, Steps

COSTS = ("nats", "probability")
POINTS = 41  # of a curve
ROUNDING = 1e-9  # relative error allowed in a sum of costs


def frontier(
    steps: Steps, judgements: Sequence[Judgement], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Return gain and cost of rules, and the two optimal curves.

    Args:
        steps: a drafter's steps. For a head, all but tokens a call refer to depth 1.
        judgements: of the rules. Trees, which emit the target's own text, are left out.
        bootstrap: over prompts.

    Returns:
        A row for each rule and cost (nats or probability, mean over steps): rule, cost, tokens (a
        call, drafts of unlimited length, per_call), tokens_low, tokens_high, cut (share of calls
        cut by a trajectory's end), value (of the cost), ci_low, ci_high, share (accepted steps over
        the most that any rule accepts at this cost), share_low, share_high. The curves have an
        empty rule and no intervals; their `setting` is the optimal rule's alpha or t.
    """
    chains = [judgement for judgement in judgements if judgement.rule.judges_tokens]
    accepted = np.stack([judgement.accepted for judgement in chains], axis=1)
    weights = np.concatenate([np.ones((1, bootstrap.count)), bootstrap.weights])
    sizes = weights @ bootstrap.steps
    trajectories = steps.trajectories
    free = steps.draft_rank == 1

    def summed(values: Floats | Flags) -> Floats:
        """Return the sums of (N, R) values for each weighting of the prompts, (1 + B, R)."""
        starts = steps.trajectories.starts
        return np.asarray(weights @ np.add.reduceat(values, starts, axis=0, dtype=np.float64))

    def placed(accepted: Flags) -> tuple[Floats, Floats]:
        """Return tokens a call, (1 + B, R), and the share of calls cut by an end, (R,).

        `accepted` is (D, N, R), by depth.
        """
        counts = count_calls(accepted, trajectories, None)
        with np.errstate(invalid="ignore"):  # no answer has a second token
            tokens = (weights @ counts.tokens)[:, None] / (weights @ counts.calls)
            return tokens, counts.cut.sum(axis=0) / counts.calls.sum(axis=0)

    tokens, cut = placed(np.stack([judgement.accepted_by_depth for judgement in chains], axis=2))
    low, high = bootstrap.interval(tokens[1:])
    lengths = {"tokens": tokens[0], "tokens_low": low, "tokens_high": high, "cut": cut}
    frames = []
    costs = [_costs(at_depth) for at_depth in steps.by_depth]
    for name in COSTS:
        cost = costs[0][name]
        price = np.where(free, np.inf, cost)  # every rule accepts the free steps
        spent = summed(np.where(accepted & ~free[:, None], cost[:, None], 0.0))
        most = [
            resampled_rejections(price, bootstrap.prompts, weights, budget * (1.0 + ROUNDING))
            for budget in spent.T
        ]
        best = summed(free[:, None]) + np.column_stack(most)
        share = np.divide(summed(accepted), best, out=np.ones_like(best), where=best > 0)
        columns = {"rule": [judgement.rule.label for judgement in chains], "cost": name, **lengths}
        for key, draws in (("value", spent / sizes[:, None]), ("share", share)):
            ends = bootstrap.interval(draws[1:])
            prefix = "ci" if key == "value" else key
            columns |= {key: draws[0], f"{prefix}_low": ends[0], f"{prefix}_high": ends[1]}
        frames.append(pd.DataFrame(columns))
        others = np.sort(cost[~free])
        places = np.unique(np.linspace(0, len(others), POINTS).astype(int))
        threshold = np.concatenate([[-1.0], others])[places]  # with `places` costs up to it
        by_depth = np.stack(
            [
                (at_depth.draft_rank == 1)[:, None] | (own[name][:, None] <= threshold)
                for at_depth, own in zip(steps.by_depth, costs, strict=True)
            ]
        )
        curve_tokens, curve_cut = placed(by_depth)
        best_accepted = by_depth[0]
        given_up = np.where(best_accepted & ~free[:, None], cost[:, None], 0.0).mean(axis=0)
        strict = np.maximum(threshold, 0.0)
        curve = {"tokens": curve_tokens[0], "cut": curve_cut, "value": given_up, "share": 1.0}
        curve["setting"] = np.exp(-strict) if name == "nats" else strict
        frames.append(pd.DataFrame({"rule": "", "cost": name, **curve}))
    return pd.concat(frames, ignore_index=True)


def _costs(steps: Steps) -> dict[str, Floats]:
    """Return the cost of emitting each drafted token, (N,), in nats and in probability."""
    nats = np.maximum(-steps.target.top_surprisal - steps.draft_log_prob, 0.0)
    return dict(zip(COSTS, (nats, np.maximum(steps.given_up, 0.0)), strict=True))
