"""The report's part on answers: what a relaxed rule costs. There once stage accuracy was run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from analysis.decoding.answers import Answered, accuracy, differing
from analysis.report.accuracy_beside import beside_table
from analysis.report.accuracy_decisions import decisions_table
from analysis.report.accuracy_layouts import recovery_figure, speed_table, tokens_table
from analysis.report.accuracy_tables import accuracy_table, differing_table, losses_table
from pipeline.plan.stage import Node
from pipeline.stages.report.shown import Part
from pipeline.store.answered import read_answered
from pipeline.store.artifacts import Artifact


class MeasuredAnswers(NamedTuple):
    """The answers of every target, and what every method has right; none without stage accuracy."""

    answered: list[Answered]
    tables: list[pd.DataFrame]


def measure_accuracy(node: Node, upstream: Mapping[str, list[Artifact]]) -> MeasuredAnswers | None:
    """Read what was answered, or return None in a study whose tasks were not answered."""
    found = upstream.get("accuracy", [])
    if not found:
        return None
    config = node.config
    answered = [
        read_answered(target, artifact)
        for target, artifact in zip(config["targets"], found, strict=True)
    ]
    settings = config["resamples"], config["confidence"], config["statistics_seed"]
    return MeasuredAnswers(
        answered, [accuracy(one, *settings, config["margin"]) for one in answered]
    )


def accuracy_part(node: Node, found: MeasuredAnswers | None) -> Part | None:
    """Return the part on answers, or None in a study whose tasks were not answered."""
    if found is None:
        return None
    config, (answered, tables) = node.config, found
    margin, confidence = config["margin"], config["confidence"]
    return Part.of(
        f"What it costs in answers to decode with {config['drafter']}",
        [f"{_facts(one)}." for one in answered],
        [
            losses_table(answered, tables, margin, confidence),
            decisions_table(answered, tables, margin, confidence),
            accuracy_table(answered, tables),
            tokens_table(answered, tables),
            recovery_figure(answered, tables),
            differing_table(answered),
            beside_table(answered),
        ],
    )


def _facts(one: Answered) -> str:
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


def accuracy_timed(found: MeasuredAnswers | None) -> Part | None:
    """Return what of it depends on the clock, for the folder timings."""
    if found is None:
        return None
    title = "Answers: what depends on the clock"
    return Part.of(title, [], [speed_table(found.answered, found.tables)])
