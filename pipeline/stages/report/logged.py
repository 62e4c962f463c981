"""The report's part on a drafter, where both were logged by engines."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.report.acceptance_logged import logged_table
from analysis.rules import build
from pipeline.plan.stage import Node
from pipeline.stages.report import shown
from pipeline.stages.report.shown import Part, setup_table
from pipeline.store.artifacts import Artifact


def logged_part(node: Node, drafts: Sequence[Artifact], found: Sequence[Artifact]) -> Part:
    """Return the part: what is known of both logs, and the table of all rules."""
    drafter, targets = node.config["drafter"], node.config["targets"]
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
    frame = pd.concat(
        [
            artifact.read("statistics").to_pandas().assign(target=target)
            for target, artifact in zip(targets, found, strict=True)
        ],
        ignore_index=True,
    )
    rules = [build(mapping) for mapping in node.config["rules"]]
    opening = [shown.heading(f"Will {drafter} be accepted?"), setup_table(setups)]
    return Part.of(opening, [logged_table(frame, rules, drafter)])
