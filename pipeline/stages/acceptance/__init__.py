"""Stage acceptance: drafted tokens that every rule accepts, beside those that are certified.

Run it with ``python -m pipeline stage=acceptance drafter=...``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.report.text import limits, mark_of
from pipeline.columns import COUNTED, CUT, INTERVAL, STEP, Column, Columns
from pipeline.plan.plain import to_plain
from pipeline.plan.specs import AcceptanceSpec
from pipeline.stage import Json, Stage, Task

if TYPE_CHECKING:
    from pipeline.store import Artifact
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


def plan(study: Study) -> list[Task]:
    """Return one planned artifact a target."""
    spec = AcceptanceSpec(tuple(study.rules), study.statistics)
    return [
        Task(STAGE, drafts.label, to_plain(spec), {"drafts": drafts}, spec)
        for drafts in study.tasks["drafts"]
    ]


def summary(task: Task, artifact: Artifact) -> list[Json]:
    """One row a rule of the criteria."""
    from analysis.statistics.trajectories import CENSORED

    facts, pair = artifact.facts, task.inputs["drafts"].spec
    rows: dict[str, Json] = {
        rule.label: {
            "target": pair.target.settings.label,
            "drafter": pair.drafter.settings.label,
            "rule": rule.label,
            "steps": facts["steps"],
            "prompts": facts["prompts"],
        }
        for rule in task.spec.rules
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
    judging = {rule.label for rule in task.spec.rules if rule.judges_tokens}
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
    compute=f"{__name__}.compute:compute",
    summary=summary,
    printed=True,
    highlights=highlights,
)
