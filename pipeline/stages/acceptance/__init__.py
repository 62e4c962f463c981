"""Stage acceptance: what every rule accepts of a drafter, and what certificates guarantee.

Run it with ``python -m pipeline stage=acceptance drafter=...``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.report.text import limits, upper_end
from pipeline.plan.slices import (
    check_stored_tokens,
    lower_bound_marks,
    rule_slice,
    statistics_slice,
)
from pipeline.plan.stage import Request, Stage, SummaryRow
from pipeline.store.columns import COUNTED, STEP
from pipeline.store.node import Node

if TYPE_CHECKING:
    from pipeline.store.artifacts import Artifact

SUMMARY = {  # statistic: its column in a sweep's table
    "acceptance": "accepted",
    "certified": "certified",
    "certified_tv": "certified by TV",  # of engines' logs
    "certified_kl": "certified by KL",
    "coverage": "coverage",
    "departure": "departs",
    "given_up": "given up",
    "realised_per_call": "length",
    "certified_per_call": "certified length",
}
PRICES = (0.0, 0.001, 0.003, 0.01, 0.03)  # target probability given up a step, of `matter`
RANGED = {"certified", "coverage", "certified_per_call"}  # what depends on certificates
INTERVAL = dict.fromkeys(("value", "ci_low", "ci_high"), "float64")
ENDS = {"value": "float64", "optimistic": "float64", **INTERVAL}  # of certificates, as intervals


def nodes(request: Request) -> list[Node]:
    """What the rules accept of a drafter, and what of it is certified, of each target.

    Raises:
        PipelineError: a preset or a dial is no rule, or needs more stored tokens.
    """
    from pipeline.plan.slices import build_dials, build_rules

    config, asked = request.config, request.config.acceptance
    if not request.nodes["drafts"]:
        return []
    slice_: dict[str, Any] = {"rules": [rule_slice(rule) for rule in request.rules]}
    settings: dict[str, Any] = {"rules": request.rules}
    if config.distributions.source == "logs":
        slice_["logged"] = True
    else:
        presets = {
            name: build_rules(preset, f"acceptance.presets.{name}")[0]
            for name, preset in asked.presets.items()
        }
        dials = build_dials(asked.dials)
        turned = [rule for dial in dials for rule in dial.rules]
        if STAGE.name in request.asked:
            check_stored_tokens([*presets.values(), *turned], config.distributions.k)
        slice_ |= {
            "presets": {name: rule_slice(rule) for name, rule in presets.items()},
            "dials": [rule_slice(rule) for rule in turned],
            "divergences": list(asked.divergences),
            "draft_length": asked.draft_length,
        }
        settings |= {"presets": presets, "dials": dials}
    return [
        Node(
            STAGE.name,
            drafts.label,
            slice_ | statistics_slice(config),
            {"drafts": (drafts,)},
            settings=settings
            | {model: drafts.settings[model]["label"] for model in ("target", "drafter")},
        )
        for drafts in request.nodes["drafts"]
    ]


def summary(node: Node, artifact: Artifact) -> list[SummaryRow]:
    """One row a rule of the criteria."""
    facts = artifact.record["facts"]
    rows: dict[str, SummaryRow] = {
        rule.label: {
            "target": node.settings["target"],
            "drafter": node.settings["drafter"],
            "rule": rule.label,
            "steps": facts["steps"],
            "prompts": facts["prompts"],
        }
        for rule in node.settings["rules"]
    }
    for row in artifact.read("statistics").to_pylist():
        if row["rule"] in rows and row["statistic"] in SUMMARY:
            name = SUMMARY[row["statistic"]]
            found = rows[row["rule"]]
            found[name] = row["value"]
            found |= dict(zip(limits(name), (row["ci_low"], row["ci_high"]), strict=True))
            if row["statistic"] in RANGED or "logged" in node.config:
                found[upper_end(name)] = row[upper_end("value")]
            if row["statistic"].endswith("_per_call"):
                found |= lower_bound_marks(name, row)
    return list(rows.values())


def matter(node: Node, rows: list[SummaryRow]) -> tuple[list[SummaryRow], str]:
    """Return at most five rows: for each price in `PRICES`, the rule with the most tokens a call.

    Of the rules that judge tokens it is the best of those that give up at most so much target
    probability a step, by the upper limit of the interval; of equal ones the first. Strict greedy
    gives up none. All rows where nothing is known of the price: of engines' logs.
    """
    judging = {rule.label for rule in node.settings["rules"] if rule.judges_tokens}
    priced = [row for row in rows if row["rule"] in judging and limits("given up")[1] in row]
    best = []
    for price in PRICES:
        allowed = [row for row in priced if row[limits("given up")[1]] <= price]
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
    version=17,
    upstream=("drafts",),
    columns={
        "data": STEP
        | {
            "rule": "string",
            "lower": "float64",
            "upper": "float64",
            "accepted": "bool",
            "certified": "bool",  # kl below lower by more than rounding
        },
        "listing": {  # what the rules are there for
            "group": "string",  # criteria, preset, dial or baseline
            "name": "string",  # of the preset or dial, else empty
            "parameter": "string",  # that a dial turns, else empty
            "setting": "float64",  # its value, else null
            "rule": "string",
        },
        "statistics": {  # analysis.acceptance.summary
            "rule": "string",
            "statistic": "string",
            **ENDS,
            "cut": "float64",  # of lengths: share of segments that trajectories' ends cut
            "cut_optimistic": "float64",
            **COUNTED,
        },
        "breakdown": {  # the same by divergence of the certificates, or by depth of a head's draft
            "rule": "string",  # empty: of the drafter alone
            "divergence": "string",  # or union; empty: kl
            "depth": "int32",  # 0: the first
            "statistic": "string",
            **ENDS,
            **COUNTED,
        },
        "levels": {  # what the mean KL certifies: analysis.acceptance.budgets and sampling
            "rule": "string",  # or the law of an acceptance that is sampled
            "kind": "string",  # uniform, budget, step, realised or measured
            "eps": "float64",  # the drafter's mean KL, nats
            "statistic": "string",  # acceptance, tokens, tokens_<draft length> or probability
            **INTERVAL,
            **COUNTED,
        },
        "frontier": {  # analysis.acceptance.frontier
            "rule": "string",  # empty: the best that any rule can do
            "cost": "string",  # nats or probability
            "tokens": "float64",  # a call
            "tokens_low": "float64",
            "tokens_high": "float64",
            "cut": "float64",  # share of calls that trajectories' ends cut
            "value": "float64",  # of the cost
            "ci_low": "float64",
            "ci_high": "float64",
            "share": "float64",  # accepted steps, of the most at this cost
            "share_low": "float64",
            "share_high": "float64",
            "dial": "float64",  # alpha or t of the best rule
            **COUNTED,
        },
    },
    nodes=nodes,
    module=f"{__name__}.compute",
    summary=summary,
    printed=True,
    matter=matter,
)
