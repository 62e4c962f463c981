"""Stage acceptance: which drafted tokens each rule accepts, and which it certifies.

Run it with ``python -m pipeline stage=acceptance drafter=...``. Certificates are computed from the
drafts artifact's own columns: they must belong to the same p as its ranks and KL.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.estimate import Estimate, censored_column
from pipeline.core.columns import COUNTED, CUT, INTERVAL, STEP, Column, Columns, numbers
from pipeline.core.files import digest
from pipeline.core.stage import Json, Stage, Task, statistics_entries
from pipeline.inputs.artifact_readers import read_steps
from pipeline.settings.criteria import rules_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import pyarrow as pa

    from analysis.acceptance.drafter import SourceCounts
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
HELD = 2**30  # bytes of judgements that are held
SAMPLED = ("tv", "erss_acceptance", "harmonic_mean")  # at the temperature of the answers


def plan(study: Study) -> list[Task]:
    """Return a task for each target."""
    tasks = study.rule_tasks(STAGE, "drafts", **statistics_entries(study.statistics))
    # drafts have the ids of prompts, and the prompts their sources
    return [
        replace(task, inputs={**task.inputs, "prompts": task.inputs["drafts"].inputs["prompts"]})
        for task in tasks
    ]


class Decisions(NamedTuple):
    """How many decisions of a rule were certified, and how many of these were rejected."""

    certified: int
    violations: int


class JudgementResults(NamedTuple):
    """What is computed from each rule's judgement, which is too large to keep for all rules."""

    rows: list[Json]  # `rule_statistics`
    by_depth: dict[int, list[Json]]  # `depth_statistics`, and the `depth_shares` of the rules
    by_source: dict[str, SourceCounts]  # by the label of the rule
    decisions: dict[str, Decisions]  # by `decision_digest`: rules that decide alike count once


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Judge the drafts by every rule, check soundness, and write all statistics."""
    import pandas as pd

    from analysis.acceptance.drafter import finite_share, source_statistics, stochastic_statistics

    drafts = inputs["drafts"]
    runtime = task.runtime
    pair = task.inputs["drafts"].runtime
    steps = read_steps(drafts)
    prompts = drafts.read(columns=["prompt_id"])["prompt_id"]
    rules = list(
        {rule.label: rule for rule in (StrictGreedy(), *rules_of(task.settings["rules"]))}.values()
    )
    bootstrap = PromptBootstrap(steps.trajectories.answer_index, *runtime.statistics)
    judged = write_judgements(
        judgements(pair.pair, prompts, steps, rules), steps, prompts, bootstrap, out
    )
    rows = judged.rows
    sampled = drafts.metadata["sampled_temperature"]
    if sampled is not None:
        table = drafts.read(columns=[f"sampled_{name}" for name in SAMPLED])
        tv, races, harmonic = map(numbers, table.columns)
        rows += stochastic_statistics(tv, races, harmonic, bootstrap)
    parts = [finite_share(steps, bootstrap), *chain.from_iterable(judged.by_depth.values())]
    named = inputs["prompts"].read(columns=["prompt_id", "source"]).to_pydict()
    sources = dict(zip(named["prompt_id"], named["source"], strict=True))
    answered = prompts.take(steps.trajectories.starts).to_pylist()
    of_answers = [sources[prompt] for prompt in answered]
    by_source = source_statistics(judged.by_source, of_answers, runtime.statistics)
    out.write_frame(pd.DataFrame(by_source), "sources")
    say_sources(by_source)
    for name, table in {"statistics": rows, "breakdown": parts}.items():
        out.write_frame(pd.DataFrame(table).assign(prompts=bootstrap.count), name)
    out.metadata |= soundness(pair.models, steps, judged.decisions.values())
    out.metadata["sampled_temperature"] = sampled


def judgements(
    pair: str, prompts: pa.ChunkedArray, steps: Steps, rules: Sequence[Rule]
) -> Iterator[Judgement]:
    """Yield the judgement of each rule; as many rules are judged at once as fit into memory."""
    from analysis.acceptance.judgement import judgement_bytes

    of_a_rule = len(steps) * judgement_bytes(len(steps.by_depth))
    at_once = max(1, HELD // of_a_rule)
    for begin in range(0, len(rules), at_once):
        yield from judge_soundly(pair, prompts, steps, rules[begin : begin + at_once])


def write_judgements(
    judged: Iterable[Judgement],
    steps: Steps,
    prompts: pa.ChunkedArray,
    bootstrap: PromptBootstrap,
    out: Out,
) -> JudgementResults:
    """Write the steps and the lengths of each judgement; return what the other tables need."""
    import pyarrow as pa

    from analysis.acceptance.drafter import (
        depth_shares,
        depth_statistics,
        rule_statistics,
        source_counts,
    )

    depths = list(enumerate(steps.by_depth, 1)) if steps.deeper else []  # one depth is the first
    by_depth = {depth: depth_statistics(depth, deep, bootstrap) for depth, deep in depths}
    results = JudgementResults([], by_depth, {}, {})
    schema = out.stage.schema()
    with out.writer() as data, out.writer("lengths") as lengths:
        for judgement in judged:
            label = judgement.rule.label
            results.rows.extend(rule_statistics(steps, judgement, bootstrap))
            for depth, rows in by_depth.items():
                rows += depth_shares(depth, judgement.by_depth[depth - 1], bootstrap)
            results.by_source[label] = source_counts(judgement, steps.trajectories)
            results.decisions[decision_digest(judgement)] = Decisions(
                int(judgement.certified.sum()), len(judgement.violations)
            )
            lengths.write_table(length_table(judgement, steps))
            values = [judgement.lower, judgement.upper, judgement.accepted, judgement.certified]
            columns = [prompts, steps.position, pa.repeat(label, len(steps)), *values]
            data.write_table(pa.table(columns, schema=schema))
            del judgement, values, columns  # they keep all rules that were judged with this one
    return results


def say_sources(rows: Sequence[Json]) -> None:
    """Print the acceptance under strict greedy by source of the prompts, if there are several."""
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
    """Judge the drafts by each rule, and check that no certified draft is rejected.

    Raises:
        AssertionError: one is, which is a bug of this project; it names the first step.
    """
    from analysis.acceptance.judgement import judge

    verdicts = judge(steps, rules)
    judged_depths = (
        judged for first in verdicts for judged in zip(first.by_depth, steps.by_depth, strict=False)
    )
    for verdict, deep in judged_depths:
        if len(verdict.violations):
            step = int(verdict.violations[0])
            raise AssertionError(
                f"{pair}: {len(verdict.violations)} steps are certified and rejected, which cannot "
                f"be. The first: rule {verdict.rule.label}, prompt {prompts[step]}, position "
                f"{steps.position[step]}, KL {deep.kl[step]} < certificate {verdict.lower[step]}, "
                f"target rank of the draft {deep.draft_rank[step]}, rank of the target's argmax "
                f"{deep.argmax_rank[step]}. Please report it with this step"
            )
    return verdicts


def length_table(judgement: Judgement, steps: Steps) -> pa.Table:
    """Return, by draft length, how many calls each answer takes and how many tokens they emit."""
    import numpy as np
    import pyarrow as pa

    from analysis.decoding.predicted_speed import MAX_DRAFT_LENGTH
    from analysis.statistics.trajectories import count_calls

    lengths = range(1, MAX_DRAFT_LENGTH + 1)
    flags = judgement.accepted_by_depth
    trajectories = steps.trajectories
    counted = [count_calls(flags, trajectories, length) for length in lengths]
    answers = len(trajectories.starts)
    columns = {
        "rule": pa.repeat(judgement.rule.label, answers * MAX_DRAFT_LENGTH),
        "answer": np.repeat(np.arange(answers), MAX_DRAFT_LENGTH),
        "draft_length": np.tile(lengths, answers),
        "calls": np.stack([of_length.calls for of_length in counted], axis=1).ravel(),
        "tokens": np.stack([of_length.tokens for of_length in counted], axis=1).ravel(),
    }
    schema = STAGE.schema("lengths")
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in schema]
    return pa.table(arrays, schema=schema)


def decision_digest(judgement: Judgement) -> str:
    """Return a digest of a rule's decisions: what it accepts, and what is certified.

    Rules that decide alike at every step have the same digest, as additive with t = 0 and strict
    greedy.
    """
    return digest(judgement.accepted.tobytes() + judgement.certified.tobytes())


def soundness(pair: Sequence[ModelSpec], steps: Steps, decisions: Collection[Decisions]) -> Json:
    """Return, and print, how many certified decisions were checked, and how many were rejected.

    `decisions` are of rules that decide differently.
    """
    facts = {
        **dict(zip(("target", "drafter"), (model.settings.label for model in pair), strict=True)),
        "steps": len(steps),
        "prompts": len(steps.trajectories.starts),
        "rules": len(decisions),
        "certified": sum(of_rule.certified for of_rule in decisions),
        "violations": sum(of_rule.violations for of_rule in decisions),
    }
    print(
        "{drafter} for {target}: {violations:,} of {certified:,} certified decisions rejected, "
        "over {steps:,} steps and {rules} rules that decide differently".format(**facts),
        flush=True,
    )
    return facts


def summary(task: Task, artifact: Artifact) -> list[Json]:
    """Return a row for each rule of `criteria`."""
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
    version=29,
    upstream=("prompts", "drafts"),
    tables={
        "data": STEP
        | RULE
        | {
            "lower": Column("float64", "lower end of the certificate"),
            "upper": Column("float64", "upper end"),
            "accepted": Column("bool", "the rule accepts the drafter's argmax"),
            "certified": Column(
                "bool",
                "the step's KL (full_kl if that column exists) is below `lower` by more than "
                "rounding errors, or the rule rejects nothing there",
            ),
        },
        "statistics": RULE
        | {  # analysis.acceptance.drafter
            "statistic": Column("string", "acceptance, certified, coverage, ..."),
            **ENDS,
            **CUT,
            **COUNTED,
        },
        "lengths": {  # of the calls along the target's text
            **RULE,
            "answer": Column("int32", "index of the prompt"),
            "draft_length": Column("int32", "tokens of a draft"),
            "calls": Column("int32", "that the answer takes, after prefill"),
            "tokens": Column("int32", "that the calls give"),
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
