"""Stage run_lengths: certifiable run lengths of one target under all rules.

Run it with ``python -m pipeline stage=run_lengths``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.report.text import limits
from pipeline.errors import PipelineError
from pipeline.plan.specs import RunLengthsSpec
from pipeline.plan.stage import Request, Stage, SummaryRow, lower_bound_mark
from pipeline.store.columns import COUNTED, CUT, INTERVAL, Column
from pipeline.store.node import Node

if TYPE_CHECKING:
    from pipeline.store.artifacts import Artifact, Pending


def nodes(request: Request) -> list[Node]:
    """Return one planned artifact a target, with the run lengths under all rules."""
    config, settings = request.config, request.config.run_lengths
    spec = RunLengthsSpec(tuple(settings.eps), request.statistics)
    return [
        Node(STAGE.name, target.label, spec, {"certificates": certificates})
        for target, certificates in zip(
            config.targets.values(), request.by_target("certificates"), strict=True
        )
    ]


def compute(
    node: Node[RunLengthsSpec], upstream: dict[str, list[Artifact]], pending: Pending
) -> None:
    """Estimate the run lengths under each rule's certificates; the rows follow the rules."""
    import pandas as pd
    import pyarrow as pa

    from analysis.statistics.bootstrap import PromptBootstrap
    from analysis.statistics.run_lengths import run_lengths
    from analysis.statistics.trajectories import Trajectories
    from pipeline.store import columns

    spec = node.spec
    steps = upstream["certificates"][0].read(columns=["prompt_id", "position"])
    trajectories = Trajectories.from_positions(steps["position"].to_numpy())
    bootstrap = PromptBootstrap(trajectories.prompts, *spec.statistics)
    frames = []
    for artifact in upstream["certificates"]:
        table = artifact.read(columns=["prompt_id", "position", "lower"])
        if not table.select(["prompt_id", "position"]).equals(steps):
            raise PipelineError(
                f"{artifact.directory} and {upstream['certificates'][0].directory} "
                "certify different steps"
            )
        frame = run_lengths(table["lower"].to_numpy(), spec.eps, trajectories, bootstrap)
        frames.append(frame.assign(rule=artifact.record.label))
    pending.facts |= {"prompts": bootstrap.count, "steps": len(steps)}
    schema = columns.schema("run_lengths")
    everything = pd.concat(frames, ignore_index=True)[schema.names]
    pending.write(
        "data",
        pa.Table.from_pandas(everything, schema, preserve_index=False).replace_schema_metadata(
            None
        ),
    )


def summary(node: Node, artifact: Artifact) -> list[SummaryRow]:
    """One row a rule and eps: the length a call of the target."""
    names = ["value", *limits("value"), "prompts"]
    return [
        {"target": node.label, **{name: row[name] for name in ("rule", "eps", "estimator", *names)}}
        | lower_bound_mark("value", row)
        for row in artifact.read().to_pylist()
        if row["estimator"] == "per_call"
    ]


STAGE = Stage(
    name="run_lengths",
    version=6,
    upstream=("certificates",),
    columns={
        "data": {
            "rule": Column("string", "label of the rule"),
            "eps": Column("float64", "the drafter's KL at every step, at most, in nats"),
            "estimator": Column("string", "per_call, mean_run, random_100"),
            "value": Column("float64", "tokens, from lower"),
            **INTERVAL,
            **CUT,
            "failures": Column("int64", "steps not certified at eps"),
            "failing_prompts": Column("int32", "prompts with such a step"),
            **COUNTED,
            "steps": Column("int64", "all steps"),
        }
    },
    nodes=nodes,
    module=__name__,
    summary=summary,
)
