"""Stage acceptance: drafted tokens that every rule accepts, beside those that are certified.

Run it with ``python -m pipeline stage=acceptance drafter=...``. Certificates are computed from the
drafts artifact's own columns: they must belong to the same p as its ranks and KL.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.estimate import Estimate, censored_column
from pipeline.core.columns import COUNTED, CUT, INTERVAL, STEP, Column, Columns, numbers
from pipeline.core.errors import PipelineError
from pipeline.core.files import digest
from pipeline.core.stage import Json, Stage, Task, statistics_entries
from pipeline.inputs.artifact_readers import read_steps
from pipeline.settings.criteria import rules_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from analysis.acceptance.judgement import Judgement, Steps
    from analysis.rules import Rule
    from pipeline.core.stage import Artifact, Inputs, ModelSpec, Out
    from pipeline.study import Study

SUMMARY = {  # statistic: its column in a sweep's table
    "acceptance": "accepted",
    "certified": "certified",
    "coverage": "coverage",
    "departure": "departs",
    "probability_given_up": "p given up",
    "measured_per_call": "length",
    "certified_per_call": "certified length",
}
RULE: Columns = {"rule": Column("string", "label of the rule")}
ENDS: Columns = {
    "value": Column("float64", "the statistic, of certificates from the lower ends"),
    **INTERVAL,
}
SAMPLED = ("tv", "erss_acceptance", "harmonic_mean")  # at the temperature of the answers


def plan(study: Study) -> list[Task]:
    """Return one planned artifact a target."""
    tasks = study.rule_tasks(STAGE, "drafts", **statistics_entries(study.statistics))
    # drafts have the ids of prompts, and the prompts their sources
    return [
        replace(task, inputs={**task.inputs, "prompts": task.inputs["drafts"].inputs["prompts"]})
        for task in tasks
    ]


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Judge every rule, check soundness, and write all statistics."""
    import pandas as pd
    import pyarrow as pa

    from analysis.acceptance.drafter import (
        depth_statistics,
        finite_share,
        rule_statistics,
        source_statistics,
        stochastic_statistics,
    )

    drafts = inputs["drafts"]
    runtime = task.runtime
    pair = task.inputs["drafts"].runtime
    steps = read_steps(drafts)
    prompts = drafts.read(columns=["prompt_id"])["prompt_id"]
    rules = list(
        {rule.label: rule for rule in (StrictGreedy(), *rules_of(task.settings["rules"]))}.values()
    )
    chosen = judge_soundly(pair.pair, prompts, steps, rules)
    bootstrap = PromptBootstrap(steps.trajectories.answer_index, *runtime.statistics)
    rows = [row for judgement in chosen for row in rule_statistics(steps, judgement, bootstrap)]
    parts = [finite_share(steps, bootstrap)]
    sampled = drafts.metadata["sampled_temperature"]
    if sampled is not None:
        table = drafts.read(columns=[f"sampled_{name}" for name in SAMPLED])
        tv, races, harmonic = map(numbers, table.columns)
        rows += stochastic_statistics(tv, races, harmonic, bootstrap)
    for at, deep in enumerate(steps.by_depth if steps.deeper else ()):  # one depth is the first
        by_depth = [judgement.by_depth[at] for judgement in chosen]
        parts += depth_statistics(1 + at, deep, by_depth, bootstrap)
    positions = pa.concat_tables([position_table(judgement, steps) for judgement in chosen])
    out.write(positions.combine_chunks(), "positions")
    named = inputs["prompts"].read(columns=["prompt_id", "source"]).to_pydict()
    sources = dict(zip(named["prompt_id"], named["source"], strict=True))
    answered = prompts.take(steps.trajectories.starts).to_pylist()
    of_answers = [sources[prompt] for prompt in answered]
    by_source = source_statistics(chosen, steps.trajectories, of_answers, runtime.statistics)
    out.write_frame(pd.DataFrame(by_source), "sources")
    say_sources(by_source)
    for name, table in {"statistics": rows, "breakdown": parts}.items():
        out.write_frame(pd.DataFrame(table).assign(prompts=bootstrap.count), name)
    schema = task.stage.schema()
    with out.writer() as writer:
        for judgement in chosen:
            label = pa.repeat(judgement.rule.label, len(steps))
            own = [label, judgement.lower, judgement.upper, judgement.accepted, judgement.certified]
            writer.write_table(pa.table([prompts, steps.position, *own], schema=schema))
    out.metadata |= soundness(pair.models, steps, chosen)
    out.metadata["sampled_temperature"] = sampled


def say_sources(rows: Sequence[Json]) -> None:
    """Print what strict greedy accepts of each source, where there are several."""
    from analysis.report.text import estimate_text

    named = [
        f"{row['source']} {estimate_text(Estimate.read(row), percent=True)} ({row['prompts']})"
        for row in rows
        if row["rule"] == StrictGreedy().label and row["statistic"] == "acceptance"
    ]
    if len(named) > 1:
        print(f"strict greedy accepts, by source (prompts): {', '.join(named)}", flush=True)


