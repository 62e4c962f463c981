"""Compares a method's answers with the target's own: differences, cost of finished answers.

Tokens a second do not decide about a relaxed rule: it may lengthen answers, or keep them from
ending before their limit. With n tokens, c target calls after the prompt's, s seconds and e answers
that the model ended, sums over the same prompts of a method and of the target alone (0), this gives

    length ratio n / n0    cut 1 - e / prompts    calls c / e and seconds s / e a finished answer

and the ratios (c / e) / (c0 / e0), (s / e) / (s0 / e0). Answers that the limit cuts are paid for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..statistics.bootstrap import PromptBootstrap

COSTS = ["n_tokens", "ended", "calls", "seconds"]
CLOCKED = ["seconds_finished", "seconds_ratio", "right_per_second"]  # what depends on the clock
CLOCKED += [f"{name}_ci_{end}" for name in CLOCKED for end in ("low", "high")]
CLOCKED_ANSWERS = [name for name in CLOCKED if "right" not in name]  # where none was scored


def finished_costs(
    mine: pd.DataFrame, alone: pd.DataFrame, bootstrap: PromptBootstrap
) -> dict[str, float]:
    """Return what the finished answers of a method cost.

    Args:
        mine: one row a prompt: `COSTS`, and correct where answers were scored.
        alone: of the target alone, row by row the same prompts.
        bootstrap: over these rows.

    Returns:
        `length_ratio`, `cut`, `calls_finished`, `seconds_finished`, `calls_ratio`, `seconds_ratio`
        and, of scored answers, `right_per_second`; each with its interval over prompts in _ci_low
        and _ci_high. NaN where no answer ended.
    """
    names = [*COSTS, *(["correct"] if "correct" in mine else [])]
    values = np.column_stack([mine[names], alone[COSTS]]).astype(np.float64)
    sums = np.concatenate([values.sum(axis=0)[None], bootstrap.sums(values)]).T
    n, e, c, s, *right = sums[: len(names)]
    n0, e0, c0, s0, *_ = sums[len(names) :]
    e, e0 = (np.where(ended > 0, ended, np.nan) for ended in (e, e0))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = {
            "length_ratio": n / n0,
            "cut": 1 - np.nan_to_num(e) / len(mine),
            "calls_finished": c / e,
            "seconds_finished": s / e,
            "calls_ratio": (c / e) / (c0 / e0),
            "seconds_ratio": (s / e) / (s0 / e0),
        }
        if right:
            found["right_per_second"] = right[0] / s
    rows: dict[str, float] = {}
    for name, draws in found.items():
        low, high = bootstrap.interval(draws[1:])
        rows |= {
            name: float(draws[0]),
            f"{name}_ci_low": float(low),
            f"{name}_ci_high": float(high),
        }
    return rows


def differing_answers(
    data: pd.DataFrame, baselines: Sequence[int], keys: Sequence[str], *columns: str
) -> pd.DataFrame:
    """Return the answers that differ in a token from those of the target alone.

    Args:
        data: one row an answer: keys, run, n_tokens, common_prefix (tokens before the first that
            differs), and the columns.
        baselines: of each run, the run of the target alone.
        keys: columns that name the prompt.
        columns: that the other answer's are wanted of, too, as alone_<column>.

    Returns:
        The rows, with columns alone_n_tokens and alone_<column>.
    """
    known = ["n_tokens", *columns]
    alone = data[["run", *keys, *known]].rename(columns={"run": "baseline"})
    alone = alone.rename(columns={name: f"alone_{name}" for name in known})
    mine = data.assign(baseline=np.asarray(baselines)[data["run"]])
    pairs = mine.merge(alone, on=["baseline", *keys], how="left")
    longer = pairs[["n_tokens", "alone_n_tokens"]].max(axis=1)
    return pairs[pairs["common_prefix"] < longer]
