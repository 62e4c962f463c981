"""Answers to tasks under every method: accuracy, lost answers, and tokens a call.

A method is compared, item by item, with the target alone at the same temperature and noise.

To find how far a rule may be relaxed, a margin is fixed before the measurement: the loss of
accuracy that counts. A threshold *excludes* this loss if the one-sided lower bound of the paired
difference of accuracies is above minus the margin. Accuracy *falls* if the upper bound is below 0.
The thresholds of a rule are tested in a fixed order, each only if those before it passed: from
strict to relaxed for the margin, from relaxed to strict for a fall. So each claim holds at the
confidence of a single test, for any number of thresholds (Maurer, Hothorn and Lehmacher 1995). For
several rules Holm's correction over all thresholds of all rules of a target is given too.
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
    """The answers of one target with one drafter.

    Attributes:
        target: printed name.
        tasks: in order.
        runs: one row for each run, indexed by run: method, drafter, draft_length, temperature,
            baseline (a run), exact (whether it must give the baseline's tokens), and rule, an
            acceptance rule or None.
        data: one row for each item and run: task, item_id, run, answer, correct, n_tokens,
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
    """Return the accuracy of every run, for each task and for all together.

    Args:
        answered: the answers.
        resamples: of the bootstrap over items.
        confidence: of all intervals.
        seed: of the bootstrap.
        margin: the loss of accuracy that counts.

    Returns:
        One row for each task and run, with the columns of `answered.runs` and: items; right;
        accuracy and its interval (Wilson); lost and won, items that only the baseline or only this
        run has right; difference of accuracy, its interval (Agresti and Min) and McNemar's exact
        p_value; within, whether the interval excludes a loss of `margin`; recovery, accuracy over
        the baseline's, with the interval of the difference over it; changed, the share of answers
        that differ from the baseline's; nats_given_up, the nats a token by which emitted tokens are
        less probable than the target's first choices, minus the baseline's; departures, the share
        of tokens that are not the target's first choice; tokens_per_call with its interval over
        items; speedup, the baseline's seconds a token over this run's; and the columns of
        `finished_costs`.
    """
    both = answered.data.merge(answered.seconds, on=["task", "item_id", "run"])
    tasks = [*answered.tasks, ALL] if len(answered.tasks) > 1 else [ALL]
    rows = []
    for task in tasks:
        part = both if task == ALL else both[both["task"] == task]
        by_run = {run: answers.reset_index(drop=True) for run, answers in part.groupby("run")}
        bootstrap = PromptBootstrap(np.arange(len(by_run[0])), resamples, confidence, seed)
        for run in answered.runs.index:
            own, alone = by_run[run], by_run[answered.runs["baseline"].iloc[run]]
            row = _compared(own, alone, confidence)
            row["within"] = row["difference_ci_low"] > -margin
            emitted, calls = (own[name].to_numpy() for name in ("emitted", "calls"))
            with np.errstate(invalid="ignore"):  # answers of one token have no call
                row["tokens_per_call"] = float(emitted.sum() / np.float64(calls.sum()))
                draws = bootstrap.sums(emitted) / bootstrap.sums(calls)
            low, high = map(float, bootstrap.interval(draws))
            row |= {"tokens_per_call_ci_low": low, "tokens_per_call_ci_high": high}
            row |= finished_costs(own, alone, bootstrap)
            rows.append({"task": task, "run": run, **answered.runs.iloc[run], **row})
    return pd.DataFrame(rows)


def _compared(answers: pd.DataFrame, alone: pd.DataFrame, confidence: float) -> dict[str, float]:
    """Return the comparison of a run with its baseline, which has the same items row by row."""
    if answers["item_id"].tolist() != alone["item_id"].tolist():
        raise ValueError("two runs answered different items")
    right, before = answers["correct"].to_numpy(), alone["correct"].to_numpy()
    items, lost, won = len(right), int((before & ~right).sum()), int((right & ~before).sum())
    low, high = proportion(int(right.sum()), items, confidence)
    same = answers["run"].iloc[0] == alone["run"].iloc[0]
    worst, best = (0.0, 0.0) if same else difference(lost, won, items, confidence)
    sums = [part[["n_tokens", "nats_given_up", "seconds"]].sum() for part in (answers, alone)]
    tokens, nats, seconds = (np.array([totals[name] for totals in sums]) for name in sums[0].index)
    changed = answers["common_prefix"] < np.maximum(answers["n_tokens"], alone["n_tokens"])
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
        "departures": float(answers["departures"].sum() / tokens[0]),
        "speedup": float(pace[1] / pace[0]),
    }


def differing(answered: Answered) -> pd.DataFrame:
    """Return the answers that differ from the baseline's, with the baseline's answers.

    Returns:
        One row for each item and run, in the order of the items: task, item_id, method,
        draft_length, temperature, alone_correct, correct, common_prefix, gap (of the target's two
        largest logits at the first difference), alone and answer (texts), exact. An exact method
        must not change answers; it may differ at near-ties only, as a pass over several tokens
        rounds differently from a pass over one.
    """
    runs, keys = answered.runs, ["task", "item_id"]
    pairs = differing_answers(answered.data, list(runs["baseline"]), keys, "answer", "correct")
    pairs = pairs.join(runs[["method", "exact"]], on="run")
    shown = [*keys, "method", "draft_length", "temperature", "alone_correct", "correct"]
    shown += ["common_prefix", "gap", "alone_answer", "answer", "exact"]
    return pairs[shown].rename(columns={"alone_answer": "alone"}).reset_index(drop=True)


