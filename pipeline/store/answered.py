"""Read an artifact of stage accuracy as `analysis.decoding.answers.Answered`."""

from __future__ import annotations

import pandas as pd

from analysis.decoding.answers import Answered
from analysis.rules import build
from pipeline.store.artifacts import Artifact
from pipeline.store.decoded import printed


def read_answered(target: str, artifact: Artifact) -> Answered:
    """Read what a target, given by its printed name, answered."""
    facts = artifact.record["facts"]
    runs = pd.DataFrame(
        [
            {
                "method": printed(run),
                "drafter": run["drafter"],
                "draft_length": run["draft_length"],
                "temperature": run["temperature"],
                "baseline": run["baseline"],
                "rule": None if run["rule"] is None else build(run["rule"]),
                "exact": run["lossless"] and run["sampling"] not in ("speculative", "block"),
            }
            for run in facts["runs"]
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
