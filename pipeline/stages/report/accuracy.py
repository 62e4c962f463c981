"""The report's part on answers: what a relaxed rule costs. There once stage accuracy was run."""

from __future__ import annotations

from collections.abc import Mapping

from analysis.decoding.answers import accuracy
from analysis.report.accuracy_tables import accuracy_table, differing_table, losses_table
from pipeline.plan.stage import Node
from pipeline.stages.report.shown import Part
from pipeline.store.answered import read_answered
from pipeline.store.artifacts import Artifact


def accuracy_part(node: Node, upstream: Mapping[str, list[Artifact]]) -> Part | None:
    """Return the part on answers, or None in a study whose tasks were not answered."""
    found = upstream.get("accuracy", [])
    if not found:
        return None
    config = node.config
    answered = [
        read_answered(target, artifact)
        for target, artifact in zip(config["targets"], found, strict=True)
    ]
    tables = [
        accuracy(
            one,
            config["resamples"],
            config["confidence"],
            config["statistics_seed"],
            config["margin"],
        )
        for one in answered
    ]
    return Part.of(
        f"What it costs in answers to decode with {config['drafter']}",
        [
            f"{one.target}: {one.data['item_id'].groupby(one.data['run']).size().iloc[0]} "
            f"items of the tasks {', '.join(one.tasks)}."
            for one in answered
        ],
        [
            losses_table(answered, tables, config["margin"], config["confidence"]),
            accuracy_table(answered, tables),
            differing_table(answered),
        ],
    )
