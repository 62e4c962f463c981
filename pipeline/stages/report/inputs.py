"""Inputs of the report: the artifacts of every target, as frames and as arrays of its steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.acceptance.judgement import judge
from analysis.certificates.certify import certify
from analysis.certificates.closed_forms import compared_steps
from analysis.page.grid import certified_steps, settings
from analysis.page.steps import CANDIDATES
from analysis.report.measured import Results, Target, certificate_statistics, top_statistics
from analysis.report.published import EPS, PAPERS, TABLE2
from analysis.report.records import together
from analysis.report.sections.bounds import RuleSteps
from analysis.report.sections.published_matched import RULES, nearest_temperature
from analysis.rules import Rule, StrictGreedy, Tree, build
from analysis.rules.build import ParameterRange, build_range
from analysis.statistics.bootstrap import PromptBootstrap, top_probability
from analysis.statistics.run_lengths import run_lengths
from analysis.statistics.trajectories import Trajectories, inside_repeats
from pipeline.plan.slices import bootstrap_settings
from pipeline.store import distributions
from pipeline.store.artifacts import Artifact
from pipeline.store.columns import numbers
from pipeline.store.node import Node

PAIR_FRAMES = {  # of Results, and the files of stage acceptance that they are
    "acceptance": "statistics",
    "breakdown": "breakdown",
    "levels": "levels",
    "frontier": "frontier",
}
RANKS = (1, 3, 5, 10, 25)  # the paper's Table 1
DRAFT = {  # of stage drafts, and their names in `Target.draft`
    "draft_token_id": "token",
    "draft_rank": "rank",
    "draft_top_surprisal": "q",
    "draft_log_prob": "p_draft",
}
UNNAMED = "log"  # conf/target/log.yaml
Upstream = Mapping[str, Sequence[Artifact]]  # by stage


def by_target(node: Node, upstream: Upstream) -> list[Upstream]:
    """Return the artifacts of each target by stage; upstream lists follow the targets."""
    count = len(node.config["targets"])
    return [
        {
            name: artifacts[at * len(artifacts) // count : (at + 1) * len(artifacts) // count]
            for name, artifacts in upstream.items()
            if artifacts
        }
        for at in range(count)
    ]


def with_names_of_logs(node: Node, sources: Sequence[Upstream]) -> Node:
    """Return the node of the report, a log without a name of its own under that of its model."""
    labels = list(node.config["targets"])
    for at, (label, mine) in enumerate(zip(labels, sources, strict=True)):
        record = mine["distributions"][0].record
        if "log" in record["config"] and label == UNNAMED:
            labels[at] = record["facts"]["model"].rstrip("/").rpartition("/")[2] or label
    names = labels if len(set(labels)) == len(labels) else node.config["targets"]
    return replace(node, config={**node.config, "targets": names})


def read_target(node: Node, at: int, sources: Upstream) -> Target:
    """Read the target number `at` from its artifacts."""
    (prompts,), (dump,) = sources["prompts"], sources["distributions"]
    rules = [build(mapping) for mapping in node.config["rules"]]
    ranks = [k for k in RANKS if k <= dump.record["facts"]["k"]]
    undefined = {rule.label: 0 for rule in rules if rule.undefined_means}
    top, candidates, probabilities = [], [], []
    possible = (
        settings(build_range(mapping), dump.record["facts"]["k"])
        for mapping in node.config["ranges"]
    )
    swept: dict[ParameterRange, Any] = {each: 0 for each in possible if each.rules}
    for _, dist in distributions.chunks(dump, temperature_of(sources)):
        top.append(top_probability(dist, ranks))
        candidates.append(dist.ids[:, :CANDIDATES])
        probabilities.append(dist.probs[:, :CANDIDATES])
        for rule in rules:
            if rule.undefined_means:
                undefined[rule.label] += int(rule.undefined(dist).sum())
        for searched in swept:
            swept[searched] = swept[searched] + certified_steps(dist, searched)
    certificates = {}
    for rule, artifact in zip(rules, sources["certificates"], strict=True):
        table = artifact.read(columns=["lower", "upper"])
        certificates[rule] = table["lower"].to_numpy(), table["upper"].to_numpy()
    steps = dump.read(columns=["prompt_id", "position", "token_id"])
    tokens = steps["token_id"].to_numpy()
    trajectories = Trajectories.from_positions(steps["position"].to_numpy())
    known = prompts.read(columns=["prompt_id", "text", "source"]).to_pandas().set_index("prompt_id")
    asked = known.loc[steps["prompt_id"].take(trajectories.starts).to_pylist()]
    draft, judged, completed = None, {}, False
    if "acceptance" in sources:
        (drafts,) = sources["drafts"]
        completed, drafted = "completed" in drafts.record["facts"], distributions.read_steps(drafts)
        judged = {one.rule.label: one for one in judge(drafted, list(certificates))}
        table = drafts.read(columns=[*DRAFT]).to_pandas()
        draft = table.rename(columns=DRAFT).assign(
            kl=drafted.kl,
            q=np.exp(-table["draft_top_surprisal"]),
            p_draft=np.exp(table["draft_log_prob"]),
        )
    shown = np.concatenate(candidates)
    ids = [tokens, shown.ravel(), *([] if draft is None else [draft["token"].to_numpy()])]
    return Target(
        node.config["targets"][at],
        certificates,
        PromptBootstrap(trajectories.prompts, *bootstrap_settings(node.config)),
        tokens,
        shown,
        np.concatenate(probabilities),
        list(asked.reset_index().itertuples(index=False, name=None)),
        dict(zip(ranks, np.ascontiguousarray(np.concatenate(top).T), strict=True)),
        inside_repeats(tokens, trajectories.prompts),
        undefined,
        distributions.words(
            node.upstream["distributions"][at],
            dump,
            None if draft is None else sources["drafts"][0],
            np.unique(np.concatenate(ids)).tolist(),
        ),
        draft,
        judged,
        swept,
        completed,
    )


def temperature_of(sources: Upstream) -> float:
    """Return the temperature of the certified distribution."""
    return float(sources["certificates"][0].record["config"]["temperature"])


def read_results(node: Node, targets: Sequence[Target], sources: Sequence[Upstream]) -> Results:
    """Compute the statistics of every target, and read those of a drafter where there is one."""
    frames = frames_of(targets)

    def of_stage(stage: str, name: str = "data") -> pd.DataFrame:
        pairs = zip(targets, sources, strict=True)
        return together({t.label: mine[stage][0].read(name).to_pandas() for t, mine in pairs})

    frames["runs"] = of_stage("run_lengths")
    rules = {rule.label: rule for rule in targets[0].certificates}
    facts: dict[str, Any] = {"completed": targets[0].completed}
    found = sources[0].get("acceptance")
    if found:
        frames |= {name: of_stage("acceptance", file) for name, file in PAIR_FRAMES.items()}
        frames["listing"] = found[0].read("listing").to_pandas()
        facts["sampled"] = found[0].record["facts"]["sampled_temperature"]
        rules |= {rule.label: rule for rule in rules_of(found[0])}
    drafter = node.config["drafter"] if found else ""
    return Results([t.label for t in targets], rules, frames, drafter, facts)


def frames_of(targets: Sequence[Target]) -> dict[str, pd.DataFrame]:
    """Return the statistics of the targets' probabilities and certificates."""
    certified = [
        certificate_statistics(
            t.label, rule, *ends, t.bootstrap, t.undefined.get(rule.label, math.nan)
        )
        for t in targets
        for rule, ends in t.certificates.items()
    ]
    return {
        "top": concat_frames([top_statistics(t.label, t.top, t.bootstrap) for t in targets]),
        "certificates": concat_frames(certified),
    }


