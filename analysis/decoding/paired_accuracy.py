"""Answers to tasks under every method: accuracy, lost answers, and tokens per call.

A method is compared, item by item, with the target alone at the same temperature and noise. Only
discordant pairs distinguish the two: c items that only the target has right, and b that only the
method has right. The loss of accuracy that is tolerated is fixed before the measurement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from ..statistics.bootstrap import PromptBootstrap
from ..statistics.estimate import Estimate

ALL = "all"  # the tasks together


@dataclass(frozen=True)
class Answered:
    """The answers of one target with one drafter.

    The columns of answers (data) and seconds (timings/runs) stand in pipeline/stages/accuracy.py.
    """

    target: str  # printed name
    tasks: Sequence[str]  # in order
    # one row for each run, indexed by run: method, drafter, draft_length, temperature, baseline (a
    # run), exact (whether it must give the baseline's tokens), and rule, an acceptance rule or None
    runs: pd.DataFrame
    answers: pd.DataFrame  # one row for each item and run; without token_ids, method, drafter
    seconds: pd.DataFrame  # task, item_id, run, seconds


def accuracy(
    answered: Answered, resamples: int, confidence: float, seed: int, tolerated_loss: float
) -> pd.DataFrame:
    """Return the accuracy of every run, for each task and for all together.

    Resamples are of the items.

    Returns:
        One row for each task and run, with the columns of `answered.runs` and: items; right;
        accuracy and its interval (Wilson); lost and won, items that only the baseline or only this
        run has right; difference of accuracy, its interval (Agresti and Min) and McNemar's exact
        p_value; within, whether the difference's interval lies entirely above -`tolerated_loss`;
        falls, whether it lies entirely below 0; recovery, accuracy over the baseline's; changed,
        the share of answers that differ from the baseline's; nats_given_up, the log-probability
        given up: how many nats per token the emitted tokens are below the target's first choices,
        minus the baseline's;
        departures, the share of tokens that are not the target's first choice; tokens_per_call with
        its interval over items; and speedup, the baseline's seconds per token over this run's.
    """
    both = answered.answers.merge(answered.seconds, on=["task", "item_id", "run"])
    rows = []
    for task in [*answered.tasks, ALL] if len(answered.tasks) > 1 else [ALL]:
        part = both if task == ALL else both[both["task"] == task]
        by_run = {run: answers.reset_index(drop=True) for run, answers in part.groupby("run")}
        bootstrap = PromptBootstrap(np.arange(len(by_run[0])), resamples, confidence, seed)
        for run, baseline in enumerate(answered.runs["baseline"]):
            row = _compared(by_run[run], by_run[baseline], confidence)
            row["within"] = row["difference_ci_low"] > -tolerated_loss
            row["falls"] = row["difference_ci_high"] < 0
            emitted, calls = by_run[run][["emitted", "calls"]].to_numpy().T
            per_call = Estimate(*map(float, bootstrap.ratio(emitted, calls)))
            row |= per_call.columns("tokens_per_call")
            rows.append({"task": task, "run": run, **answered.runs.iloc[run], **row})
    return pd.DataFrame(rows)


def _compared(answers: pd.DataFrame, alone: pd.DataFrame, confidence: float) -> dict[str, float]:
    """Return the comparison of a run with its baseline, which has the same items row by row."""
    if answers["item_id"].tolist() != alone["item_id"].tolist():
        raise ValueError("two runs answered different items")
    right = answers["correct"].to_numpy()
    before = alone["correct"].to_numpy()
    items = len(right)
    lost = int((before & ~right).sum())
    won = int((right & ~before).sum())
    low, high = wilson_interval(int(right.sum()), items, confidence)
    difference_low = difference_high = 0.0
    if answers["run"].iloc[0] != alone["run"].iloc[0]:
        difference_low, difference_high = paired_difference_interval(lost, won, items, confidence)
    changed = answers["common_prefix"] < np.maximum(answers["n_tokens"], alone["n_tokens"])
    nats_per_token, seconds_per_token = (
        np.array([part[name].sum() / part["n_tokens"].sum() for part in (answers, alone)])
        for name in ("nats_given_up", "seconds")
    )
    return {
        "items": items,
        "right": int(right.sum()),
        "accuracy": float(right.mean()),
        "accuracy_ci_low": low,
        "accuracy_ci_high": high,
        "lost": lost,
        "won": won,
        "difference": (won - lost) / items,
        "difference_ci_low": difference_low,
        "difference_ci_high": difference_high,
        "p_value": mcnemar_p(lost, won),
        "recovery": float(right.sum() / (before.sum() or np.nan)),
        "changed": float(changed.mean()),
        "nats_given_up": float(nats_per_token[0] - nats_per_token[1]),
        "departures": float(answers["departures"].sum() / answers["n_tokens"].sum()),
        "speedup": float(seconds_per_token[1] / seconds_per_token[0]),
    }


def differing_answers(
    data: pd.DataFrame, baselines: Sequence[int], keys: Sequence[str], *columns: str
) -> pd.DataFrame:
    """Return the answers that differ from those of the target alone, one row each.

    `baselines` has the run of the target alone for each run. `keys` are the columns that identify a
    prompt. n_tokens and `columns` of the target's own answer are added as alone_<column>.
    """
    copied = ["n_tokens", *columns]
    alone = data[["run", *keys, *copied]].rename(columns={"run": "baseline"})
    alone = alone.rename(columns={name: f"alone_{name}" for name in copied})
    compared = data.assign(baseline=np.asarray(baselines)[data["run"]])
    pairs = compared.merge(alone, on=["baseline", *keys], how="left")
    longer = pairs[["n_tokens", "alone_n_tokens"]].max(axis=1)
    return pairs[pairs["common_prefix"] < longer]


def differing(answered: Answered) -> pd.DataFrame:
    """Return the answers that differ from the baseline's, with the baseline's answers.

    Returns:
        The rows of `answered.answers`, with the columns method, exact, alone_correct and
        alone_answer. An exact method must not change answers. It may do so at near-ties, as a pass
        over several tokens rounds differently from a pass over one.
    """
    runs = answered.runs
    keys = ["task", "item_id"]
    pairs = differing_answers(answered.answers, list(runs["baseline"]), keys, "answer", "correct")
    return pairs.join(runs[["method", "exact"]], on="run").reset_index(drop=True)


def losses(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `accuracy` for the relaxed rules, over all tasks together.

    Returns:
        These rows with the rule's label in `rule`; `decision`, which is "excluded" (a loss above
        the tolerated one is ruled out), "falls" (accuracy falls), both or "open"; and `alone`, the
        number of items that the target alone has right.
    """
    totals = table[table["task"] == ALL].set_index("run")
    relaxed = totals[totals["rule"].notna() & ~totals["exact"].astype(bool)]
    words = {"within": "excluded", "falls": "falls"}
    decisions = [
        " and ".join(word for name, word in words.items() if row[name]) or "open"
        for row in relaxed[[*words]].to_dict("records")
    ]
    return relaxed.assign(
        rule=[rule.label for rule in relaxed["rule"]],
        decision=decisions,
        alone=totals["right"].loc[relaxed["baseline"]].to_numpy(),
    )


