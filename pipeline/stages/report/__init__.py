"""Stage report: tables, figures, numbers and one page that shows them.

Run it with ``python -m pipeline stage=report``.
"""

from __future__ import annotations

from pipeline.plan.slices import check_names, statistics_slice
from pipeline.plan.stage import Request, Stage, SummaryRow
from pipeline.store.artifacts import Artifact
from pipeline.store.node import Node

UPSTREAM = (
    "prompts",
    "distributions",
    "certificates",
    "run_lengths",
    "drafts",
    "acceptance",
    "decoding",
    "accuracy",
)


def check(request: Request) -> None:
    """Check that the names of targets and rules can stand in one report."""
    if STAGE.name in request.asked:
        labels = [target.label for target in request.config.targets.values()]
        check_names(labels, request.rules)


def nodes(request: Request) -> list[Node]:
    """The report; printed names are part of its content.

    Upstream lists follow the order of the targets; certificates are target-major, one a rule.
    """
    from analysis.rules import to_mapping

    config = request.config
    left_out = set() if config.decoding.report else {"decoding"}
    answered = request.nodes["accuracy"]
    shown = bool(answered) and all(map(request.made, answered))
    if not shown:
        left_out.add("accuracy")  # which takes hours, and is not computed for the report's sake
    return [
        Node(
            STAGE.name,
            config.study,
            {
                "study": config.study_name or config.study,
                **({} if config.note is None else {"note": config.note}),
                "targets": [target.label for target in config.targets.values()],
                "drafter": None if config.drafter is None else config.drafter.label,
                "rules": [to_mapping(rule) for rule in request.rules],
                **statistics_slice(config),
                **({"margin": config.accuracy.margin} if shown else {}),
            },
            {name: tuple(request.nodes[name]) for name in UPSTREAM if name not in left_out},
        )
    ]


def summary(node: Node, artifact: Artifact) -> list[SummaryRow]:
    """One row a target, of its drafter; a sweep over drafters compares them."""
    from pipeline.stages.report.comparison import rows_of_targets

    return rows_of_targets(artifact, node.config["targets"], node.config["drafter"])


STAGE = Stage(
    name="report",
    version=19,
    upstream=UPSTREAM,
    columns={},
    nodes=nodes,
    module=f"{__name__}.compute",
    check=check,
    summary=summary,
)
