"""Stage acceptance: drafted tokens that every rule accepts, beside those that are certified.

Run it with ``python -m pipeline stage=acceptance drafter=...``. Certificates are computed from the
drafts artifact's own columns: they must belong to the same p as its ranks and KL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis.report.text import limits, mark_of
from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import PromptBootstrap
from pipeline.columns import COUNTED, CUT, INTERVAL, STEP, Column, Columns
from pipeline.criteria import mistakes
from pipeline.errors import PipelineError
from pipeline.stage import Json, Stage, Task, statistics_entries
from pipeline.stored import read_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from analysis.acceptance.judgement import Judgement, Steps
    from analysis.rules import Rule
    from analysis.statistics.bootstrap import Floats
    from pipeline.models.spec import ModelSpec
    from pipeline.stage import Artifact, Inputs, Out
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
PRICES = (0.0, 0.001, 0.003, 0.01, 0.03)  # target probability given up a step, of `highlights`
RULE: Columns = {"rule": Column("string", "label of the rule")}
ENDS: Columns = {
    "value": Column("float64", "the statistic, of certificates from the lower ends"),
    **INTERVAL,
}
SAMPLED = ("tv", "erss_acceptance", "harmonic_mean")  # at the temperature of the answers


def plan(study: Study) -> list[Task]:
    """Return one planned artifact a target."""
    return study.rule_tasks(STAGE, "drafts", **statistics_entries(study.statistics))


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Judge every rule, check soundness, and write all statistics.

    Raises:
        PipelineError: a certified step was rejected; names the rule and the step.
    """
    import pandas as pd
    import pyarrow as pa

    from analysis.acceptance.summary import (
        depth_statistics,
        finite_share,
        rule_statistics,
        stochastic_statistics,
    )

    drafts, runtime, pair = inputs["drafts"], task.runtime, task.inputs["drafts"].runtime
    steps, prompts = read_steps(drafts), drafts.read(columns=["prompt_id"])["prompt_id"]
    all_rules = [StrictGreedy(), *runtime.rules]
    per_step = {rule.label: rule for rule in all_rules}  # each once, in order
    chosen = judge_soundly(pair.pair, prompts, steps, list(per_step.values()))
    bootstrap = PromptBootstrap(steps.trajectories.prompts, *runtime.statistics)
    frames = {
        "statistics": [rule_statistics(steps, judgement, bootstrap) for judgement in chosen],
        "breakdown": [finite_share(steps, bootstrap)],
    }
    sampled = drafts.facts["sampled_temperature"]
    if sampled is not None:
        table = drafts.read(columns=[f"sampled_{name}" for name in SAMPLED])
        tv, races, harmonic = (column.to_numpy() for column in table.columns)
        frames["statistics"].append(stochastic_statistics(tv, races, harmonic, bootstrap))
    for at, deep in enumerate(steps.by_depth if steps.deeper else ()):  # one depth is the first
        by_depth = [judgement.by_depth[at] for judgement in chosen]
        frames["breakdown"].append(depth_statistics(1 + at, deep, by_depth, bootstrap))
    tables = {
        name: pd.concat(parts).assign(prompts=bootstrap.count) for name, parts in frames.items()
    }
    for name, frame in tables.items():
        out.write_frame(frame, name)
    schema = task.stage.schema()
    with out.writer() as writer:
        for judgement in chosen:
            label = pa.repeat(judgement.rule.label, len(steps))
            own = [label, judgement.lower, judgement.upper, judgement.accepted, judgement.certified]
            writer.write_table(pa.table([prompts, steps.position, *own], schema=schema))
    out.facts |= soundness(pair.models, steps, chosen)
    out.facts["sampled_temperature"] = sampled


def judge_soundly(
    pair: str, prompts: pa.ChunkedArray, steps: Steps, rules: Sequence[Rule]
) -> list[Judgement]:
    """Return `judge` of steps, and check that no certified step is rejected, under any rule.

    Raises:
        PipelineError: one is; the theory or a computation is wrong. Or a user's rule fails.
    """
    from analysis.acceptance.judgement import judge

    with mistakes(rules):
        verdicts = judge(steps, rules)
    for verdict, deep in (
        pair for first in verdicts for pair in zip(first.by_depth, steps.by_depth, strict=False)
    ):
        if len(verdict.violations):
            step = int(verdict.violations[0])
            raise PipelineError(
                f"{pair}: {len(verdict.violations)} "
                f"steps are certified and rejected, which cannot be. The first: rule "
                f"{verdict.rule.label}, prompt {prompts[step]}, position "
                f"{int(steps.position[step])}, KL {float(deep.kl[step])!r} < certificate "
                f"{float(verdict.lower[step])!r}, target rank of the draft "
                f"{int(deep.draft_rank[step])}, rank of the target's argmax "
                f"{int(deep.argmax_rank[step])}. Please report it with this step"
            )
    return verdicts


