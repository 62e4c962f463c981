"""Read an artifact of stage decoding as `analysis.decoding.metrics.Decoded`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.decoding.metrics import Decoded
from analysis.rules import Mars, Tree, build
from pipeline.plan.methods import shown_truncation
from pipeline.store.artifacts import Artifact


def read_decoded(target: str, drafter: str, artifact: Artifact) -> Decoded:
    """Read what a target decoded with a drafter, both given by their printed names."""
    facts = artifact.record["facts"]

    def frame(name: str) -> pd.DataFrame:
        return artifact.read(name).to_pandas()

    rules = [None if run["rule"] is None else build(run["rule"]) for run in facts["runs"]]
    runs = pd.DataFrame(
        [
            {
                "method": printed(run),
                "drafter": run["drafter"],
                "draft_length": run["draft_length"],
                "sampling": run["sampling"],
                "rule": None if rule is None else rule.label,
                "temperature": run["temperature"],
                "tree": run.get("tree"),
                "drafting": run.get("drafting"),
                "top_p": run.get("top_p", 1.0),
                "top_k": run.get("top_k", 0),
            }
            for run, rule in zip(facts["runs"], rules, strict=True)
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
        facts["bytes"],
        {rule.label: rule for rule in rules if rule is not None},
        frame("levels"),
        frame("timings/passes"),
    )


SAID = {"prompt_lookup": ", prompt lookup", "lookup_first": ", look-up first"}


def printed(run: Mapping[str, Any]) -> str:
    """Return the printed name of a run's method."""
    if run["rule"] is None:
        name = str(run["method"])
        return name[:1].upper() + name[1:]
    stops = f", drafting {run['drafting']}" if "drafting" in run else ""
    rule = build(run["rule"])
    of_tree = f", {run['tree']['shown']}" if "tree" in run and not isinstance(rule, Tree) else ""
    cut = shown_truncation({key: run[key] for key in ("top_p", "top_k") if key in run})
    length = f", model drafts {run['model_length']}" if "model_length" in run else ""
    return rule.title + SAID.get(run["drafter"], "") + length + of_tree + stops + cut


def thetas(decoded: Decoded) -> list[float]:
    """Return MARS's threshold of every run that drafts with the model, NaN of any other."""
    rules = map(decoded.rules.get, decoded.runs["rule"])
    return [
        rule.theta if isinstance(rule, Mars) and drafter == "model" else math.nan
        for rule, drafter in zip(rules, decoded.runs["drafter"], strict=True)
    ]
