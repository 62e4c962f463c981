"""The report's table by the category of the prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from analysis.report.records import Part
from analysis.report.sections.categories import CategorySteps, category_statistics, category_table
from analysis.report.sections.certificates import COMPARED_AT
from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import Flags, Floats
from pipeline.stages.report.inputs import Target
from pipeline.store.artifacts import Artifact
from pipeline.store.node import Node


def categories_part(
    node: Node, targets: Sequence[Target], upstream: Mapping[str, list[Artifact]]
) -> Part | None:
    """Return the part by category, or None where all prompts are of one."""
    if all(len(set(target.categories)) == 1 for target in targets):
        return None
    items = targets[0].certificates
    rule = next((item.rule for item in items if item.rule == StrictGreedy()), items[0].rule)
    levels = targets[0].runs["eps"].unique().tolist()
    eps = min(levels, key=lambda level: abs(level - COMPARED_AT))
    found = [drafted(artifact) for artifact in upstream.get("drafts", [])]
    drafts: list[dict[str, Floats | Flags]] = found or [{} for _ in targets]
    frames = []
    for target, of_draft in zip(targets, drafts, strict=True):
        certified = next(item for item in target.certificates if item.rule == rule)
        steps = CategorySteps(
            target.label,
            target.categories,
            rule,
            certified.lower,
            certified.upper,
            {"p0": target.top[:, 0], "repeated": target.repeated, **of_draft},
        )
        frames.append(
            category_statistics(steps, eps, target.bootstrap, node.config["statistics_seed"])
        )
    table = category_table(pd.concat(frames, ignore_index=True), rule, eps)
    return Part("By category of the prompts", [table])


def drafted(drafts: Artifact) -> dict[str, Floats | Flags]:
    """Return the (N,) KL of a drafter in nats, and whether its argmax is the target's."""
    table = drafts.read(columns=["kl", "draft_rank"])
    return {"kl": table["kl"].to_numpy(), "accepted": table["draft_rank"].to_numpy() == 1}
