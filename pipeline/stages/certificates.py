"""Stage certificates: the certificates of all rules at every step of a target.

Run it with ``python -m pipeline stage=certificates``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.core.columns import STEP, Column, numbers
from pipeline.core.stage import Json, Stage, Task
from pipeline.settings.criteria import rules_of

if TYPE_CHECKING:
    from pipeline.core.stage import Artifact, Inputs, Out
    from pipeline.study import Study


def plan(study: Study) -> list[Task]:
    """Return a task for each target, with all rules of the study."""
    return study.rule_tasks(STAGE, "distributions")


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Certify the distributions, chunk by chunk; each chunk and rule is a row group of the file."""
    import pyarrow as pa

    from analysis.certificates.certify import certify
    from pipeline.inputs import artifact_readers as stored

    rules = rules_of(task.settings["rules"])
    schema = task.stage.schema()
    with out.writer() as writer:
        for steps, dist in stored.chunks(inputs["distributions"]):
            result = certify(dist, rules)
            for index, rule in enumerate(rules):
                count = result.accepted_count[:, index]
                arrays = [
                    pa.repeat(rule.label, len(dist)),
                    *steps.columns,
                    pa.array(result.lower[:, index]),
                    pa.array(result.upper[:, index]),
                    pa.array(result.active_size[:, index]),
                    pa.array(count, mask=count <= 0),
                ]
                writer.write_batch(pa.record_batch(arrays, schema=schema))


def summary(task: Task, artifact: Artifact) -> list[Json]:
    """Return a row for each rule, with statistics of its certificates.

    Where the rule rejects nothing there is no certificate; the rule's ceiling counts instead.
    """
    import numpy as np

    from analysis.statistics.bootstrap import summarise
    from pipeline.inputs.artifact_readers import resampled

    rules = rules_of(task.settings["rules"])
    columns = ["prompt_id", "position"]
    steps = artifact.read(columns=columns, rule=rules[0].label)  # the same for every rule
    _, bootstrap = resampled(steps, task.inputs["distributions"], task.runtime.statistics)
    rows = []
    for rule in rules:
        table = artifact.read(columns=["lower", "upper"], rule=rule.label)
        lower, upper = map(numbers, table.columns)
        empty = np.isinf(lower)
        row: Json = {"target": task.runtime.label, "rule": rule.label}
        row |= {"steps": len(lower), "prompts": bootstrap.count}
        values = np.where(empty, rule.ceiling, lower)
        for name, estimate in summarise(values, rule.ceiling, bootstrap).items():
            row |= estimate.columns(name)
        row |= {"empty": float(np.mean(empty)), "inexact": float(np.mean(lower < upper))}
        rows.append(row)
    return rows


STAGE = Stage(
    name="certificates",
    version=6,
    upstream=("distributions",),
    tables={
        "data": {"rule": Column("string", "label of the rule")}
        | STEP
        | {
            "lower": Column(
                "float64", "the certificate is at least this; +inf: nothing is rejected"
            ),
            "upper": Column("float64", "and at most this; equal to lower when it is exact"),
            "active_size": Column("int32", "tokens whose p the closest rejected draft changes"),
            "accepted_count": Column("int32", "accepted ranks n; null for trees or when unknown"),
        }
    },
    plan=plan,
    compute=compute,
    summary=summary,
    printed=True,
)
