"""What the report shows of answers: what a relaxed rule costs, once stage accuracy was run."""

from __future__ import annotations

from collections.abc import Mapping

from analysis.decoding.answers import accuracy
from analysis.report.records import Part
from analysis.report.sections.accuracy import accuracy_parts
from pipeline.store.artifacts import Artifact
from pipeline.store.decoded import read_answered
from pipeline.store.node import Node


def answers_shown(node: Node, upstream: Mapping[str, list[Artifact]]) -> list[Part]:
    """Return the parts on answers; none in a study whose tasks were not answered."""
    config, found = node.config, upstream.get("accuracy", [])
    if not found:
        return []
    answered = [
        read_answered(target, artifact)
        for target, artifact in zip(config["targets"], found, strict=True)
    ]
    confidence, margin = config["confidence"], config["margin"]
    settings = config["resamples"], confidence, config["statistics_seed"], margin
    tables = [accuracy(one, *settings) for one in answered]
    return accuracy_parts(config["drafter"], answered, tables, margin, confidence)
