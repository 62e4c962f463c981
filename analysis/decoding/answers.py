"""Answers to tasks under every method: accuracy, what a method loses, and tokens a call.

A method is compared with the target alone at the same temperature and noise, item by item.

How far a rule may be relaxed: a margin is fixed before anything is measured, the loss of accuracy
that matters. A threshold *excludes* it where the one-sided lower bound of the paired difference of
accuracies lies above minus the margin. Accuracy *falls* where the upper bound lies below 0. The
thresholds of one rule are tested in a fixed order, each only if those before it passed: from strict
to relaxed for the margin, from relaxed to strict for a fall. So each claim holds at the confidence
of one test, however many thresholds there are (Maurer, Hothorn and Lehmacher 1995). Several rules
are several tests: beside stands Holm's correction over all thresholds of all rules of a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..rules.rule import Rule
from ..statistics.bootstrap import PromptBootstrap
from ..statistics.proportions import difference, holm, loss_p_value, mcnemar, proportion
from .finished import differing_answers, finished_costs

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
            nats_given_up, departures, common_prefix, gap, calls, emitted, ...
        seconds: task, item_id, run, seconds.
    """

    target: str
    tasks: Sequence[str]
    runs: pd.DataFrame
    data: pd.DataFrame
    seconds: pd.DataFrame


def accuracy(
    answered: Answered, resamples: int, confidence: float, seed: int, margin: float
) -> pd.DataFrame:
    """Return what every run has right, of each task and of all together.

    Args:
        answered: the answers.
        resamples: of the bootstrap over items.
        confidence: of all intervals.
        seed: of the bootstrap.
        margin: the loss of accuracy that would matter.

    Returns:
        One row a task and run, the columns of `answered.runs` and: items; right; accuracy and its
        interval (Wilson); lost and won, items that only the baseline or only this run has right;
        difference of accuracy, its interval (Agresti and Min) and McNemar's exact p_value; within,
        whether the interval excludes a loss of `margin`; recovery, accuracy over the baseline's,
        with the interval of the difference over it; changed, the share of answers that differ from
        the baseline's in a token; nats_given_up, the nats a token by which its log-probability lies
        below that of the target's first choice, less the baseline's; departures, the share of
        tokens that are not the target's first choice; tokens_per_call with its interval over items;
        speedup, the baseline's seconds a token over this run's; and what `finished_costs` returns.
    """
    both = answered.data.merge(answered.seconds, on=["task", "item_id", "run"])
    tasks = [*answered.tasks, ALL] if len(answered.tasks) > 1 else [ALL]
    rows = []
    for task in tasks:
        part = both if task == ALL else both[both["task"] == task]
        by_run = {run: one.reset_index(drop=True) for run, one in part.groupby("run")}
        bootstrap = PromptBootstrap(np.arange(len(by_run[0])), resamples, confidence, seed)
        for run in answered.runs.index:
            mine, alone = by_run[run], by_run[answered.runs["baseline"].iloc[run]]
            found = _compared(mine, alone, confidence)
            found["within"] = found["difference_ci_low"] > -margin
            emitted, calls = (mine[name].to_numpy() for name in ("emitted", "calls"))
            with np.errstate(invalid="ignore"):  # answers of one token have no call
                found["tokens_per_call"] = float(emitted.sum() / np.float64(calls.sum()))
                draws = bootstrap.sums(emitted) / bootstrap.sums(calls)
            low, high = map(float, bootstrap.interval(draws))
            found |= {"tokens_per_call_ci_low": low, "tokens_per_call_ci_high": high}
            found |= finished_costs(mine, alone, bootstrap)
            rows.append({"task": task, "run": run, **answered.runs.iloc[run], **found})
    return pd.DataFrame(rows)


