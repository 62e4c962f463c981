"""A few numbers of an artifact, for the table of a sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analysis.report.text import limits, mark_of, upper_end
from pipeline.plan.graph import Node
from pipeline.store.artifacts import Artifact

Row = dict[str, Any]


def summarise(node: Node, artifact: Artifact) -> list[Row]:
    """Return the rows that an artifact contributes to the table of its sweep."""
    from analysis.statistics.bootstrap import few

    rows = SUMMARIES.get(node.stage, _facts)(node, artifact)
    return [row | {"few_prompts": few(row["prompts"])} if "prompts" in row else row for row in rows]


def _facts(node: Node, artifact: Artifact) -> list[Row]:
    row = {"artifact": f"{node.stage}/{artifact.directory.name}"}
    row |= {f"{name} rows": count for name, count in artifact.record["rows"].items()}
    return [row]


def _certificates(node: Node, artifact: Artifact) -> list[Row]:
    import numpy as np

    from analysis.statistics.bootstrap import summarise as summary
    from analysis.statistics.run_lengths import Trajectories

    rule = node.settings["rule"]
    table = artifact.read(columns=["position", "lo", "hi"])
    lo, hi = (table.column(name).to_numpy() for name in ("lo", "hi"))
    lower, upper = (np.where(np.isinf(end), rule.ceiling, end) for end in (lo, hi))
    prompts = Trajectories.from_positions(table.column("position").to_numpy()).prompts
    bootstrap = _bootstrap(node, prompts)
    row: Row = {
        "target": node.upstream["distributions"][0].settings["label"],
        "rule": rule.label,
        "steps": len(lo),
        "prompts": bootstrap.count,
    }
    for name, found in summary(lower, upper, rule.ceiling, bootstrap).items():
        row[name], row[upper_end(name)] = found.value, found.optimistic
        row |= dict(zip(limits(name), (found.low, found.high), strict=True))
    return [row | {"empty": float(np.mean(np.isinf(lo))), "inexact": float(np.mean(lo < hi))}]


def _bootstrap(node: Node, prompts: Any) -> Any:
    from analysis.statistics.bootstrap import PromptBootstrap

    return PromptBootstrap(prompts, *_statistics(node))


def _statistics(node: Node) -> tuple[int, float, int]:
    """Return resamples, confidence and seed of the bootstrap over prompts."""
    names = ("resamples", "confidence", "statistics_seed")
    resamples, confidence, seed = (node.settings[name] for name in names)
    return resamples, confidence, seed


def _run_lengths(node: Node, artifact: Artifact) -> list[Row]:
    names = ["value", upper_end("value"), *limits("value"), "prompts"]
    return [
        {"target": node.label, **{name: row[name] for name in ("rule", "eps", "estimator", *names)}}
        | _marks("value", row)
        for row in artifact.read().to_pylist()
        if row["estimator"] == "per_call"
    ]


def _marks(column: str, row: Row) -> Row:
    """Say whether a length, of a row with its cuts, and its upper end are lower bounds."""
    from analysis.statistics.run_lengths import censored_ends

    return dict(zip((mark_of(column), upper_end(mark_of(column))), censored_ends(row), strict=True))


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
    facts = artifact.record["facts"]
    rows = {
        rule.label: {
            "target": node.settings["target"],
            "drafter": node.settings["drafter"],
            "rule": rule.label,
            "steps": facts["steps"],
            "prompts": facts["prompts"],
        }
        for rule in node.settings["rules"]
    }
    for row in artifact.read("statistics").to_pylist():
        if row["rule"] in rows and row["statistic"] in shown:
            name = shown[row["statistic"]]
            found = rows[row["rule"]]
            found[name] = row["value"]
            found |= dict(zip(limits(name), (row["low"], row["high"]), strict=True))
            if row["statistic"] in ranged:
                found[upper_end(name)] = row[upper_end("value")]
            if row["statistic"].endswith("_per_call"):
                found |= _marks(name, row)
    return list(rows.values())


def _decoding(node: Node, artifact: Artifact) -> list[Row]:
    from analysis.decoding import metrics as decoding
    from analysis.decoding import speed
    from pipeline.store.decoded import read

    target, drafter = (node.settings[model]["label"] for model in ("target", "drafter"))
    one = read(target, drafter, artifact)
    speeds = speed.speedups(one, *_statistics(node))
    found = decoding.acceptance(one).join(decoding.acceptance_intervals(one, *_statistics(node)))
    found = found.join(
        speeds.rename(columns=dict(zip(("low", "high"), limits("speedup"), strict=True)))
    )
    shown = ["method", "draft_length", "temperature"]
    for name in ("rate", "tokens_per_call"):
        shown += [name, *limits(name)]
    shown += ["agreement", "given_up", "tokens_per_second", "speedup", *limits("speedup")]
    return [
        {"target": one.target, "prompts": one.prompts, **dict(zip(shown, row, strict=True))}
        for row in found[shown].itertuples(index=False)
    ]


SUMMARIES: dict[str, Callable[[Node, Artifact], list[Row]]] = {
    "certificates": _certificates,
    "run_lengths": _run_lengths,
    "decoding": _decoding,
    "acceptance": _acceptance,
}
