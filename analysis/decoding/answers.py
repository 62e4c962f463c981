"""Answers to tasks under every method: accuracy, what a method loses, and tokens a call.

A method is compared with the target alone at the same temperature and noise, item by item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..statistics.bootstrap import PromptBootstrap
from ..statistics.paired import difference, mcnemar, proportion

ALL = "all"  # the tasks together


@dataclass(frozen=True)
class Answered:
    """What one target answered with one drafter.

    Attributes:
        target: printed name.
        tasks: in their order.
        runs: of each run its method, drafter, draft_length, temperature, baseline (a run) and
            exact, whether it gives the baseline's answers token by token; rule, its acceptance
            rule or None; the index is the run.
        data: one row an item and run: task, item_id, run, answer, correct, n_tokens,
            log_likelihood, common_prefix, gap, calls, emitted, ...
        seconds: task, item_id, run, seconds.
        account: of each answer what both models say of it when they read it again: task, item_id,
            run, departures, conceded, kl, certified, certified_alone, ... None where they did not.
    """

    target: str
    tasks: Sequence[str]
    runs: pd.DataFrame
    data: pd.DataFrame
    seconds: pd.DataFrame
    account: pd.DataFrame | None = None


def accuracy(
    answered: Answered, resamples: int, confidence: float, seed: int, margin: float
) -> pd.DataFrame:
    """Return what every run has right, of each task and of all together.

    Args:
        answered: the answers.
        resamples: of the bootstrap over items, for tokens a call.
        confidence: of all intervals.
        seed: of the bootstrap.
        margin: the loss of accuracy that would matter.

    Returns:
        One row a task and run, the columns of `answered.runs` and: items; right; accuracy and its
        interval (Wilson); lost and won, items that only the baseline or only this run has right;
        difference of accuracy, its interval (Agresti and Min) and McNemar's exact p_value; within,
        whether the interval excludes a loss of `margin`; recovery, accuracy over the baseline's;
        changed, the share of answers that differ from the baseline's in a token; given_up, the
        baseline's log-likelihood of a token less this one's, nats; tokens_per_call with its
        interval over items; speedup, the baseline's seconds a token over this run's.
    """
    both = answered.data.merge(answered.seconds, on=["task", "item_id", "run"])
    tasks = [*answered.tasks, ALL] if len(answered.tasks) > 1 else [ALL]
    rows = []
    for task in tasks:
        mine = both if task == ALL else both[both["task"] == task]
        by_run = {run: part.reset_index(drop=True) for run, part in mine.groupby("run")}
        for run in answered.runs.index:
            alone = by_run[answered.runs["baseline"].iloc[run]]
            found = _counted(by_run[run], alone, confidence)
            found["within"] = found["difference_ci_low"] > -margin
            found |= _per_call(by_run[run], resamples, confidence, seed)
            rows.append({"task": task, "run": run, **answered.runs.iloc[run], **found})
    return pd.DataFrame(rows)


def _counted(mine: pd.DataFrame, alone: pd.DataFrame, confidence: float) -> dict[str, float]:
    """Return the columns of a run that compare it with its baseline, row by row the same items."""
    if mine["item_id"].tolist() != alone["item_id"].tolist():
        raise ValueError("two runs answered different items")
    right, before = mine["correct"].to_numpy(), alone["correct"].to_numpy()
    items, lost, won = len(right), int((before & ~right).sum()), int((right & ~before).sum())
    low, high = proportion(int(right.sum()), items, confidence)
    worst, best = difference(lost, won, items, confidence)
    is_baseline = mine["run"].iloc[0] == alone["run"].iloc[0]
    tokens = [part["n_tokens"].sum() for part in (mine, alone)]
    likelihood = [part["log_likelihood"].sum() for part in (mine, alone)]
    seconds = [part["seconds"].sum() for part in (mine, alone)]
    changed = (mine["common_prefix"] < np.maximum(mine["n_tokens"], alone["n_tokens"])).mean()
    return {
        "items": items,
        "right": int(right.sum()),
        "accuracy": float(right.mean()),
        "accuracy_ci_low": low,
        "accuracy_ci_high": high,
        "lost": lost,
        "won": won,
        "difference": (won - lost) / items,
        "difference_ci_low": 0.0 if is_baseline else worst,
        "difference_ci_high": 0.0 if is_baseline else best,
        "p_value": mcnemar(lost, won),
        "recovery": float(right.sum() / before.sum()) if before.any() else np.nan,
        "changed": float(changed),
        "given_up": float(likelihood[1] / tokens[1] - likelihood[0] / tokens[0]),
        "speedup": float((seconds[1] / tokens[1]) / (seconds[0] / tokens[0])),
    }


def _per_call(mine: pd.DataFrame, resamples: int, confidence: float, seed: int) -> dict[str, float]:
    """Return tokens a call, all calls together, with the interval over items."""
    emitted, calls = mine["emitted"].to_numpy(), mine["calls"].to_numpy()
    if calls.sum() == 0:
        return dict.fromkeys(
            ("tokens_per_call", "tokens_per_call_ci_low", "tokens_per_call_ci_high"), np.nan
        )
    bootstrap = PromptBootstrap(np.arange(len(mine)), resamples, confidence, seed)
    with np.errstate(invalid="ignore"):  # a resample of answers of one token has no call
        low, high = bootstrap.interval(bootstrap.sums(emitted) / bootstrap.sums(calls))
    return {
        "tokens_per_call": float(emitted.sum() / calls.sum()),
        "tokens_per_call_ci_low": float(low),
        "tokens_per_call_ci_high": float(high),
    }


def differing(answered: Answered) -> pd.DataFrame:
    """Return the answers that differ from the baseline's, side by side.

    Returns:
        task, item_id, method, draft_length, temperature, alone and answer (texts), alone_correct
        and correct, common_prefix and gap (the target's two largest logits where the answers
        part): a row an item and run, in the order of the items.
    """
    return _parted(answered).drop(columns="exact")


def partings(answered: Answered) -> pd.DataFrame:
    """Return those of `differing` whose method is to leave every answer as it is.

    They part at near-ties of the target, where a pass over several tokens rounds otherwise than a
    pass over one: their `gap` says how near.
    """
    found = _parted(answered)
    return found[found["exact"]].drop(columns="exact").reset_index(drop=True)


def _parted(answered: Answered) -> pd.DataFrame:
    data, runs = answered.data, answered.runs
    alone = data.assign(baseline=data["run"])[
        ["task", "item_id", "baseline", "answer", "correct", "n_tokens"]
    ].rename(columns={"answer": "alone", "correct": "alone_correct", "n_tokens": "alone_tokens"})
    mine = data.assign(
        **{name: runs[name].to_numpy()[data["run"]] for name in ("baseline", "method", "exact")}
    )
    pairs = mine.merge(alone, on=["task", "item_id", "baseline"], how="left")
    parts = pairs["common_prefix"] < np.maximum(pairs["n_tokens"], pairs["alone_tokens"])
    shown = ["task", "item_id", "method", "draft_length", "temperature", "alone_correct"]
    shown += ["correct", "common_prefix", "gap", "alone", "answer", "exact"]
    return pairs.loc[parts, shown].reset_index(drop=True)
