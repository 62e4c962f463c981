"""Reads decoded answers, and which of them are right, from artifacts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.decoding.metrics import CONFIGURED, Decoded
from analysis.decoding.paired_accuracy import Answered
from analysis.rules import Mars
from pipeline.core.stage import Artifact
from pipeline.settings.methods import SPECULATIVE, Method, read_method

RUN = (  # attributes of a method that become columns
    *("drafter", "draft_length", "sampling", "rule", "temperature"),
    *("lossless", "tree", "scheme"),
)


def read_decoded(target: str, drafter: str, artifact: Artifact) -> Decoded:
    """Read the decoded answers of a target with a drafter; both are printed names."""
    metadata = artifact.metadata
    methods = [read_method(run) for run in metadata["runs"]]
    rules = {method.rule.label: method.rule for method in methods if method.rule is not None}
    printed: dict[str, Any] = {
        "rule": [None if method.rule is None else method.rule.label for method in methods],
        "tree": [run.get("shape") for run in metadata["runs"]],
    }
    files = {
        "answers": "data",
        "answer_seconds": "timings/runs",
        "call_seconds": "timings/calls",
        "passes": "timings/passes",
        **{name: name for name in ("calls", "trajectory", "levels", "contexts", "lengths")},
    }
    tables = {name: artifact.read(file).to_pandas() for name, file in files.items()}
    return Decoded(
        target,
        drafter,
        _runs(methods, *RUN).assign(**printed),
        size=metadata["bytes"],
        rules=rules,
        vocabulary=metadata["vocab_size"],
        **tables,
    )


def _runs(methods: Sequence[Method], *names: str) -> pd.DataFrame:
    columns = {name: [getattr(method, name) for method in methods] for name in names}
    return pd.DataFrame({"method": [method.title for method in methods], **columns})


def thetas(decoded: Decoded) -> list[float]:
    """Return MARS's theta of every run with the configured drafter; NaN for other runs."""
    rules = map(decoded.rules.get, decoded.runs["rule"])
    return [
        rule.theta if isinstance(rule, Mars) and drafter == CONFIGURED else math.nan
        for rule, drafter in zip(rules, decoded.runs["drafter"], strict=True)
    ]


def read_answered(target: str, artifact: Artifact) -> Answered:
    """Read a target's answers to tasks, from an artifact of stage accuracy; `target` is printed."""
    metadata = artifact.metadata
    methods = [read_method(run) for run in metadata["runs"]]
    more: dict[str, Any] = {
        "baseline": [run["baseline"] for run in metadata["runs"]],
        "rule": [method.rule for method in methods],
        "exact": [method.lossless and method.sampling != SPECULATIVE for method in methods],
    }
    return Answered(
        target,
        metadata["tasks"],
        _runs(methods, "drafter", "draft_length", "temperature").assign(**more),
        artifact.read().to_pandas().drop(columns=["token_ids", "method", "drafter"]),
        seconds=artifact.read("timings/runs").to_pandas(),
    )
