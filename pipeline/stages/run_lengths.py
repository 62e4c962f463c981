"""Stage run_lengths: how many steps in a row are certified, for a target and all rules.

Run it with ``python -m pipeline stage=run_lengths``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.statistics.estimate import censored_column, interval_columns
from pipeline.core.columns import COUNTED, CUT, INTERVAL, Column, numbers
from pipeline.core.stage import Json, Stage, Task, statistics_entries
from pipeline.settings.criteria import rules_of

if TYPE_CHECKING:
    from pipeline.core.stage import Artifact, Inputs, Out
    from pipeline.study import Study


def plan(study: Study) -> list[Task]:
    """Return a task for each target, for all rules."""
    settings = {"eps": study.config.run_lengths.eps, **statistics_entries(study.statistics)}
    return [
        Task(STAGE, upstream.runtime.label, settings, {"certificates": upstream}, upstream.runtime)
        for upstream in study.tasks["certificates"]
    ]


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Estimate the run lengths of each rule from its certificates."""
    import pandas as pd

    from analysis.statistics.run_lengths import run_lengths
    from pipeline.inputs.artifact_readers import resampled

    upstream = task.inputs["certificates"]
    artifact = inputs["certificates"]
    rules = rules_of(upstream.settings["rules"])
    columns = ["prompt_id", "position"]
    steps = artifact.read(columns=columns, rule=rules[0].label)  # the same for every rule
    resamples = resampled(steps, upstream.inputs["distributions"], task.runtime.statistics)
    frames = []
    for rule in rules:
        lower = numbers(artifact.read(columns=["lower"], rule=rule.label)["lower"])
        frame = run_lengths(lower, task.settings["eps"], *resamples)
        frames.append(frame.assign(rule=rule.label))
    out.metadata |= {"prompts": resamples[1].count, "steps": len(steps)}
    out.write_frame(pd.concat(frames, ignore_index=True))


def summary(task: Task, artifact: Artifact) -> list[Json]:
    """Return a row for each rule and eps: the certified length per target call."""
    from analysis.statistics.trajectories import CENSORED

    names = ["value", *interval_columns("value"), "prompts"]
    return [
        {"target": task.label, **{name: row[name] for name in ("rule", "eps", "estimator", *names)}}
        | {censored_column("value"): bool(row["cut"] > CENSORED)}
        for row in artifact.read().to_pylist()
        if row["estimator"] == "per_call"
    ]


STAGE = Stage(
    name="run_lengths",
    version=7,
    upstream=("certificates",),
    tables={
        "data": {
            "rule": Column("string", "label of the rule"),
            "eps": Column("float64", "the drafter's KL at every step, at most, in nats"),
            "estimator": Column("string", "per_call, mean_run or random_100: docs/method.md"),
            "value": Column("float64", "tokens, from lower"),
            **INTERVAL,
            **CUT,
            "failures": Column("int64", "steps not certified at eps"),
            "failing_prompts": Column("int32", "answers with such a step"),
            **COUNTED,
            "steps": Column("int64", "all steps"),
        }
    },
    plan=plan,
    compute=compute,
    summary=summary,
)