def soundness(pair: Sequence[ModelSpec], steps: Steps, verdicts: Sequence[Judgement]) -> Json:
    """Return, and print, the record's facts on soundness; `check_sound` has passed.

    Rules that decide alike at every step count once, as additive with t = 0 and strict greedy do.
    tightest_rejected is the least KL - R of a rejected step, tightest_certified the least R - KL
    of a certified one, over all rules, in nats, R the lower end: how near the steps come to
    contradicting the theory, and to losing its guarantee.
    """
    different: dict[tuple[bytes, bytes], Judgement] = {}
    for verdict in verdicts:
        different.setdefault((verdict.accepted.tobytes(), verdict.certified.tobytes()), verdict)

    def tightest(slack: Callable[[Judgement], Floats]) -> Json | None:
        least = [
            (float(slack(verdict).min(initial=np.inf)), verdict.rule.label) for verdict in verdicts
        ]
        nats, rule = min(least, key=lambda pair: pair[0])
        return {"nats": nats, "rule": rule} if np.isfinite(nats) else None

    near = {
        "tightest_rejected": tightest(
            lambda verdict: -steps.slack(verdict.lower)[~verdict.accepted]
        ),
        "tightest_certified": tightest(
            lambda verdict: steps.slack(verdict.lower)[verdict.certified]
        ),
    }
    facts = {
        **dict(zip(("target", "drafter"), (model.settings.label for model in pair), strict=True)),
        "steps": len(steps),
        "prompts": len(steps.trajectories.starts),
        "rules": len(different),
        "checked": len(steps) * len(different),
        "certified": sum(int(verdict.certified.sum()) for verdict in different.values()),
        "violations": sum(len(verdict.violations) for verdict in different.values()),
        **near,
        "mean_kl": float(steps.kl.mean()),
        "median_kl": float(np.median(steps.kl)),
    }
    words = ("least KL - R among rejected steps", "least R - KL among certified steps")
    print(
        "{drafter} for {target}: {violations:,} of {certified:,} certified decisions rejected, "
        "over {steps:,} steps and {rules} rules that decide differently".format(**facts),
        *(
            "{of}: {nats:.3g} nats ({rule})".format(of=of, **verdict)
            for of, verdict in zip(words, near.values(), strict=True)
            if verdict is not None
        ),
        sep="; ",
        flush=True,
    )
    return facts


def summary(task: Task, artifact: Artifact) -> list[Json]:
    """One row a rule of the criteria."""
    from analysis.statistics.trajectories import CENSORED

    facts = artifact.facts
    target, drafter = task.inputs["drafts"].runtime.models  # as they are named today
    rows: dict[str, Json] = {
        rule.label: {
            "target": target.settings.label,
            "drafter": drafter.settings.label,
            "rule": rule.label,
            "steps": facts["steps"],
            "prompts": facts["prompts"],
        }
        for rule in task.runtime.rules
    }
    for row in artifact.read("statistics").to_pylist():
        if row["rule"] in rows and row["statistic"] in SUMMARY:
            name = SUMMARY[row["statistic"]]
            of_rule = rows[row["rule"]]
            of_rule[name] = row["value"]
            of_rule |= dict(zip(limits(name), (row["ci_low"], row["ci_high"]), strict=True))
            if row["statistic"].endswith("_per_call"):
                of_rule[mark_of(name)] = bool(row["cut"] > CENSORED)
    return list(rows.values())


def highlights(task: Task, rows: list[Json]) -> tuple[list[Json], str]:
    """Return at most five rows: for each price in `PRICES`, the rule with the most tokens a call.

    Of the rules that judge tokens it is the best of those that give up at most so much target
    probability a step, by the upper limit of the interval; of equal ones the first. Strict greedy
    gives up none.
    """
    judging = {rule.label for rule in task.runtime.rules if rule.judges_tokens}
    priced = [row for row in rows if row["rule"] in judging and limits("p given up")[1] in row]
    best = []
    for price in PRICES:
        allowed = [row for row in priced if row[limits("p given up")[1]] <= price]
        if allowed:
            best.append(max(allowed, key=lambda row: row["length"]))
    kept = {row["rule"] for row in best}
    prices = ", ".join(f"{100 * price:g}" for price in PRICES)
    return [row for row in rows if row["rule"] in kept] if priced else rows, (
        f"the rules with the most tokens a call that surely give up at most {prices} % of target "
        "probability a step"
    )


STAGE = Stage(
    name="acceptance",
    version=25,
    upstream=("drafts",),
    tables={
        "data": STEP
        | RULE
        | {
            "lower": Column("float64", "lower end of the certificate"),
            "upper": Column("float64", "upper end"),
            "accepted": Column("bool", "the rule accepts the drafter's argmax"),
            "certified": Column(
                "bool", "kl, or full_kl where it is, lies below lower by more than rounding"
            ),
        },
        "statistics": RULE
        | {  # analysis.acceptance.summary
            "statistic": Column("string", "acceptance, certified, coverage, ..."),
            **ENDS,
            **CUT,
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
    highlights=highlights,
)