def families(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the relaxed rules of runs as families, each from strict to relaxed.

    Args:
        runs: as in `Answered`, with rule (or None) and exact.

    Returns:
        One row for each relaxed run: family (the rule with its fixed parameters), parameter (the
        varied one; empty if the rule has none), value, run and group, the number of the family.
        Other drafters, draft lengths or temperatures are other families.
    """
    chosen = runs[runs["rule"].notna() & ~runs["exact"]]
    groups: dict[tuple[object, ...], list[tuple[float, int]]] = {}
    for run, rule, *setting in chosen[
        ["rule", "drafter", "draft_length", "temperature"]
    ].itertuples(name=None):
        parameter = _varied(rule, chosen["rule"].tolist())
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


def _varied(rule: Rule, others: Sequence[Rule]) -> str:
    """Return the parameter that alone varies between a rule and another, else the rule's first."""
    parameters = [key for key in rule.relaxes if key in rule.parameters]
    for key in parameters:
        variants = [{**other.parameters, key: None} for other in others if other.name == rule.name]
        if variants.count({**rule.parameters, key: None}) > 1:
            return key
    return parameters[0] if parameters else ""


def decide(
    table: pd.DataFrame, runs: pd.DataFrame, margin: float, confidence: float
) -> pd.DataFrame:
    """Decide for every threshold whether a loss above the margin is excluded, or accuracy falls.

    Args:
        table: from `accuracy`; only the rows of all tasks together are used.
        runs: of the same answers.
        margin: the loss of accuracy that counts, fixed beforehand.
        confidence: of each one-sided bound.

    Returns:
        One row for each relaxed run, family by family and from strict to relaxed: family,
        parameter, value, run, items, lost, won, difference, worst and best (the one-sided bounds of
        the difference), excluded and falls (this threshold alone), up_to and down_to (also all
        stricter ones, also all more relaxed ones), p_holm (of a loss of `margin` or more, corrected
        for all runs of the table), up_to_together (p_holm is small enough for this and all stricter
        thresholds), wins (up_to, and the seconds of a finished answer fall: the upper limit of
        their ratio is below 1).
    """
    totals = table[table["task"] == ALL].set_index("run")
    counted = ["method", "draft_length", "temperature", "items", "lost", "won"]
    decided = families(runs).join(totals[[*counted, "seconds_ratio_ci_high"]], on="run")
    ends = [
        difference(int(lost), int(won), int(items), 2 * confidence - 1)
        for lost, won, items in decided[["lost", "won", "items"]].to_numpy()
    ]
    decided["difference"] = (decided["won"] - decided["lost"]) / decided["items"]
    decided["worst"], decided["best"] = np.reshape(ends, (-1, 2)).T
    decided["excluded"], decided["falls"] = decided["worst"] > -margin, decided["best"] < 0
    decided["up_to"] = decided.groupby("group")["excluded"].cummin().astype(bool)
    decided["down_to"] = decided[::-1].groupby("group")["falls"].cummin().astype(bool)
    decided["p_holm"] = holm(
        [
            loss_p_value(int(lost), int(won), int(items), margin)
            for lost, won, items in decided[["lost", "won", "items"]].to_numpy()
        ]
    )
    together = decided["excluded"] & (decided["p_holm"] < 1 - confidence)
    decided["up_to_together"] = together.groupby(decided["group"]).cummin().astype(bool)
    decided["wins"] = decided["up_to"] & (decided["seconds_ratio_ci_high"] < 1)
    return decided.drop(columns=["group", "seconds_ratio_ci_high"])


def losses_on_answers(
    answered: Answered, table: pd.DataFrame, margin: float, confidence: float
) -> pd.DataFrame:
    """Return the decisions on every relaxed rule with its scored answers.

    Args:
        answered: the answers of a target.
        table: of `accuracy`.
        margin: the loss of accuracy that counts.
        confidence: of each bound.

    Returns:
        The rows of `decide` with rule (a label), drafter, margin, rules (the number of rows), right
        and alone: the number of items that the rule, and the target alone, have right.
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
    """Return the most relaxed excluded threshold and the first fall of every family.

    Returns:
        One row for each family: family, parameter, draft_length, temperature; largest (the most
        relaxed excluded value) and its bound worst; first (the strictest value with a fall) and its
        bound best; NaN if there is none.
    """
    keys = ["family", "parameter", "draft_length", "temperature"]
    groups = decided.groupby(keys, sort=False)
    safe = decided[decided["up_to"]].groupby(keys)[["value", "worst"]].last()
    falling = decided[decided["down_to"]].groupby(keys)[["value", "best"]].first()
    ends = safe.rename(columns={"value": "largest"}), falling.rename(columns={"value": "first"})
    return groups.size().to_frame().join(list(ends)).drop(columns=0).reset_index()


def decisions_in_words(decided: pd.DataFrame) -> dict[int, str]:
    """Return the decision on every run in a word or two."""
    columns = {"up_to": "excluded", "down_to": "falls"}
    return {
        int(row["run"]): " and ".join(text for key, text in columns.items() if row[key]) or "open"
        for row in decided.to_dict("records")
    }