def wilson_interval(right: int, items: int, confidence: float) -> tuple[float, float]:
    """Return Wilson's interval of a proportion (Wilson 1927), in [0, 1] and of positive width.

    >>> [round(end, 4) for end in wilson_interval(0, 10, 0.95)]
    [0.0, 0.2775]
    """
    low, high = binomtest(right, items).proportion_ci(confidence, method="wilson")
    return float(low), float(high)


def paired_difference_interval(
    lost: int, won: int, items: int, confidence: float
) -> tuple[float, float]:
    """Return the interval of the method's accuracy minus the target's, (won - lost) / items.

    It is that of Agresti and Min 2005: Wald's interval after adding 1/2 to each of the four cells
    of the paired table, so its width is positive even without discordant pairs. It is too narrow
    where one cell is next to empty: at 0.95 and 316 items a true loss of 5 points is excluded in up
    to 4.4 % of samples, not 2.5 %.
    `lost` is c, `won` is b; `items` includes the concordant ones.

    >>> [round(end, 3) for end in paired_difference_interval(0, 0, 10, 0.95)]
    [-0.163, 0.163]
    """
    size = items + 2
    mean = (won - lost) / size
    half = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(
        ((won + lost + 1) / size - mean * mean) / size
    )
    return max(-1.0, mean - half), min(1.0, mean + half)


def mcnemar_p(lost: int, won: int) -> float:
    """Return the two-sided p-value of McNemar's exact test on the discordant pairs.

    >>> mcnemar_p(0, 0), mcnemar_p(5, 0), mcnemar_p(3, 3)
    (1.0, 0.0625, 1.0)
    """
    return float(binomtest(lost, lost + won).pvalue) if lost + won else 1.0
