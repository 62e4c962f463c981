"""Read an artifact of stage decoding as `analysis.decoding.metrics.Decoded`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.decoding.metrics import Decoded
from analysis.report.text import rule_text
from analysis.rules import builtin as criteria
from pipeline.store.artifacts import Artifact


def read_decoded(target: str, drafter: str, artifact: Artifact) -> Decoded:
    """Read what a target decoded with a drafter, both given by their printed names."""
    facts = artifact.record["facts"]

    def frame(name: str) -> pd.DataFrame:
        return artifact.read(name).to_pandas()

    runs = pd.DataFrame(
        [
            {
                "method": printed(run),
                "drafter": run["drafter"],
                "draft_length": run["draft_length"],
                "sampling": run["sampling"],
                "rule": None if run["rule"] is None else criteria.build(run["rule"]).label,
                "temperature": run["temperature"],
            }
            for run in facts["runs"]
        ]
    )
    return Decoded(
        target,
        drafter,
        runs,
        frame("data").drop(
            columns=["token_ids", "method", "drafter", "draft_length", "temperature"]
        ),
        frame("calls"),
        frame("timings/runs"),
        frame("timings/calls"),
        frame("trajectory"),
        frame("indicators"),
        facts["bytes"],
    )


def printed(run: Mapping[str, Any]) -> str:
    """Return the printed name of a run's method."""
    if run["rule"] is None:
        return str(run["method"]).capitalize()
    name = rule_text(criteria.build(run["rule"]))
    return name + (", prompt lookup" if run["drafter"] == "prompt_lookup" else "")


def thetas(artifact: Artifact) -> list[float]:
    """Return MARS's threshold of every run that drafts with the model, NaN of any other."""
    return [
        run["rule"]["theta"]
        if run["drafter"] == "model" and run["rule"] is not None and run["rule"]["rule"] == "mars"
        else math.nan
        for run in artifact.record["facts"]["runs"]
    ]
