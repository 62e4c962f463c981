"""Answers in the layout of the MARS paper: its Tables 1 and 2, and its Figure 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd

from ..decoding.answers import ALL, Answered
from .figure import Figure
from .style import LEVEL, LINES, TEXT, legend, styled
from .table import Cell, Section, Table
from .text import UNDEFINED, number_text, share_text


def tokens_table(answered: Sequence[Answered], tables: Sequence[pd.DataFrame]) -> Table:
    """Tokens a call and accuracy of every method, task by task: Table 2 without its clock."""
    return _by_task(
        answered,
        tables,
        "accuracy_by_task",
        "Tokens a call and right answers by task",
        "τ: tokens that a call of the target emits. Acc.: share of the items of the task that are "
        "right. The layout is that of Table 2 of the MARS paper; its speedup is "
        "in a table of its own, since it depends on the clock.",
        {"τ": ("tokens_per_call", number_text), "acc.": ("accuracy", share_text)},
    )


def speed_table(answered: Sequence[Answered], tables: Sequence[pd.DataFrame]) -> Table:
    """Speedup and tokens a call of every method, task by task: Table 1."""
    return _by_task(
        answered,
        tables,
        "accuracy_speed",
        "Speedup and tokens a call by task",
        "Speedup: seconds a token of the target alone over those of the method, on the same items "
        "in the same minutes. τ: tokens that a call of the target emits. The layout is that of "
        "Table 1 of the MARS paper. On a machine that does other work these numbers mean little.",
        {
            "speedup": ("speedup", lambda value: f"{number_text(value)}×"),
            "τ": ("tokens_per_call", number_text),
        },
    )


def _by_task(
    answered: Sequence[Answered],
    tables: Sequence[pd.DataFrame],
    name: str,
    title: str,
    caption: str,
    columns: dict[str, tuple[str, Callable[[float], str]]],
) -> Table:
    tasks = [*answered[0].tasks, ALL] if len(answered[0].tasks) > 1 else [ALL]
    sections, data = [], []
    for one, table in zip(answered, tables, strict=True):
        found: Any = table.set_index(["run", "task"])
        rows = []
        for run, row in one.runs.iterrows():
            texts = ["" if row["drafter"] == "none" else str(row["draft_length"])]
            texts[0] = texts[0] or UNDEFINED
            texts.append(f"{row['temperature']:g}")
            for task in tasks:
                texts += [
                    UNDEFINED if pd.isna(value := found[key][run, task]) else text(value)
                    for key, text in columns.values()
                ]
            rows.append((row["method"], [Cell(text) for text in texts]))
        sections.append(Section(one.target if len(answered) > 1 else "", rows))
        keys = ["task", "method", "draft_length", "temperature"]
        kept = [*keys, *(key for key, _ in columns.values())]
        data.append(table[kept].assign(target=one.target)[["target", *kept]])
    return Table(
        name,
        title,
        caption,
        "Method",
        [("", 2), *((task, len(columns)) for task in tasks)],
        ["γ", "T", *(list(columns) * len(tasks))],
        sections,
        pd.concat(data, ignore_index=True),
    )


@styled
def recovery_figure(answered: Sequence[Answered], tables: Sequence[pd.DataFrame]) -> Figure | None:
    """Accuracy of every method over that of the target alone, by task: Figure 3 of MARS."""
    from matplotlib.figure import Figure as Drawing

    frames = [_recoveries(one, table) for one, table in zip(answered, tables, strict=True)]
    data = pd.concat(frames, ignore_index=True)
    if data.empty:
        return None
    drawing = Drawing(figsize=(TEXT, 0.5 + 2.2 * len(answered)), layout="constrained")
    axes = drawing.subplots(len(answered), 1, squeeze=False)[:, 0]
    for axis, one in zip(axes, answered, strict=True):
        part = data[data["target"] == one.target]
        tasks, methods = part["task"].drop_duplicates().tolist(), part["run"].drop_duplicates()
        apart = 0.8 / max(1, len(methods))
        for place, (run, (color, _)) in enumerate(zip(methods, cycle(LINES), strict=False)):
            mine = part[part["run"] == run].set_index("task").loc[tasks]
            at = np.arange(len(tasks)) + apart * (place - (len(methods) - 1) / 2)
            value = 100 * mine["recovery"].to_numpy()
            ends = 100 * mine[["recovery_ci_low", "recovery_ci_high"]].to_numpy().T
            axis.errorbar(
                at,
                value,
                yerr=np.nan_to_num(np.abs(ends - value)),
                fmt="os^Dv"[place // len(LINES) % 5],
                color=color,
                markersize=3,
                elinewidth=0.7,
                label=f"{mine['method'].iloc[0]}, γ = {mine['draft_length'].iloc[0]}",
            )
        axis.axhline(100, **LEVEL)
        axis.set_xticks(range(len(tasks)), tasks)
        axis.set_ylabel("recovery, %")
        axis.set_title(one.target)
    legend(drawing, axes, 3)
    return Figure(
        "accuracy_recovery",
        "Recovery",
        "Accuracy of every method over that of the target alone, in percent, by task and over all. "
        "Bars: the paired interval of the difference of the two over the accuracy of the target "
        "alone. The layout is that of Figure 3 of the MARS paper.",
        drawing,
        data,
    )


def _recoveries(one: Answered, table: pd.DataFrame) -> pd.DataFrame:
    """Return the recovery of all drafting runs at temperature 0, with its interval."""
    alone = table.set_index(["task", "run"])["accuracy"]
    shown = table[(table["drafter"] != "none") & (table["temperature"] == 0)].reset_index(drop=True)
    before = np.array(
        [alone[task, base] for task, base in zip(shown["task"], shown["baseline"], strict=True)],
        dtype=np.float64,
    )
    before[before == 0] = np.nan
    keys = ["task", "run", "method", "draft_length", "items", "recovery"]
    return shown[keys].assign(
        target=one.target,
        recovery_ci_low=np.maximum(0.0, 1 + shown["difference_ci_low"].to_numpy() / before),
        recovery_ci_high=1 + shown["difference_ci_high"].to_numpy() / before,
    )