def rules_of(acceptance: Artifact) -> list[Rule]:
    """Return every rule that was measured: of the study, of presets, of ranges, and greedy."""
    config = acceptance.record["config"]
    mappings = [entry["rule"] for entry in config["rules"]]
    mappings += [entry["rule"] for entry in (*config["presets"].values(), *config["ranges"])]
    return [StrictGreedy(), *map(build, mappings)]


def concat_frames(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return frames of the same columns as one; without any row where there is none."""
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def comparisons(target: Target, sources: Upstream) -> list[RuleSteps]:
    """Read the steps that a rule's certificates and closed forms are compared over, by rule.

    An engine's log has none: its log-probabilities are rounded.
    """
    (dump,) = sources["distributions"]
    if "log_prob_error" in dump.record["facts"]:
        return []
    chosen = [
        (rule, target.certificates[rule], artifact.read(columns=["active_size", "accepted_count"]))
        for rule, artifact in zip(target.certificates, sources["certificates"], strict=True)
        if rule.judges_tokens or type(rule) is Tree  # a user's own tree has no closed form
    ]
    columns = [
        (rule, ends, numbers(table["active_size"]), numbers(table["accepted_count"].fill_null(-1)))
        for rule, ends, table in chosen
    ]
    frames: dict[Rule, list[pd.DataFrame]] = {rule: [] for rule, *_ in chosen}
    begun = 0
    for _, dist in distributions.chunks(dump, temperature_of(sources)):
        at = slice(begun, begun + len(dist))
        begun = at.stop
        for rule, (lower, upper), sizes, counts in columns:
            of_chunk = compared_steps(dist, rule, (lower[at], upper[at]), sizes[at], counts[at])
            frames[rule].append(of_chunk)
    return [(rule, concat_frames(parts)) for rule, parts in frames.items()]


def matches_of(target: Target, sources: Upstream) -> list[Results]:
    """Match a target with each model of the paper, by the temperatures that are stored."""
    (dump,) = sources["distributions"]
    p0 = {
        temperature: distributions.read_top_probabilities(dump, temperature)
        for temperature in distributions.stored_temperatures(dump)
    }
    nearest = {paper: nearest_temperature(p0, paper) for paper in PAPERS}
    known = {at: measure_at(target, dump, at) for at in sorted(set(nearest.values()))}
    facts = {"own": temperature_of(sources), "least": min(p0), "most": max(p0)}
    return [
        replace(known[at], facts=facts | {"paper": paper, "temperature": at})
        for paper, at in nearest.items()
    ]


def measure_at(target: Target, dump: Artifact, temperature: float) -> Results:
    """Certify a target's stored distributions at one of their temperatures.

    The rules are those that the paper has numbers of; run lengths are of those of Table 2.
    """
    rules = [rule for rule in RULES if rule in target.certificates]
    ranks = list(target.top)
    top, lower, upper = [], [], []
    for _, dist in distributions.chunks(dump, temperature):
        top.append(top_probability(dist, ranks))
        if rules:
            found = certify(dist, rules)
            lower.append(found.lower)
            upper.append(found.upper)
    ends = zip(*(np.concatenate(parts).T.copy() for parts in (lower, upper) if parts), strict=True)
    matched = replace(
        target,
        certificates=dict(zip(rules, ends, strict=True)),
        top=dict(zip(ranks, np.concatenate(top).T.copy(), strict=True)),
        undefined={},
    )
    begins = np.append(0, np.cumsum(target.bootstrap.steps)[:-1])
    trajectories = Trajectories(begins, target.bootstrap.prompts)
    runs = [
        run_lengths(*both, EPS, trajectories, target.bootstrap).assign(
            target=target.label, rule=rule.label
        )
        for rule, both in matched.certificates.items()
        if rule in TABLE2
    ]
    named = {rule.label: rule for rule in rules}
    return Results([target.label], named, frames_of([matched]) | {"runs": concat_frames(runs)})
