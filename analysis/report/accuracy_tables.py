"""Accuracy on tasks: how many right answers a decoding method loses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..decoding.paired_accuracy import ALL, Answered, differing, losses
from ..rules import Mars
from ..statistics.estimate import Estimate, interval_columns
from .decoding_tables import setting_columns
from .mars_figures import thresholds_figure
from .table import Section, Table, concat_targets, rows_by_method
from .text import UNDEFINED, estimate_texts, number_text, percent_text


def accuracy_sections(
    drafter: str,
    answered: Sequence[Answered],
    tables: Sequence[pd.DataFrame],
    tolerated_loss: float,
    confidence: float,
) -> list[Section]:
    """Return the section on right answers, and a section for the timed results beside them.

    `tables` are those of `analysis.decoding.paired_accuracy.accuracy`, one for each target.
    """
    title = f"Right answers when decoding with {drafter}"
    swept = []
    for table in tables:
        totals = table[table["task"] == ALL]
        theta = [rule.theta if isinstance(rule, Mars) else math.nan for rule in totals["rule"]]
        swept.append(totals.assign(theta=theta))
    figure = thresholds_figure([pair.target for pair in answered], swept, "accuracy")
    shown = [accuracy_table(answered, tables, tolerated_loss, confidence)]
    return [
        Section(title, shown, [f"{tasks_sentence(pair)}." for pair in answered]),
        Section(f"{title}: speed", [figure], timed=True),
    ]


def accuracy_table(
    answered: Sequence[Answered],
    tables: Sequence[pd.DataFrame],
    tolerated_loss: float,
    confidence: float,
) -> Table:
    """Return the accuracy of every method by task and over all, paired with the target alone."""
    data = concat_targets(
        (pair.target, table.assign(decided=table["run"].map(losses(table)["decision"])))
        for pair, table in zip(answered, tables, strict=True)
    ).drop(columns="speedup")
    alone = data["drafter"] == "none"  # compared with itself
    points = 100 * data[["difference", *interval_columns("difference")]].mask(alone)
    changes = data["lost"].astype(str) + ", " + data["won"].astype(str)
    decided = data["decided"].astype(object).where(data["task"] == ALL)
    columns: dict[str, Any] = {
        **setting_columns(data),
        "items": data["items"].map(str),
        "right": data["accuracy"].map(percent_text),
        "lost, won": changes.mask(alone, UNDEFINED),
        "difference": estimate_texts(
            Estimate.read(points, "difference"), digits=1, distinct_from=[-100 * tolerated_loss, 0]
        ),
        "p": [number_text(p, 3) for p in data["p_value"].mask(alone)],
        "decided": decided.fillna(UNDEFINED),
        "recovery": [number_text(share, 3) for share in data["recovery"]],
        "changed": data["changed"].map(percent_text),
        "nats given up": [number_text(nats, 4) for nats in data["nats_given_up"]],
        "τ": data["tokens_per_call"].map(number_text),
    }
    rows = ["task", "method"] if len(data["task"].unique()) > 1 else ["method"]
    return Table(
        "accuracy_losses",
        "What a method costs in right answers",
        "Lost, won: items that only the target, or only the method, answers right. Difference in "
        f"points with its {100 * confidence:g} % interval, paired by item (Agresti and Min); p: "
        "McNemar's exact test. Decided: a loss is excluded where the interval lies above minus "
        f"{100 * tolerated_loss:g} points, accuracy falls where it lies below 0. After Table 2 of "
        "MARS.",
        data,
        rows_by_method(data, columns, rows),
    )


def tasks_sentence(pair: Answered) -> str:
    """Return a line that names a target's tasks, and the answers that exact methods changed."""
    items = pair.answers["item_id"].groupby(pair.answers["run"]).size().iloc[0]
    text = f"{pair.target}: {items} items of the tasks {', '.join(pair.tasks)}"
    is_alone = pair.runs["drafter"] == "none"
    if pair.runs["exact"].sum() <= is_alone.sum():
        return text
    changed = differing(pair).query("exact").to_dict("records")
    text += f"; methods that must not change answers changed {len(changed) or 'none'}"
    where = ", ".join(
        f"{row['task']}/{row['item_id']} with {row['method']} (gap {row['gap']:.1e})"
        for row in changed
    )
    return f"{text}: {where}" if changed else text