def _compared(mine: pd.DataFrame, alone: pd.DataFrame, confidence: float) -> dict[str, float]:
    """Return the columns of a run that compare it with its baseline, row by row the same items."""
    if mine["item_id"].tolist() != alone["item_id"].tolist():
        raise ValueError("two runs answered different items")
    right, before = mine["correct"].to_numpy(), alone["correct"].to_numpy()
    items, lost, won = len(right), int((before & ~right).sum()), int((right & ~before).sum())
    low, high = proportion(int(right.sum()), items, confidence)
    same = mine["run"].iloc[0] == alone["run"].iloc[0]
    worst, best = (0.0, 0.0) if same else difference(lost, won, items, confidence)
    sums = [part[["n_tokens", "nats_given_up", "seconds"]].sum() for part in (mine, alone)]
    tokens, nats, seconds = (np.array([one[name] for one in sums]) for name in sums[0].index)
    changed = mine["common_prefix"] < np.maximum(mine["n_tokens"], alone["n_tokens"])
    of_token, pace = nats / tokens, seconds / tokens
    base = before.mean() or np.nan
    return {
        "items": items,
        "right": int(right.sum()),
        "accuracy": float(right.mean()),
        "accuracy_ci_low": low,
        "accuracy_ci_high": high,
        "lost": lost,
        "won": won,
        "difference": (won - lost) / items,
        "difference_ci_low": worst,
        "difference_ci_high": best,
        "p_value": mcnemar(lost, won),
        "recovery": float(right.sum() / (before.sum() or np.nan)),
        "recovery_ci_low": float(np.maximum(0.0, 1 + worst / base)),
        "recovery_ci_high": float(1 + best / base),
        "changed": float(changed.mean()),
        "nats_given_up": float(of_token[0] - of_token[1]),
        "departures": float(mine["departures"].sum() / tokens[0]),
        "speedup": float(pace[1] / pace[0]),
    }


def differing(answered: Answered) -> pd.DataFrame:
    """Return the answers that differ from the baseline's, side by side.

    Returns:
        task, item_id, method, draft_length, temperature, alone_correct and correct, common_prefix
        and gap (of the target's two largest logits where the answers part), alone and answer
        (texts), exact: a row an item and run, in the order of the items. An exact method, which is
        to leave every answer as it is, parts at near-ties only: a pass over several tokens rounds
        otherwise than a pass over one.
    """
    runs, keys = answered.runs, ["task", "item_id"]
    found = differing_answers(answered.data, list(runs["baseline"]), keys, "answer", "correct")
    found = found.join(runs[["method", "exact"]], on="run")
    shown = [*keys, "method", "draft_length", "temperature", "alone_correct", "correct"]
    shown += ["common_prefix", "gap", "alone_answer", "answer", "exact"]
    return found[shown].rename(columns={"alone_answer": "alone"}).reset_index(drop=True)


