"""Answers to tasks in the report: the accuracy of each method, and the cost of relaxing.

Tokens a call, accuracy and speedup by task have the layout of Tables 2 and 1 of the MARS paper
(arXiv 2601.15498), recovery that of its Figure 3. `tables` are the results of
`analysis.decoding.answers.accuracy`, one for each target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from ...decoding.answers import ALL, Answered, differing, losses
from ...rules import Mars
from ..records import Column, Figure, Section, Table, across, together, worded
from ..style import LEGEND_ROW, LEVEL, LINES, TEXT, error_bars, legend, styled
from ..text import limits, number_text, share_text, times_text
from .decoding_speed import thresholds_figure

SHOWN = 12  # differing answers on the page; the CSV file has all
LETTERS = 90  # printed of an answer
WIDE_LABEL = 48  # letters beyond which a legend has one column
COMPARED = ["lost", "difference_ci_low", "p_value"]  # with the target alone
KEYS = ["target", "task", "method", "draft_length", "temperature"]
Tables = Sequence[pd.DataFrame]


def accuracy_sections(
    drafter: str, answered: Sequence[Answered], tables: Tables, margin: float, confidence: float
) -> list[Section]:
    """Return the section on answers, and the one of its results that depend on the clock.

    Args:
        drafter: printed name.
        answered: of every target.
        tables: of every target.
        margin: the loss of accuracy that counts.
        confidence: of the intervals.
    """
    facts = {"margin": f"{100 * margin:g} points", "confidence": f"{100 * confidence:g} %"}
    frames = {
        pair.target: table.assign(decided=table["run"].map(losses(table)["decision"]))
        for pair, table in zip(answered, tables, strict=True)
    }
    data = together(frames)
    tasks = [*answered[0].tasks, ALL] if len(answered[0].tasks) > 1 else [ALL]
    shown = [
        losses_table(data, facts),
        tasks_table(data, tasks),
        recovery_figure(answered, tables),
        differing_table(answered),
    ]
    return [
        Section(
            f"Right answers when decoding with {drafter}",
            shown,
            [f"{tasks_sentence(pair)}." for pair in answered],
        ),
        Section(
            "Answers: what depends on the clock",
            [
                task_speed_table(data, tasks),
                thresholds_figure(
                    [pair.target for pair in answered],
                    [swept(table) for table in tables],
                    "accuracy",
                    "accuracy_thresholds",
                ),
            ],
            timed=True,
        ),
    ]


def swept(table: pd.DataFrame) -> pd.DataFrame:
    """Return the answers to all tasks together, with the threshold of MARS, NaN of others."""
    totals = table[table["task"] == ALL]
    theta = [rule.theta if isinstance(rule, Mars) else math.nan for rule in totals["rule"]]
    return totals.assign(theta=theta)


def tasks_sentence(pair: Answered) -> str:
    """Return a line with a target's tasks, and the answers that exact methods changed."""
    items = pair.data["item_id"].groupby(pair.data["run"]).size().iloc[0]
    text = f"{pair.target}: {items} items of the tasks {', '.join(pair.tasks)}"
    if not pair.runs["exact"].sum() > (pair.runs["drafter"] == "none").sum():
        return text
    changed = differing(pair).query("exact")
    if changed.empty:
        return f"{text}; methods that must not change answers changed none"
    where = ", ".join(
        f"{row['task']}/{row['item_id']} with {row['method']} (gap {row['gap']:.1e})"
        for _, row in changed.iterrows()
    )
    return f"{text}; methods that must not change answers changed {len(changed)}: {where}"


def _interval(name: str) -> tuple[str, str, str]:
    return name, *limits(name)


def losses_table(data: pd.DataFrame, facts: dict[str, Any]) -> Table:
    """Return the table of accuracy over all tasks, paired with the target alone.

    Args:
        data: accuracy and decisions of all targets.
        facts: margin and confidence as printed.
    """
    untimed = data.drop(columns=["speedup"])
    shown = untimed[untimed["task"] == ALL]
    alone = shown["drafter"] == "none"  # compared with itself
    return Table(
        **worded("accuracy_losses", **facts),
        data=untimed,
        shown=shown.assign(**{name: shown[name].mask(alone) for name in COMPARED}),
    )


