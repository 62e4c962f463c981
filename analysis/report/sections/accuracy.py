"""Answers to tasks in the report: what every method has right, and what relaxing a rule costs.

Tokens a call, accuracy and speedup by task are laid out as Tables 2 and 1 of the MARS paper
(arXiv 2601.15498), recovery as its Figure 3. `tables` holds `analysis.decoding.answers.accuracy` of
each target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd

from ...decoding.answers import ALL, Answered, decide, differing, threshold_limits
from ...decoding.finished import CLOCKED
from ..records import Column, Part, Table, across, together
from ..text import UNDEFINED, digits_text, number_text, share_text, symbol
from .accuracy_figure import recovery_figure

SHOWN = 12  # differing answers on the page; the CSV file has all
LETTERS = 90  # of each
Tables = Sequence[pd.DataFrame]


def accuracy_parts(
    drafter: str, answered: Sequence[Answered], tables: Tables, margin: float, confidence: float
) -> list[Part]:
    """Return the part on answers, and what of it depends on the clock.

    Args:
        drafter: printed name.
        answered: of every target.
        tables: of every target.
        margin: the loss of accuracy that matters.
        confidence: of the intervals.
    """
    shown = [
        losses_table(answered, tables, margin, confidence),
        decisions_table(answered, tables, margin, confidence),
        tokens_table(answered, tables),
        recovery_figure(answered, tables),
        differing_table(answered),
    ]
    title = f"What it costs in answers to decode with {drafter}"
    timed = [speed_table(answered, tables), finished_table(answered, tables, margin, confidence)]
    return [
        Part(title, shown, [f"{said_of(one)}." for one in answered]),
        Part("Answers: what depends on the clock", timed, timed=True),
    ]


def said_of(one: Answered) -> str:
    """Return in a line what was asked, and which answers parted that should not."""
    items = one.data["item_id"].groupby(one.data["run"]).size().iloc[0]
    text = f"{one.target}: {items} items of the tasks {', '.join(one.tasks)}"
    if not one.runs["exact"].sum() > (one.runs["drafter"] == "none").sum():
        return text
    parted = differing(one).query("exact")
    if parted.empty:
        return f"{text}; methods that are to leave every answer left every one"
    where = ", ".join(
        f"{row['task']}/{row['item_id']} with {row['method']} (gap {row['gap']:.1e})"
        for _, row in parted.iterrows()
    )
    return f"{text}; of methods that are to leave every answer {len(parted)} part: {where}"


def _of_targets(answered: Sequence[Answered], frames: Tables) -> pd.DataFrame:
    return together({one.target: frame for one, frame in zip(answered, frames, strict=True)})


def _section(answered: Sequence[Answered]) -> str:
    return "target" if len(answered) > 1 else ""


def _length(gamma: int, drafter: str) -> str:
    return UNDEFINED if drafter == "none" else str(gamma)


def _points(*values: float) -> str:
    return " to ".join(number_text(100 * value, 1) for value in values)


def _ends(name: str) -> tuple[str, str, str]:
    return name, f"{name}_ci_low", f"{name}_ci_high"


def _interval(value: float, low: float, high: float) -> str:
    return f"{number_text(value)} [{number_text(low)}, {number_text(high)}]"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


SETTING = [
    Column("γ", _length, ("draft_length", "drafter")),
    Column("T", "{:g}".format, "temperature"),
]


def losses_table(
    answered: Sequence[Answered], tables: Tables, margin: float, confidence: float
) -> Table:
    """Accuracy over all tasks beside what the method gains, paired with the target alone."""

    def compared(heading: str, text: Any, *of: str) -> Column:
        """A column that the target alone, which is compared with itself, leaves empty."""

        def cell(drafter: str, *values: Any) -> str:
            return UNDEFINED if drafter == "none" else str(text(*values))

        return Column(heading, cell, ("drafter", *of))

    clocked = ["speedup", *CLOCKED]
    data = _of_targets(answered, [table.drop(columns=clocked) for table in tables])
    return Table(
        name="accuracy_losses",
        title="What a method costs in right answers",
        question="How many answers does each method have right, lose and win?",
        caption="All tasks together. Lost and won: items that only the target alone, or only the "
        "method, has right. Difference: of the accuracies, in points, its "
        f"{100 * confidence:g} % interval paired by item (Agresti and Min). p: McNemar's exact "
        f"test. Excluded: whether that interval excludes a loss of {100 * margin:g} points, the "
        "margin fixed beforehand. Recovery: accuracy over that of the target alone. Length: "
        "tokens over those of the target alone. Cut: answers that their limit ended. Calls: of the "
        "target for a finished answer, what the cut ones took included. Changed: answers that "
        "differ in a token. "
        "Given up: log-likelihood of a token under the target that the answers lose, in nats. τ: "
        "tokens a target call emits.",
        data=data,
        shown=data[data["task"] == ALL],
        row="method",
        section=_section(answered),
        stub="Method",
        columns=[
            *SETTING,
            Column("accuracy", share_text, "accuracy"),
            compared("lost and won", "{} and {}".format, "lost", "won"),
            compared("difference", _points, "difference_ci_low", "difference_ci_high"),
            compared("p", partial(number_text, digits=3), "p_value"),
            compared("excluded", _yes, "within"),
            Column("recovery", partial(number_text, digits=3), "recovery"),
            compared("length", _interval, *_ends("length_ratio")),
            Column("cut", share_text, "cut"),
            Column("calls", partial(number_text, digits=1), "calls_finished"),
            Column("changed", share_text, "changed"),
            Column("given up", digits_text, "given_up"),
            Column("τ", number_text, "tokens_per_call"),
        ],
        notes=["The CSV file has every task apart, with intervals of accuracy (Wilson) and τ."],
    )


def decisions_table(
    answered: Sequence[Answered], tables: Tables, margin: float, confidence: float
) -> Table | None:
    """Every threshold with its one-sided bounds; None where no rule is relaxed."""
    found = [
        decide(table, one.runs, margin, confidence)
        for one, table in zip(answered, tables, strict=True)
    ]
    if all(frame.empty for frame in found):
        return None
    return Table(
        name="accuracy_decisions",
        title="How far a rule may be relaxed",
        question="Up to which threshold is a loss excluded, and from which is one measured?",
        caption="Difference of the accuracies of a method and of the target alone, in points, and "
        f"its one-sided {100 * confidence:g} % bounds (Agresti and Min, paired by item). "
        f"Excluded: the lower bound lies above minus {100 * margin:g} points, the margin fixed "
        "beforehand, here and at all stricter thresholds. Falls: the upper bound lies below 0, "
        "here and at all more relaxed thresholds. Tested in this order, each claim holds at the "
        "confidence of one test.",
        data=_of_targets(answered, [frame.drop(columns="wins") for frame in found]),
        row="method",
        section=_section(answered),
        stub="Method",
        columns=[
            Column("γ", str, "draft_length"),
            Column("lost and won", "{} and {}".format, ("lost", "won")),
            Column("difference", _points, "difference"),
            Column("bounds", _points, ("worst", "best")),
            Column("excluded", _yes, "up_to"),
            Column("falls", _yes, "down_to"),
        ],
        notes=[
            line
            for one, frame in zip(answered, found, strict=True)
            for line in sentences(frame, margin, one.target if len(found) > 1 else "")
        ],
    )


def sentences(decided: pd.DataFrame, margin: float, target: str = "") -> list[str]:
    """Return of each rule the largest threshold that is excluded, and the first that falls."""
    found = []
    points = f"{100 * margin:g} points"
    for row in threshold_limits(decided).to_dict("records"):
        name = f"{target}, {row['family']}" if target else row["family"]
        dial = symbol(row["parameter"]) if row["parameter"] else "the rule"
        if math.isnan(row["largest"]):
            first = f"at no threshold is a loss above {points} excluded"
        else:
            first = (
                f"a loss above {points} is excluded up to {dial} = {row['largest']:g} "
                f"(bound {_points(row['worst'])} points)"
            )
        if math.isnan(row["first"]):
            second = "no threshold makes the accuracy fall measurably"
        else:
            second = (
                f"from {dial} = {row['first']:g} on the accuracy falls, "
                f"by at least {_points(-row['best'])} points"
            )
        found.append(f"{name}, γ = {row['draft_length']}: {first}; {second}.")
    return found


def tokens_table(answered: Sequence[Answered], tables: Tables) -> Table:
    """Tokens a call and accuracy of every method, task by task: Table 2 without its clock."""
    return _by_task(
        answered,
        tables,
        [Column("τ", number_text, "tokens_per_call"), Column("acc.", share_text, "accuracy")],
        name="accuracy_by_task",
        title="Tokens a call and right answers by task",
        question="What does each method gain and lose on each task?",
        caption="τ: tokens that a call of the target emits. Acc.: share of the items of the task "
        "that are right. The layout is that of Table 2 of the MARS paper; its speedup has a table "
        "of its own, since it depends on the clock.",
    )


def speed_table(answered: Sequence[Answered], tables: Tables) -> Table:
    """Speedup and tokens a call of every method, task by task: Table 1."""
    return _by_task(
        answered,
        tables,
        [
            Column("speedup", lambda value: f"{number_text(value)}×", "speedup"),
            Column("τ", number_text, "tokens_per_call"),
        ],
        name="accuracy_speed",
        title="Speedup and tokens a call by task",
        question="How much faster is each method on each task?",
        caption="Speedup: seconds a token of the target alone over those of the method, on the "
        "same items in the same minutes. τ: tokens that a call of the target emits. The layout is "
        "that of Table 1 of the MARS paper. On a machine that does other work these numbers mean "
        "little.",
    )


def finished_table(
    answered: Sequence[Answered], tables: Tables, margin: float, confidence: float
) -> Table:
    """Seconds of a finished answer and right answers a second, and which rules win."""
    frames = []
    for one, table in zip(answered, tables, strict=True):
        decided = decide(table, one.runs, margin, confidence).set_index("run")["wins"]
        total = table[table["task"] == ALL]
        frames.append(total.assign(wins=total["run"].map(decided)))
    data = _of_targets(answered, frames)
    keys = ["target", "method", "draft_length", "temperature"]
    return Table(
        name="accuracy_finished",
        title="Seconds of a finished answer",
        question="Which rule finishes right answers sooner?",
        caption="All tasks together. Seconds: of all answers, over those that the model ended, and "
        "over the target alone's. A rule wins if a loss of right answers above "
        f"{100 * margin:g} points is excluded, at all stricter thresholds too, and the interval of "
        "that ratio lies below 1. Intervals: over items, paired.",
        data=data[[*keys, *CLOCKED, "wins"]],
        shown=data,
        row="method",
        section=_section(answered),
        stub="Method",
        columns=[
            *SETTING,
            Column("seconds", number_text, "seconds_finished"),
            Column("over alone", _interval, _ends("seconds_ratio")),
            Column("wins", lambda value: UNDEFINED if pd.isna(value) else _yes(value), "wins"),
            Column("right a second", _interval, _ends("right_per_second")),
        ],
    )


def _by_task(
    answered: Sequence[Answered], tables: Tables, columns: Sequence[Column], **said: Any
) -> Table:
    tasks = [*answered[0].tasks, ALL] if len(answered[0].tasks) > 1 else [ALL]
    keys = ["target", "task", "method", "draft_length", "temperature"]
    shown = _of_targets(answered, tables)
    return Table(
        **said,
        data=shown[[*keys, *(str(column.of) for column in columns)]],
        shown=shown,
        row=("method", "run"),
        section=_section(answered),
        stub="Method",
        columns=[*SETTING, *across(tasks, columns, key="task")],
    )


def differing_table(answered: Sequence[Answered]) -> Table | None:
    """The answers that differ from the target's own; None where none does.

    Of temperature 0 only: drawn answers differ in any case.
    """
    data = _of_targets(answered, [differing(one).drop(columns="exact") for one in answered])
    data = data[data["temperature"] == 0].reset_index(drop=True)
    if data.empty:
        return None
    same = data["alone_correct"] == data["correct"]
    first = data.loc[same.sort_values(kind="stable").index].groupby("target", sort=False)

    def verdicts(alone: bool, method: bool) -> str:
        return ", ".join("right" if right else "wrong" for right in (alone, method))

    return Table(
        name="accuracy_differing",
        title="Answers that differ",
        question="Which answers differ from the target's own, and which of the two are right?",
        caption="Answers of methods at temperature 0, those first of which one is right and the "
        "other wrong. Gap: between the target's two largest logits where they part.",
        data=data,
        shown=first.head(SHOWN),
        row="item_id",
        section=_section(answered),
        stub="Item",
        columns=[
            Column("task", str, "task"),
            Column("method", "{}, γ = {}".format, ("method", "draft_length")),
            Column("alone, method", verdicts, ("alone_correct", "correct")),
            Column("gap", partial(number_text, digits=4), "gap"),
            Column("the target alone", _beginning, "alone"),
            Column("the method", _beginning, "answer"),
        ],
        notes=[f"{len(data)} answers differ; the CSV file has all of them in full."],
    )


def _beginning(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LETTERS else f"{line[:LETTERS].rstrip()} …"
