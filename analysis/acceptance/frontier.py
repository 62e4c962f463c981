"""Gain and cost of rules, compared with the best possible rule on the same drafts.

A drafted token y that is emitted in the place of x0 costs c(y) = log(p0 / p(y)) nats, or p0 - p(y).
On fixed pairs of step and drafted token, no choice of the steps that accept, even one that knows q,
accepts more at a total cost than the cheapest ones (a knapsack of equal values): the tokens below a
threshold on c. So multiplicative rules are best for nats, additive ones for probability.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..statistics.bootstrap import Flags, Floats, PromptBootstrap
from ..statistics.trajectories import count_calls
from .budgets import resampled_rejections
from .realised import Steps, Verdict

COSTS = ("nats", "probability")
POINTS = 41  # of a curve
ROUNDING = 1e-9  # relative, of a sum of costs


def frontier(steps: Steps, verdicts: Sequence[Verdict], bootstrap: PromptBootstrap) -> pd.DataFrame:
    """Place rules beside the two optimal curves; of a head, all but tokens a call are of depth 1.

    Args:
        steps: a drafter beside its target.
        verdicts: of the rules; those of trees, which emit the target's own text, have no place.
        bootstrap: over prompts.

    Returns:
        Two rows a rule, one a cost (nats or probability, mean over steps): rule, cost, tokens (a
        call, drafts of any length, per_call), tokens_low, tokens_high, cut (share of calls that
        trajectories' ends cut), value (of the cost), ci_low, ci_high, share (accepted steps, of the
        most that any rule accepts at this cost), share_low, share_high. And the curves, with an
        empty rule and no intervals: `setting` is the best rule's alpha or t there.
    """
    chains = [verdict for verdict in verdicts if verdict.rule.judges_tokens]
    accepted = np.stack([verdict.accepted for verdict in chains], axis=1)
    weights = np.concatenate([np.ones((1, bootstrap.count)), bootstrap.weights])
    sizes = weights @ bootstrap.steps
    trajectories = steps.trajectories
    free = steps.draft_rank == 1

    def summed(values: Floats | Flags) -> Floats:
        """Sum (N, R) over the steps of each weighting of the prompts, (1 + B, R)."""
        starts = steps.trajectories.starts
        return np.asarray(weights @ np.add.reduceat(values, starts, axis=0, dtype=np.float64))

    def placed(accepted: Flags) -> tuple[Floats, Floats]:
        """Return tokens a call, (1 + B, R), and the share of calls that ends cut, (R,).

        `accepted` is (D, N, R), by depth.
        """
        made = count_calls(accepted, trajectories, None)
        with np.errstate(invalid="ignore"):  # no answer has a second token
            tokens = (weights @ made.tokens)[:, None] / (weights @ made.calls)
            return tokens, made.cut.sum(axis=0) / made.calls.sum(axis=0)

    tokens, cut = placed(np.stack([verdict.accepted_by_depth for verdict in chains], axis=2))
    low, high = bootstrap.interval(tokens[1:])
    found = {"tokens": tokens[0], "tokens_low": low, "tokens_high": high, "cut": cut}
    frames = []
    costs = [_costs(at_depth) for at_depth in steps.by_depth]
    for name in COSTS:
        cost = costs[0][name]
        each = np.where(free, np.inf, cost)  # of what no rule has to accept
        spent = summed(np.where(accepted & ~free[:, None], cost[:, None], 0.0))
        most = [
            resampled_rejections(each, bootstrap.prompts, weights, budget * (1.0 + ROUNDING))
            for budget in spent.T
        ]
        best = summed(free[:, None]) + np.column_stack(most)
        share = np.divide(summed(accepted), best, out=np.ones_like(best), where=best > 0)
        columns = {"rule": [one.rule.label for one in chains], "cost": name, **found}
        for key, draws in (("value", spent / sizes[:, None]), ("share", share)):
            ends = bootstrap.interval(draws[1:])
            prefix = "ci" if key == "value" else key
            columns |= {key: draws[0], f"{prefix}_low": ends[0], f"{prefix}_high": ends[1]}
        frames.append(pd.DataFrame(columns))
        others = np.sort(cost[~free])
        places = np.unique(np.linspace(0, len(others), POINTS).astype(int))
        threshold = np.concatenate([[-1.0], others])[places]  # of which so many are below
        by_depth = np.stack(
            [
                (at_depth.draft_rank == 1)[:, None] | (own[name][:, None] <= threshold)
                for at_depth, own in zip(steps.by_depth, costs, strict=True)
            ]
        )
        curve_tokens, curve_cut = placed(by_depth)
        best_ones = by_depth[0]
        given = np.where(best_ones & ~free[:, None], cost[:, None], 0.0).mean(axis=0)
        strict = np.maximum(threshold, 0.0)
        curve = {"tokens": curve_tokens[0], "cut": curve_cut, "value": given, "share": 1.0}
        curve["setting"] = np.exp(-strict) if name == "nats" else strict
        frames.append(pd.DataFrame({"rule": "", "cost": name, **curve}))
    return pd.concat(frames, ignore_index=True)


def _costs(steps: Steps) -> dict[str, Floats]:
    """Return what emitting each drafted token costs, (N,), in nats and in probability."""
    nats = np.maximum(-steps.target.top_surprisal - steps.draft_log_prob, 0.0)
    return dict(zip(COSTS, (nats, np.maximum(steps.given_up, 0.0)), strict=True))