def judge_soundly(
    pair: str, prompts: pa.ChunkedArray, steps: Steps, rules: Sequence[Rule]
) -> list[Judgement]:
    """Return `judge` of steps; PipelineError if any rule rejects a certified step, a bug."""
    from analysis.acceptance.judgement import judge

    verdicts = judge(steps, rules)
    for verdict, deep in (
        pair for first in verdicts for pair in zip(first.by_depth, steps.by_depth, strict=False)
    ):
        if len(verdict.violations):
            step = int(verdict.violations[0])
            raise PipelineError(
                f"{pair}: {len(verdict.violations)} steps are certified and rejected, which cannot "
                f"be. The first: rule {verdict.rule.label}, prompt {prompts[step]}, position "
                f"{steps.position[step]}, KL {deep.kl[step]} < certificate {verdict.lower[step]}, "
                f"target rank of the draft {deep.draft_rank[step]}, rank of the target's argmax "
                f"{deep.argmax_rank[step]}. Please report it with this step"
            )
    return verdicts


def position_table(judgement: Judgement, steps: Steps) -> pa.Table:
    """Return how often each position of a draft is tested and accepted, prompt by prompt."""
    import numpy as np
    import pyarrow as pa

    from analysis.decoding.call_costs import LONGEST, PositionCounts
    from analysis.statistics.trajectories import calls_along

    calls = calls_along(judgement.accepted_by_depth, steps.trajectories, LONGEST)
    prompts = len(steps.trajectories.starts)
    counts = PositionCounts.of_calls(prompts, calls.answer_index, calls.tested, calls.accepted)
    columns = {
        "rule": pa.repeat(judgement.rule.label, prompts * LONGEST),
        "answer": np.repeat(np.arange(prompts), LONGEST),
        "position": np.tile(np.arange(1, LONGEST + 1), prompts),
        "tested": counts.tested[:, :LONGEST].ravel(),
        "accepted": counts.accepted[:, :LONGEST].ravel(),
    }
    schema = STAGE.schema("positions")
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in schema]
    return pa.table(arrays, schema=schema)


def soundness(pair: Sequence[ModelSpec], steps: Steps, verdicts: Sequence[Judgement]) -> Json:
    """Return, and print, how many certified decisions were checked; none was rejected.

    Rules that decide alike at every step count once, as additive with t = 0 and strict greedy do.
    """
    different = {
        digest(verdict.accepted.tobytes() + verdict.certified.tobytes()): verdict
        for verdict in verdicts
    }
    facts = {
        **dict(zip(("target", "drafter"), (model.settings.label for model in pair), strict=True)),
        "steps": len(steps),
        "prompts": len(steps.trajectories.starts),
        "rules": len(different),
        "certified": sum(int(verdict.certified.sum()) for verdict in different.values()),
        "violations": sum(len(verdict.violations) for verdict in different.values()),
    }
    print(
        "{drafter} for {target}: {violations:,} of {certified:,} certified decisions rejected, "
        "over {steps:,} steps and {rules} rules that decide differently".format(**facts),
        flush=True,
    )
    return facts


def summary(task: Task, artifact: Artifact) -> list[Json]:
    """One row a rule of the criteria."""
    from analysis.statistics.trajectories import CENSORED

    metadata = artifact.metadata
    target, drafter = task.inputs["drafts"].runtime.models  # as they are named today
    rows: dict[str, Json] = {
        rule.label: {
            "target": target.settings.label,
            "drafter": drafter.settings.label,
            "rule": rule.label,
            "steps": metadata["steps"],
            "prompts": metadata["prompts"],
        }
        for rule in rules_of(task.settings["rules"])
    }
    for row in artifact.read("statistics").to_pylist():
        if row["rule"] in rows and row["statistic"] in SUMMARY:
            name = SUMMARY[row["statistic"]]
            rows[row["rule"]] |= Estimate.read(row).columns(name)
            if row["statistic"].endswith("_per_call"):
                # without a call, as of answers of one token, there is no share of cut calls
                rows[row["rule"]][censored_column(name)] = (row["cut"] or 0.0) > CENSORED
    return list(rows.values())


STAGE = Stage(
    name="acceptance",
    version=28,
    upstream=("prompts", "drafts"),
    tables={
        "data": STEP
        | RULE
        | {
            "lower": Column("float64", "lower end of the certificate"),
            "upper": Column("float64", "upper end"),
            "accepted": Column("bool", "the rule accepts the drafter's argmax"),
            "certified": Column("bool", "kl, or full_kl where it is, is surely below lower"),
        },
        "statistics": RULE
        | {  # analysis.acceptance.drafter
            "statistic": Column("string", "acceptance, certified, coverage, ..."),
            **ENDS,
            **CUT,
            **COUNTED,
        },
        "positions": {  # of the calls along the target's text, drafts of eight tokens
            **RULE,
            "answer": Column("int32", "index of the prompt"),
            "position": Column("int32", "in the draft, from 1"),
            "tested": Column("int32", "calls that tested the token there"),
            "accepted": Column("int32", "calls that accepted it"),
        },
        "sources": RULE
        | {
            "source": Column("string", "of the prompts: their category, else their file"),
            "statistic": Column("string", "acceptance, certified, measured_per_call"),
            "value": ENDS["value"],
            **INTERVAL,
            **COUNTED,
        },
        "breakdown": {
            "rule": Column("string", "label; empty: the drafter alone"),
            "depth": Column("int32", "of a head's draft, from 1; 0: of all tables"),
            "statistic": Column(
                "string",
                "acceptance, certified (of all steps); of the drafter alone finite (share of steps "
                "with a finite KL), kl_median (nats)",
            ),
            **ENDS,
            **COUNTED,
        },
    },
    plan=plan,
    compute=compute,
    summary=summary,
    printed=True,
)
