"""A method's answers compared with the target's own: differences, and cost of finished answers.

Tokens a second do not suffice to judge a relaxed rule: it may lengthen answers, or keep them from
ending before their limit. With n tokens, c target calls after the prompt's, s seconds and e answers
that the model ended, summed over the same prompts for a method and for the target alone (0), the
statistics are

    length ratio n / n0    cut 1 - e / prompts    calls c / e and seconds s / e a finished answer

and the ratios (c / e) / (c0 / e0), (s / e) / (s0 / e0). Their numerators include answers that the
limit cuts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..statistics.bootstrap import PromptBootstrap

COSTS = ["n_tokens", "ended", "calls", "seconds"]
CLOCKED = ["seconds_finished", "seconds_ratio", "right_per_second"]  # depend on the clock
CLOCKED += [f"{name}_ci_{end}" for name in CLOCKED for end in ("low", "high")]
CLOCKED_ANSWERS = [name for name in CLOCKED if "right" not in name]  # without scores


def finished_costs(
    answers: pd.DataFrame, alone: pd.DataFrame, bootstrap: PromptBootstrap
) -> dict[str, float]:
    """Return the cost of a method's finished answers.

    Args:
        answers: one row for each prompt: `COSTS`, and correct if answers were scored.
        alone: the same for the target alone, with the same prompts row by row.
        bootstrap: over these rows.

    Returns:
        `length_ratio`, `cut`, `calls_finished`, `seconds_finished`, `calls_ratio`, `seconds_ratio`
        and, for scored answers, `right_per_second`; each with its interval over prompts in
        `*_ci_low` and `*_ci_high`. NaN if no answer ended.
    """
    names = [*COSTS, *(["correct"] if "correct" in answers else [])]
    values = np.column_stack([answers[names], alone[COSTS]]).astype(np.float64)
    sums = np.concatenate([values.sum(axis=0)[None], bootstrap.sums(values)]).T
    n, e, c, s, *right = sums[: len(names)]
    n0, e0, c0, s0, *_ = sums[len(names) :]
    e, e0 = (np.where(ended > 0, ended, np.nan) for ended in (e, e0))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = {
            "length_ratio": n / n0,
            "cut": 1 - np.nan_to_num(e) / len(answers),
            "calls_finished": c / e,
            "seconds_finished": s / e,
            "calls_ratio": (c / e) / (c0 / e0),
            "seconds_ratio": (s / e) / (s0 / e0),
        }
        if right:
            ratios["right_per_second"] = right[0] / s
    rows: dict[str, float] = {}
    for name, draws in ratios.items():
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
    """Return the answers that differ from those of the target alone.

    Args:
        data: one row for each answer: keys, run, n_tokens, common_prefix (tokens before the first
            difference), and the columns.
        baselines: for each run, the run of the target alone.
        keys: columns that identify the prompt.
        columns: to copy from the target's answer, as alone_<column>.

    Returns:
        The rows, with the columns alone_n_tokens and alone_<column>.
    """
    copied = ["n_tokens", *columns]
    alone = data[["run", *keys, *copied]].rename(columns={"run": "baseline"})
    alone = alone.rename(columns={name: f"alone_{name}" for name in copied})
    compared = data.assign(baseline=np.asarray(baselines)[data["run"]])
    pairs = compared.merge(alone, on=["baseline", *keys], how="left")
    longer = pairs[["n_tokens", "alone_n_tokens"]].max(axis=1)
    return pairs[pairs["common_prefix"] < longer]
