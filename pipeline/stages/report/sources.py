"""The artifacts behind a report, target by target, and the statistics computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pandas as pd

from analysis.decoding.metrics import Decoded
from analysis.report.measured import Results, Target
from pipeline.plan.specs import (
    AcceptanceSpec,
    AccuracySpec,
    CertificatesSpec,
    DecodingSpec,
    DraftsSpec,
    ReportSpec,
    RunLengthsSpec,
)
from pipeline.store.artifacts import Artifact
from pipeline.store.distributions import StoredFacts
from pipeline.store.node import Node

Spec = TypeVar("Spec")
UNNAMED = "log"  # conf/target/log.yaml


@dataclass(frozen=True)
class Source(Generic[Spec]):
    """An artifact that a report is made from, and its node."""

    node: Node[Spec]
    artifact: Artifact


@dataclass(frozen=True)
class Sources:
    """The artifacts of a target, by stage; None where a stage was not run."""

    label: str
    prompts: Source[Any]
    distributions: Source[Any]
    certificates: list[Source[CertificatesSpec]]
    run_lengths: Source[RunLengthsSpec]
    drafts: Source[DraftsSpec] | None = None
    acceptance: Source[AcceptanceSpec] | None = None
    decoding: Source[DecodingSpec] | None = None
    accuracy: Source[AccuracySpec] | None = None

    @property
    def temperature(self) -> float:
        """Of the certified distribution."""
        return self.distributions.artifact.facts(StoredFacts).certified_temperature


@dataclass(frozen=True)
class Measured:
    """The content of a report: targets, their sources and statistics, and their decoded answers."""

    spec: ReportSpec
    sources: Sequence[Sources]
    targets: Sequence[Target]
    results: Results
    decoded: Sequence[Decoded]
    speeds: Sequence[pd.DataFrame]


def by_target(node: Node[ReportSpec], upstream: Mapping[str, Sequence[Artifact]]) -> list[Sources]:
    """Return the sources of each target; upstream lists follow the targets."""
    sources = {
        stage: [Source(*pair) for pair in zip(node.upstream[stage], artifacts, strict=True)]
        for stage, artifacts in upstream.items()
        if artifacts
    }
    labels = printed_labels(
        node.spec.targets, [source.artifact for source in sources["distributions"]]
    )
    certificates = sources.pop("certificates")
    each = len(certificates) // len(labels)
    return [
        Sources(
            label,
            certificates=certificates[at * each : (at + 1) * each],
            **{stage: made[at] for stage, made in sources.items()},
        )
        for at, label in enumerate(labels)
    ]


def printed_labels(labels: Sequence[str], dumps: Sequence[Artifact]) -> list[str]:
    """Return the printed names; a log without a name of its own has that of its model."""
    names = [
        str(dump.record.facts["model"]).rstrip("/").rpartition("/")[2]
        if label == UNNAMED and dump.record.facts.get("log")
        else label
        for label, dump in zip(labels, dumps, strict=True)
    ]
    return names if all(names) and len(set(names)) == len(names) else list(labels)
