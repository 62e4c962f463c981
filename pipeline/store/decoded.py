"""Read artifacts of the stages decoding and accuracy as the records that analysis takes."""

from __future__ import annotations

import math

import pandas as pd

from analysis.decoding.answers import Answered
from analysis.decoding.metrics import Decoded
from analysis.rules import Mars
from pipeline.plan.method import read_method
from pipeline.store.artifacts import Artifact


def read_decoded(target: str, drafter: str, artifact: Artifact) -> Decoded:
    """Read what a target decoded with a drafter, both given by their printed names."""
    facts = artifact.record["facts"]

    def frame(name: str) -> pd.DataFrame:
        return artifact.read(name).to_pandas()

    methods = [read_method(run) for run in facts["runs"]]
    runs = pd.DataFrame(
        [
            {
                "method": one.title,
                "drafter": one.drafter,
                "draft_length": one.draft_length,
                "sampling": one.sampling,
                "rule": None if one.rule is None else one.rule.label,
                "temperature": one.temperature,
                "lossless": one.lossless,
                "tree": run.get("shape"),
                "drafting": None if one.drafting is None else one.drafting.shown,
                "top_p": one.top_p,
                "top_k": one.top_k,
            }
            for one, run in zip(methods, facts["runs"], strict=True)
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
        {one.rule.label: one.rule for one in methods if one.rule is not None},
        frame("levels"),
        frame("timings/passes"),
    )


def thetas(decoded: Decoded) -> list[float]:
    """Return MARS's threshold of every run that drafts with the model, NaN of any other."""
    rules = map(decoded.rules.get, decoded.runs["rule"])
    return [
        rule.theta if isinstance(rule, Mars) and drafter == "model" else math.nan
        for rule, drafter in zip(rules, decoded.runs["drafter"], strict=True)
    ]


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
