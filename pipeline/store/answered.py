"""Read an artifact of stage accuracy as `analysis.decoding.answers.Answered`."""

from __future__ import annotations

import pandas as pd

from analysis.decoding.answers import Answered
from pipeline.plan.method import read_method
from pipeline.store.artifacts import Artifact


def read_answered(target: str, artifact: Artifact) -> Answered:
    """Read what a target, given by its printed name, answered."""
    facts = artifact.record["facts"]
    methods = [read_method(run) for run in facts["runs"]]
    runs = pd.DataFrame(
        [
            {
                "method": one.title,
                "drafter": one.drafter,
                "draft_length": one.draft_length,
                "temperature": one.temperature,
                "baseline": run["baseline"],
                "rule": one.rule,
                "exact": one.lossless and one.sampling not in ("speculative", "block"),
            }
            for one, run in zip(methods, facts["runs"], strict=True)
        ]
    )
    data = artifact.read().to_pandas()
    return Answered(
        target,
        list(facts["tasks"]),
        runs,
        data.drop(columns=["token_ids", "method", "drafter"]),
        artifact.read("timings/runs").to_pandas(),
    )
