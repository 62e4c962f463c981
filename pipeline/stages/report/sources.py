"""The artifacts behind a report, target by target, and the statistics computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.decoding.answers import Answered
from analysis.decoding.metrics import Decoded
from analysis.report.measured import Results, Target
from analysis.rules import Rule
from analysis.statistics.bootstrap import Resampling
from pipeline.stage import Artifact, Inputs, Task

UNNAMED = "log"  # conf/target/log.yaml


@dataclass(frozen=True)
class ReportSpec:
    """The settings that a report prints besides the contents of other artifacts.

    `margin` is the loss of accuracy that matters, where answers are shown.
    """

    study: str
    targets: Sequence[str]
    drafter: str | None
    rules: Sequence[Rule]
    statistics: Resampling
    note: str | None = None
    margin: float | None = None


def report_spec(task: Task) -> ReportSpec:
    """Return the settings of a report."""
    names = ("study", "targets", "drafter", "note", "margin")
    own = {name: task.settings[name] for name in names}
    return ReportSpec(rules=task.runtime.rules, statistics=task.runtime.statistics, **own)


@dataclass(frozen=True)
class Source:
    """An artifact that a report is made from, and its task."""

    task: Task
    artifact: Artifact


@dataclass(frozen=True)
class Sources:
    """The artifacts of a target, by stage; None where a stage was not run."""

    label: str
    prompts: Source
    distributions: Source
    certificates: Source
    run_lengths: Source
    drafts: Source | None = None
    acceptance: Source | None = None
    decoding: Source | None = None
    accuracy: Source | None = None


@dataclass(frozen=True)
class Measured:
    """The content of a report: targets, their sources and statistics, and their answers.

    Each of `decoded`, `speeds`, `answered` and `accuracies` is empty where its stage was not run.
    `margin` is the loss of accuracy that matters.
    """

    spec: ReportSpec
    sources: Sequence[Sources]
    targets: Sequence[Target]
    results: Results
    decoded: Sequence[Decoded]
    speeds: Sequence[pd.DataFrame]
    answered: Sequence[Answered]
    accuracies: Sequence[pd.DataFrame]
    margin: float


def by_target(task: Task, inputs: Inputs) -> list[Sources]:
    """Return the sources of each target, from inputs named STAGE/TARGET."""
    by_key: dict[str, dict[str, Source]] = {}
    for name, artifact in inputs.items():
        stage, _, target = name.partition("/")
        by_key.setdefault(target, {})[stage] = Source(task.inputs[name], artifact)
    dumps = [sources["distributions"].artifact for sources in by_key.values()]
    labels = printed_labels(task.settings["targets"], dumps)
    return [
        Sources(label, **sources) for label, sources in zip(labels, by_key.values(), strict=True)
    ]


def printed_labels(labels: Sequence[str], dumps: Sequence[Artifact]) -> list[str]:
    """Return the printed names; a log without a name of its own has that of its model."""
    names = [
        str(dump.facts["model"]).rstrip("/").rpartition("/")[2]
        if label == UNNAMED and dump.facts.get("log")
        else label
        for label, dump in zip(labels, dumps, strict=True)
    ]
    return names if all(names) and len(set(names)) == len(names) else list(labels)
