"""The report's part on a drafter, where both were logged by engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.report.acceptance_logged import logged_table
from analysis.report.records import Part
from analysis.rules import build
from pipeline.plan.stage import Node
from pipeline.store.artifacts import Artifact


def logged_setup(targets: Sequence[str], drafts: Sequence[Artifact]) -> dict[str, dict[str, Any]]:
    """Return what is known of both logs, by printed name of the target."""
    setups = {}
    for target, pair in zip(targets, drafts, strict=True):
        facts = pair.record["facts"]
        left_out = [f"{count} {reason}" for reason, count in facts["excluded"].items()]
        setups[target] = {
            "log of the drafter": facts["log"],
            "model": facts["drafter"],
            "steps": pair.record["rows"]["logged"],
            "log-probabilities a step": f"{facts['k']} of the target, {facts['draft_k']} of it",
            "each of it is off by at most": f"{facts['draft_log_prob_error']:.2g} nats",
            "left out": ", ".join(left_out) or "none",
        }
    return setups


def logged_part(node: Node, found: Sequence[Artifact]) -> Part:
    """Return the part: the table of all rules."""
    drafter, targets = node.config["drafter"], node.config["targets"]
    frame = pd.concat(
        [
            artifact.read("statistics").to_pandas().assign(target=target)
            for target, artifact in zip(targets, found, strict=True)
        ],
        ignore_index=True,
    )
    rules = [build(mapping) for mapping in node.config["rules"]]
    return Part(f"Will {drafter} be accepted?", [logged_table(frame, rules, drafter)])