def tasks_table(data: pd.DataFrame, tasks: Sequence[str]) -> Table:
    """Return tokens a call and accuracy of every method by task: Table 2 without its speeds."""
    columns = [Column("τ", number_text, "tokens_per_call"), Column("acc.", share_text, "accuracy")]
    return Table(
        **worded("accuracy_by_task", more=across(tasks, columns, key="task")),
        data=data[[*KEYS, *(str(column.values) for column in columns)]],
        shown=data,
    )


def task_speed_table(data: pd.DataFrame, tasks: Sequence[str]) -> Table:
    """Return speedup and tokens a call by task: Table 1."""
    columns = [
        Column("speedup", times_text, "speedup"),
        Column("τ", number_text, "tokens_per_call"),
    ]
    return Table(
        **worded("accuracy_speed", more=across(tasks, columns, key="task")),
        data=data[[*KEYS, "speedup", "tokens_per_call"]],
        shown=data,
    )


def differing_table(answered: Sequence[Answered]) -> Table | None:
    """Return the answers that differ from the target's own; None if there are none.

    Temperature 0 only, as sampled answers differ in any case.
    """
    data = together({pair.target: differing(pair).drop(columns="exact") for pair in answered})
    data = data[data["temperature"] == 0].reset_index(drop=True)
    if data.empty:
        return None
    same = data["alone_correct"] == data["correct"]
    first = data.loc[same.sort_values(kind="stable").index].groupby("target", sort=False)
    shown = first.head(SHOWN)
    marks = shown[["alone_correct", "correct"]].replace({True: "right", False: "wrong"})
    return Table(
        **worded("accuracy_differing"),
        data=data,
        shown=shown.assign(
            marks=marks["alone_correct"] + ", " + marks["correct"],
            alone=shown["alone"].map(_beginning),
            answer=shown["answer"].map(_beginning),
        ),
        notes=[f"{len(data)} answers differ; the CSV file has all of them in full."],
    )


def _beginning(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LETTERS else f"{line[:LETTERS].rstrip()} …"


@styled
def recovery_figure(answered: Sequence[Answered], tables: Tables) -> Figure | None:
    """Draw accuracy over that of the target alone, by method and task: Figure 3 of MARS."""
    scores = together({pair.target: table for pair, table in zip(answered, tables, strict=True)})
    shown = ["task", "run", "method", "draft_length", "items", *_interval("recovery"), "target"]
    data = scores.loc[scores["drafter"] != "none", [*shown, "temperature"]].reset_index(drop=True)
    if data.empty:
        return None
    data["label"] = data["method"] + ", γ = " + data["draft_length"].astype(str)
    panels = list(data.groupby(["target", "temperature"], sort=False))
    labels = list(data["label"].drop_duplicates())
    columns = 2 if max(map(len, labels)) < WIDE_LABEL else 1  # of the legend
    height = 0.3 + 2.2 * len(panels) + LEGEND_ROW * -(-len(labels) // columns)
    drawing = Drawing(figsize=(TEXT, height), layout="constrained")
    axes = drawing.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, (key, part) in zip(axes, panels, strict=True):
        target, t = str(key[0]), part["temperature"].iloc[0]
        tasks, runs = part["task"].drop_duplicates().tolist(), part["run"].drop_duplicates()
        apart = 0.8 / max(1, len(runs))
        for place, run in enumerate(runs):
            of_run = part[part["run"] == run].set_index("task").loc[tasks]
            label = of_run["label"].iloc[0]
            style = labels.index(label)
            value, low, high = (100 * of_run[name] for name in _interval("recovery"))
            axis.errorbar(
                np.arange(len(tasks)) + apart * (place - (len(runs) - 1) / 2),
                value,
                yerr=error_bars(value, low, high),
                fmt="os^Dv"[style % 5],
                color=LINES[style % len(LINES)][0],
                markersize=3,
                elinewidth=0.7,
                label=label,
            )
        axis.axhline(100, **LEVEL)
        axis.set_xticks(range(len(tasks)), tasks)
        axis.set_ylabel("recovery, %")
        axis.set_title(f"{target}, T = {t:g}")
    legend(drawing, axes, columns)
    data = data.drop(columns="label")
    return Figure(**worded("accuracy_recovery"), data=data, drawing=drawing)