def families(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the relaxed rules of runs, each with its thresholds from strict to relaxed.

    Args:
        runs: as of `Answered`, with rule (or None) and exact.

    Returns:
        One row a relaxed run: family (the rule with the parameters that stay), parameter (that is
        turned; empty where the rule has none), value, run and group, the number of the family:
        rules of other drafters, draft lengths or temperatures are other families.
    """
    chosen = runs[runs["rule"].notna() & ~runs["exact"]]
    groups: dict[tuple[object, ...], list[tuple[float, int]]] = {}
    for run, rule, *setting in chosen[
        ["rule", "drafter", "draft_length", "temperature"]
    ].itertuples(name=None):
        parameter = _turned(rule, chosen["rule"].tolist())
        fixed = {key: value for key, value in rule.parameters.items() if key != parameter}
        shown = [f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
                 for key, value in fixed.items()]  # fmt: skip
        key = (" ".join([rule.name, *shown]), parameter, rule.relaxes.get(parameter, 1), *setting)
        value = float(rule.parameters[parameter]) if parameter else 0.0
        groups.setdefault(key, []).append((value, run))
    rows = [
        (name, parameter, value, run, group)
        for group, ((name, parameter, sign, *_), members) in enumerate(groups.items())
        for value, run in sorted(members, key=lambda member: sign * member[0])  # type: ignore[operator]
    ]
    return pd.DataFrame(rows, columns=["family", "parameter", "value", "run", "group"])


def _turned(rule: Rule, others: Sequence[Rule]) -> str:
    """Return the parameter in which a rule differs from others alone, else its first."""
    dials = [key for key in rule.relaxes if key in rule.parameters]
    for key in dials:
        rest = [{**other.parameters, key: None} for other in others if other.name == rule.name]
        if rest.count({**rule.parameters, key: None}) > 1:
            return key
    return dials[0] if dials else ""


def decide(
    table: pd.DataFrame, runs: pd.DataFrame, margin: float, confidence: float
) -> pd.DataFrame:
    """Decide of every threshold whether a loss above the margin is excluded, or accuracy falls.

    Args:
        table: of `accuracy`; the rows of all tasks together are taken.
        runs: of the same answers.
        margin: the loss of accuracy that matters, fixed beforehand.
        confidence: of each one-sided bound.

    Returns:
        One row a relaxed run, families one after the other and each from strict to relaxed:
        family, parameter, value, run, items, lost, won, difference, worst and best (the one-sided
        bounds of the difference), excluded and falls (this threshold alone), up_to and down_to
        (with all that are stricter, with all that are more relaxed), p_holm (of a loss of `margin`
        or more, corrected for all runs here), up_to_together (p_holm is small enough, here and of
        all that are stricter), wins (up_to, and the seconds of a finished answer fall: their
        ratio's upper limit lies below 1).
    """
    totals = table[table["task"] == ALL].set_index("run")
    counted = ["method", "draft_length", "temperature", "items", "lost", "won"]
    found = families(runs).join(totals[[*counted, "seconds_ratio_ci_high"]], on="run")
    ends = [
        difference(int(lost), int(won), int(items), 2 * confidence - 1)
        for lost, won, items in found[["lost", "won", "items"]].to_numpy()
    ]
    found["difference"] = (found["won"] - found["lost"]) / found["items"]
    found["worst"], found["best"] = np.reshape(ends, (-1, 2)).T
    found["excluded"], found["falls"] = found["worst"] > -margin, found["best"] < 0
    found["up_to"] = found.groupby("group")["excluded"].cummin().astype(bool)
    found["down_to"] = found[::-1].groupby("group")["falls"].cummin().astype(bool)
    found["p_holm"] = holm(
        [
            loss_p_value(int(lost), int(won), int(items), margin)
            for lost, won, items in found[["lost", "won", "items"]].to_numpy()
        ]
    )
    together = found["excluded"] & (found["p_holm"] < 1 - confidence)
    found["up_to_together"] = together.groupby(found["group"]).cummin().astype(bool)
    found["wins"] = found["up_to"] & (found["seconds_ratio_ci_high"] < 1)
    return found.drop(columns=["group", "seconds_ratio_ci_high"])


def losses_on_answers(
    answered: Answered, table: pd.DataFrame, margin: float, confidence: float
) -> pd.DataFrame:
    """Return the scored answers of every relaxed rule.

    Args:
        answered: the answers of a target.
        table: of `accuracy`.
        margin: the loss of accuracy that matters.
        confidence: of each bound.

    Returns:
        The rows of `decide` with rule (a label), drafter, margin, rules (how many rows there are),
        right and alone: items that the rule, and the target alone, have right.
    """
    decided = decide(table, answered.runs, margin, confidence)
    right = table[table["task"] == ALL].set_index("run")["right"]
    runs = answered.runs.loc[decided["run"]]
    return decided.assign(
        rule=[rule.label for rule in runs["rule"]],
        drafter=runs["drafter"].to_numpy(),
        margin=margin,
        rules=len(decided),
        right=right.loc[decided["run"]].to_numpy(),
        alone=right.loc[runs["baseline"]].to_numpy(),
    )


def threshold_limits(decided: pd.DataFrame) -> pd.DataFrame:
    """Return of every family the run of the largest excluded threshold, and of the first fall.

    Returns:
        One row a family: family, parameter, draft_length, temperature, largest and its worst, first
        and its best: values of the parameter and bounds, NaN where there is none.
    """
    keys = ["family", "parameter", "draft_length", "temperature"]
    groups = decided.groupby(keys, sort=False)
    safe = decided[decided["up_to"]].groupby(keys)[["value", "worst"]].last()
    falling = decided[decided["down_to"]].groupby(keys)[["value", "best"]].first()
    ends = safe.rename(columns={"value": "largest"}), falling.rename(columns={"value": "first"})
    return groups.size().to_frame().join(list(ends)).drop(columns=0).reset_index()


def verdicts(decided: pd.DataFrame) -> dict[int, str]:
    """Return of every run what was decided, in a word or two."""
    columns = {"up_to": "excluded", "down_to": "falls"}
    return {
        int(row["run"]): " and ".join(text for key, text in columns.items() if row[key]) or "open"
        for row in decided.to_dict("records")
    }
