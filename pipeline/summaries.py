"""A few numbers of an artifact, for the table of a sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analysis.printing import upper_end
from pipeline.artifacts import Artifact
from pipeline.stages import Node

Row = dict[str, Any]


def summarise(node: Node, artifact: Artifact) -> list[Row]:
    """Return the rows that an artifact contributes to the table of its sweep."""
    return SUMMARIES.get(node.stage, _facts)(node, artifact)


def _facts(node: Node, artifact: Artifact) -> list[Row]:
    row = {"artifact": f"{node.stage}/{artifact.directory.name}"}
    row |= {f"{name} rows": count for name, count in artifact.record["rows"].items()}
    return [row]


def _certificates(node: Node, artifact: Artifact) -> list[Row]:
    import numpy as np

    from analysis.statistics import summary

    rule = node.settings["rule"]
    table = artifact.read(columns=["lo", "hi"])
    lo, hi = (table.column(name).to_numpy() for name in ("lo", "hi"))
    return [
        {
            "target": node.upstream["distributions"][0].settings["label"],
            "rule": rule.label,
            "steps": len(lo),
            **summary(lo, rule.ceiling),
            **{upper_end(name): value for name, value in summary(hi, rule.ceiling).items()},
            "empty": float(np.mean(np.isposinf(lo))),
            "inexact": float(np.mean(lo < hi)),
        }
    ]


def _run_lengths(node: Node, artifact: Artifact) -> list[Row]:
    columns = ["rule", "eps", "estimator", "value", upper_end("value"), "low", "high"]
    table = artifact.read(columns=columns).to_pylist()
    return [{"target": node.label, **row} for row in table if row["estimator"] == "per_call"]


def _acceptance(node: Node, artifact: Artifact) -> list[Row]:
    shown = {
        "acceptance": "accepted",
        "certified": "certified",
        "coverage": "coverage",
        "departure": "departs",
        "given_up": "given up",
        "realised_per_call": "length",
        "certified_per_call": "certified length",
    }
    ranged = {"certified", "coverage", "certified_per_call"}  # what depends on certificates
    rows = {
        rule.label: {
            "target": node.settings["target"],
            "drafter": node.settings["drafter"],
            "rule": rule.label,
            "steps": artifact.record["facts"]["steps"],
        }
        for rule in node.settings["rules"]
    }
    for row in artifact.read("statistics").to_pylist():
        if row["rule"] in rows and row["statistic"] in shown:
            name = shown[row["statistic"]]
            rows[row["rule"]][name] = row["value"]
            if row["statistic"] in ranged:
                rows[row["rule"]][upper_end(name)] = row[upper_end("value")]
    return list(rows.values())


def _decoding(node: Node, artifact: Artifact) -> list[Row]:
    from analysis import decoding, speed
    from pipeline.decoded import read

    target, drafter = (node.settings[model]["label"] for model in ("target", "drafter"))
    found = decoding.acceptance(one := read(target, drafter, artifact))
    found = found.join(speed.speedups(one, 1, 0.5, 0)[["tokens_per_second", "speedup"]])
    shown = [
        "method",
        "draft_length",
        "temperature",
        "rate",
        "tokens_per_call",
        "agreement",
        "given_up",
        "tokens_per_second",
        "speedup",
    ]
    return [
        {"target": one.target, **dict(zip(shown, row, strict=True))}
        for row in found[shown].itertuples(index=False)
    ]


SUMMARIES: dict[str, Callable[[Node, Artifact], list[Row]]] = {
    "certificates": _certificates,
    "run_lengths": _run_lengths,
    "decoding": _decoding,
    "acceptance": _acceptance,
}
