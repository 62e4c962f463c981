"""Results by category of prompts: certificates, run lengths, and a drafter's acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...rules import Rule
from ...statistics.bootstrap import Flags, Floats, PromptBootstrap, summarise
from ...statistics.run_lengths import run_lengths, with_censored
from ...statistics.trajectories import LENGTH, Trajectories
from ..measured import Ends
from ..records import Table, worded

ALL = "all prompts"


def category_statistics(
    categories: Sequence[str],
    rule: Rule,
    certificates: Ends,
    means: Mapping[str, Floats | Flags],
    eps: float,
    whole: PromptBootstrap,
    seed: int,
) -> pd.DataFrame:
    """Return the statistics of each category, sorted by name, and of all prompts.

    Args:
        categories: (P,) category of each prompt, in the order of the N steps of a target.
        rule: the certified rule.
        certificates: its (N,) lower and upper ends, nats.
        means: (N,) values whose mean is a statistic, by name: p0, a probability; repeated, the
            flags of `inside_repeats`; with a drafter kl, in nats, and accepted, flags.
        eps: level in nats of the statistics certified and per_call.
        whole: the bootstrap over all prompts.
        seed: of the resamples of a category's prompts, equally many.

    Returns:
        One row a category and statistic: category, statistic, value, ci_low, ci_high, cut (for
        per_call the share of calls cut by a trajectory's end, else 0), steps, prompts.
    """
    of_step = np.asarray(categories, dtype=object)[whole.prompts]
    frames = []
    for category in [*sorted(set(categories)), ALL]:
        chosen, bootstrap = np.ones(len(of_step), dtype=bool), whole
        if category != ALL:
            chosen = of_step == category
            prompts = np.unique(whole.prompts[chosen], return_inverse=True)[1]
            bootstrap = PromptBootstrap(prompts, len(whole.weights), whole.confidence, seed)
        lower = certificates[0][chosen]
        chosen_means = {name: values[chosen] for name, values in means.items()}
        frame = pd.DataFrame(_statistics(rule, lower, chosen_means, eps, bootstrap))
        frame.insert(0, "category", category)
        frames.append(frame.assign(steps=int(chosen.sum()), prompts=bootstrap.count))
    return pd.concat(frames, ignore_index=True)


def _statistics(
    rule: Rule,
    lower: Floats,
    means: Mapping[str, Floats | Flags],
    eps: float,
    bootstrap: PromptBootstrap,
) -> list[dict[str, Any]]:
    """Return a row for each statistic of one category."""

    def mean(name: str, values: Any) -> dict[str, Any]:
        value, draws = bootstrap.mean(np.asarray(values, dtype=np.float64))
        low, high = bootstrap.interval(draws)
        return {"statistic": name, "value": value, "ci_low": float(low), "ci_high": float(high)}

    rows = [mean(name, values) for name, values in means.items()]
    summary = summarise(lower, rule.ceiling, bootstrap)
    rows += [
        {"statistic": name, **of} for name, of in summary.items() if name in ("mean", "median")
    ]
    rows.append(mean("certified", lower > eps))
    starts = np.append(0, np.cumsum(bootstrap.steps)[:-1])
    trajectories = Trajectories(starts, bootstrap.prompts)
    runs = run_lengths(lower, [eps], trajectories, bootstrap)
    (run,) = runs[runs["estimator"] == "per_call"].to_dict("records")
    rows = [row | {"cut": 0.0} for row in rows]
    return [*rows, {"statistic": "per_call"} | {x: run[x] for x in rows[0] if x != "statistic"}]


def category_table(data: pd.DataFrame, rule: Rule, eps: float) -> Table:
    """Return the table of `category_statistics` of all targets, a row for each category."""
    layout = worded("categories", rule=rule.title, eps=eps, length=LENGTH)
    present = set(data["statistic"])  # without a drafter, none of its own
    layout["columns"] = [
        column for column in layout["columns"] if column.where["statistic"] in present
    ]
    shown = with_censored(data).assign(ceiling=rule.ceiling)
    return Table(**layout, data=data, shown=shown)
