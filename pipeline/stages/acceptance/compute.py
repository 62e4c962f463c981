"""Judges every rule on every step, and compares with what the certificates promised.

Certificates are computed from
the drafts artifact's own columns: they must belong to the same p as its ranks and KL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.acceptance.frontier import frontier
from analysis.acceptance.realised import Steps, Verdict, judge, profile
from analysis.acceptance.relaxation import smallest_relaxation
from analysis.acceptance.summary import (
    depth_statistics,
    kl_needed,
    rule_statistics,
    stochastic_statistics,
)
from analysis.rules import Rule, StrictGreedy
from analysis.rules.dials import Dial
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.topk import TopK
from pipeline.errors import PipelineError
from pipeline.plan.stage import Node
from pipeline.plan.summaries import bootstrap_settings
from pipeline.stages.acceptance.beyond import (
    budget_rows,
    divergence_rows,
    judge_by_divergence,
    ranking_rows,
    read_distances,
    sampling_rows,
    stopping_rows,
)
from pipeline.store import columns, distributions
from pipeline.store.artifacts import Artifact, Pending

POSITIONS = 16  # of a bin of the profile
DECILES = 10
STEP_COLUMNS = (
    "position",
    "kl",
    "draft_rank",
    "draft_log_prob",
    "argmax_rank",
)  # as Steps has them
SAMPLED_COLUMNS = (  # what stochastic_statistics takes
    "sampled_tv",
    "sampled_erss_acceptance",
    "sampled_harmonic_mean",
    "sampled_draft_prob",
)


def compute(node: Node, upstream: dict[str, list[Artifact]], pending: Pending) -> None:
    """Judge every rule, check soundness, and write all statistics.

    Raises:
        PipelineError: a certified step was rejected; names the rule and the step.
    """
    drafts, config, settings = upstream["drafts"][0], node.config, node.settings
    if "logged" in config:
        from pipeline.stages.acceptance.logged import judge_logs

        judge_logs(node, drafts, pending)
        return
    steps, table = read_steps(drafts)
    per_step = unique([StrictGreedy(), *settings["rules"], *settings["presets"].values()])
    turned = [rule for dial in settings["dials"] for rule in dial.rules]
    rules = unique([*per_step.values(), *turned])
    verdicts = {verdict.rule.label: verdict for verdict in judge(steps, list(rules.values()))}
    check_sound(verdicts.values(), steps, table["prompt_id"], settings)
    distances = read_distances(drafts, config["divergences"])
    judged = judge_by_divergence(steps, per_step, verdicts, distances)
    for name, by_rule in judged.items():
        check_sound(by_rule.values(), steps, table["prompt_id"], settings, name, distances[name])
    bootstrap = PromptBootstrap(steps.trajectories.prompts, *bootstrap_settings(config))
    by_depth = []
    for depth, deep in enumerate(read_depths(drafts, steps.target), start=1):
        found = judge(deep, list(per_step.values()))
        check_sound(found, deep, table["prompt_id"], settings)
        by_depth.append(depth_statistics(depth, deep, found, bootstrap))
    frames = {
        "listing": rule_listing(settings),
        "statistics": pd.concat(
            [
                *[
                    rule_statistics(steps, verdict, bootstrap, config["window"])
                    for verdict in verdicts.values()
                ],
                *sampled_statistics(drafts, table, steps, bootstrap),
            ]
        ).assign(**bootstrap.counted),
        "profile": pd.concat(
            [profile(steps, verdicts[label], POSITIONS, DECILES) for label in per_step]
        ),
        "depths": pd.DataFrame(
            pd.concat(by_depth) if by_depth else [],
            columns=columns.schema("acceptance", "depths").names,
        ).assign(**bootstrap.counted),
        "divergences": divergence_rows(judged, distances, bootstrap).assign(**bootstrap.counted),
        "budgets": budget_rows(
            steps,
            [verdicts[label] for label in per_step],
            bootstrap,
            config["stopping"]["draft_length"],
        ).assign(**bootstrap.counted),
        "sampling": sampling_rows(drafts, steps, list(per_step.values()), bootstrap).assign(
            **bootstrap.counted
        ),
        "ranking": ranking_rows(steps, judged, distances, bootstrap).assign(**bootstrap.counted),
        "frontier": frontier(steps, list(verdicts.values()), bootstrap).assign(**bootstrap.counted),
        "stopping": stopping_rows(drafts, steps, config["stopping"], bootstrap).assign(
            **bootstrap.counted
        ),
        "needed": pd.concat(
            [kl_needed(verdicts[label], config["fractions"], bootstrap) for label in per_step]
        ).assign(**bootstrap.counted),
        "reached": pd.DataFrame(
            [
                smallest_relaxation(dial, steps, config["wanted_length"], kind)
                for dial in settings["dials"]
                for kind in ("realised", "certified")
            ],
            columns=columns.schema("acceptance", "reached").names,  # without dials as well
        ),
    }
    for name, frame in frames.items():
        schema = columns.schema("acceptance", name)
        if frame.empty:  # a frame of nothing has no columns
            frame = pd.DataFrame(columns=schema.names)
        pending.write(name, pa.Table.from_pandas(frame, schema=schema, preserve_index=False))
    schema = columns.schema("acceptance")
    with pending.writer("data", schema) as writer:
        for label in per_step:
            writer.write_table(step_rows(table, verdicts[label], schema))
    pending.facts |= soundness_facts(settings, steps, frames["statistics"], frames["listing"])
    pending.facts["sampled_temperature"] = drafts.record["facts"]["sampled_temperature"]
    print_soundness(pending.facts)


def sampled_statistics(
    drafts: Artifact, table: pa.Table, steps: Steps, bootstrap: PromptBootstrap
) -> list[pd.DataFrame]:
    """Return the statistics of stochastic verification; none where the answers were not sampled."""
    if drafts.record["facts"]["sampled_temperature"] is None:
        return []
    tv, races, harmonic, argmax = (table[name].to_numpy() for name in SAMPLED_COLUMNS)
    return [stochastic_statistics(tv, races, harmonic, argmax, steps.trajectories, bootstrap)]


def unique(rules: Sequence[Rule]) -> dict[str, Rule]:
    """Return rules by label, each once, in order."""
    return {rule.label: rule for rule in rules}


def read_steps(drafts: Artifact) -> tuple[Steps, pa.Table]:
    """Read a drafts artifact: what the rules need, and its plain columns."""
    table = drafts.read(columns=["prompt_id", *STEP_COLUMNS, *SAMPLED_COLUMNS])
    target = distributions.read_distributions(drafts, drafts.record["facts"]["temperature"])
    return Steps(target, **{name: table[name].to_numpy() for name in STEP_COLUMNS}), table


def read_depths(drafts: Artifact, target: TopK) -> list[Steps]:
    """Read what the drafter says at each depth; nothing where there is one: `read_steps` has it."""
    table = drafts.read(columns=["position", *(f"depth_{name}" for name in STEP_COLUMNS[1:])])
    position = table["position"].to_numpy()
    lists = {
        name: table[f"depth_{name}"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
        for name in STEP_COLUMNS[1:]
    }
    depths = lists["kl"].shape[1]
    return [
        Steps(target, position, **{name: values[:, d] for name, values in lists.items()})
        for d in range(depths if depths > 1 else 0)
    ]


def check_sound(
    verdicts: Any,
    steps: Steps,
    prompts: pa.ChunkedArray,
    settings: Any,
    divergence: str = "KL",
    distance: np.ndarray | None = None,
) -> None:
    """Check that no certified step is rejected, under any rule.

    `distance` (N,) is by how much target and drafter differ in the divergence of the certificates,
    the KL if not given.

    Raises:
        PipelineError: one is; the theory or a computation is wrong.
    """
    distance = steps.kl if distance is None else distance
    for verdict in verdicts:
        if len(verdict.violations):
            step = int(verdict.violations[0])
            raise PipelineError(
                f"{settings['target']} and {settings['drafter']}: {len(verdict.violations)} "
                f"steps are certified and rejected, which cannot be. The first: rule "
                f"{verdict.rule.label}, prompt {prompts[step]}, position "
                f"{int(steps.position[step])}, {divergence} "
                f"{float(distance[step])!r} < certificate "
                f"{float(verdict.lower[step])!r}, target rank of the draft "
                f"{int(steps.draft_rank[step])}, rank of the target's argmax "
                f"{int(steps.argmax_rank[step])}. Please report it with this step"
            )


def rule_listing(settings: Any) -> pd.DataFrame:
    """Say what each rule is there for."""

    def row(group: str, rule: Rule, name: str = "", dial: Dial | None = None) -> dict[str, Any]:
        return {
            "group": group,
            "name": name,
            "parameter": dial.parameter if dial else "",
            "setting": dial.value(rule) if dial else None,
            "rule": rule.label,
        }

    return pd.DataFrame(
        [
            row("baseline", StrictGreedy()),
            *(row("criteria", rule) for rule in settings["rules"]),
            *(row("preset", rule, name) for name, rule in settings["presets"].items()),
            *(
                row("dial", rule, dial.name, dial)
                for dial in settings["dials"]
                for rule in dial.rules
            ),
        ]
    )


def step_rows(table: pa.Table, verdict: Verdict, schema: pa.Schema) -> pa.Table:
    """Return the rows of data.parquet of one rule."""
    return pa.table(
        [
            table["prompt_id"],
            table["position"],
            pa.repeat(verdict.rule.label, len(table)),
            verdict.lower,
            verdict.upper,
            verdict.accepted,
            verdict.certified,
        ],
        schema=schema,
    )


def print_soundness(found: dict[str, Any]) -> None:
    """Print the count of violations and the tightest slacks."""
    near = "".join(
        f"; least {slack}: {found[key]['nats']:.3g} nats ({found[key]['rule']})"
        for key, slack in (
            ("tightest_rejected", "KL - R among rejected steps"),
            ("tightest_certified", "R - KL among certified steps"),
        )
        if found[key]
    )
    print(
        f"{found['drafter']} for {found['target']}: {found['violations']} of "
        f"{found['certified']} certified decisions rejected, over {found['steps']} steps and "
        f"{found['rules']} rules{near}",
        flush=True,
    )


def soundness_facts(
    settings: Any, steps: Steps, statistics: pd.DataFrame, listed: pd.DataFrame
) -> dict[str, Any]:
    """Return what the record says of soundness; `check_sound` has passed.

    tightest_rejected is the least KL - R of a rejected step, tightest_certified the least R - KL
    of a certified one, over all rules, in nats, R the lower end: how near the steps come to
    contradicting the theory, and to losing its promise.
    """
    table = statistics.pivot(index="rule", columns="statistic", values="value")
    table = table.loc[listed["rule"].unique()]
    found = {
        "target": settings["target"],
        "drafter": settings["drafter"],
        "steps": len(steps),
        "prompts": len(steps.trajectories.starts),
        "rules": len(table),
        "checked": len(steps) * len(table),
        "certified": round(float(table["certified"].sum() * len(steps))),
        "violations": int(table["violations"].sum()),
    }
    for name in ("tightest_rejected", "tightest_certified"):
        value = float(table[name].min())
        found[name] = {"nats": value, "rule": table[name].idxmin()} if np.isfinite(value) else None
    return found | {"mean_kl": float(steps.kl.mean()), "median_kl": float(np.median(steps.kl))}
