"""What the report reads: the artifacts of every target, as frames and as arrays of its steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.certificates.certify import certify
from analysis.page.steps import CANDIDATES
from analysis.report.measured import Certified, certificate_statistics, top_statistics
from analysis.report.published import EPS, TABLE2
from analysis.report.records import Results, together
from analysis.report.sections.bounds import Compared, has_closed_form
from analysis.report.sections.published_matched import PAPERS, RULES, Match, nearest_temperature
from analysis.rules import Rule, StrictGreedy, Tree, build
from analysis.statistics.bootstrap import Flags, Floats, PromptBootstrap, top_probability
from analysis.statistics.run_lengths import run_lengths
from analysis.statistics.trajectories import Trajectories, inside_repeats
from analysis.topk import TopK
from pipeline.store import distributions
from pipeline.store.artifacts import Artifact
from pipeline.store.node import Node

PAIR_FRAMES = {  # of Results, and the files of stage acceptance that they are
    "acceptance": "statistics",
    "breakdown": "breakdown",
    "levels": "levels",
    "frontier": "frontier",
}
RANKS = (1, 3, 5, 10, 25)  # the paper's Table 1


@dataclass(frozen=True)
class Target:
    """One target's artifacts, and their columns that the report needs.

    Attributes:
        sources: the artifacts of `certificates`.
        top: (N, R) probability of the top `ranks` tokens of each step.
        candidates: (N, C) the most probable tokens of each step.
        probabilities: (N, C) theirs.
        undefined: steps at which the test of a rule, by its label, means nothing.
        categories: (P,) of each prompt: its category, or the source where it has none.
        repeated: (N,) whether each step lies inside a repeated passage of its answer.
        lengths: (P,) steps of each prompt.
    """

    label: str
    prompts: Artifact
    dump: Artifact
    temperature: float  # of the certified distribution
    certificates: list[Certified]
    sources: list[Artifact]
    runs: pd.DataFrame
    bootstrap: PromptBootstrap
    ranks: tuple[int, ...]
    top: Floats
    candidates: np.ndarray
    probabilities: Floats
    undefined: dict[str, int]  # steps at which the test of a rule, by label, means nothing
    categories: list[str]
    repeated: Flags

    @property
    def lengths(self) -> np.ndarray:
        """(P,) number of steps of each prompt."""
        return self.bootstrap.steps


def read_targets(node: Node, upstream: Mapping[str, list[Artifact]]) -> list[Target]:
    """Read the artifacts of every target; upstream lists follow the targets."""
    labels = node.config["targets"]
    rules = [build(mapping) for mapping in node.config["rules"]]
    return [
        read_target(
            node,
            label,
            rules,
            {
                name: artifacts[
                    at * len(artifacts) // len(labels) : (at + 1) * len(artifacts) // len(labels)
                ]
                for name, artifacts in upstream.items()
            },
        )
        for at, label in enumerate(labels)
    ]


def read_target(
    node: Node, label: str, rules: list[Rule], upstream: Mapping[str, list[Artifact]]
) -> Target:
    """Read the artifacts of one target."""
    (prompts,), (source,) = upstream["prompts"], upstream["distributions"]
    ranks = tuple(k for k in RANKS if k <= source.record["facts"]["k"])
    undefined = {rule.label: 0 for rule in rules if rule.undefined_means}
    positions, top, candidates, probabilities = [], [], [], []
    temperature = upstream["certificates"][0].record["config"]["temperature"]
    for steps, dist in distributions.chunks(source, temperature):
        positions.append(steps.column("position").to_numpy())
        top.append(top_probability(dist, ranks))
        candidates.append(dist.ids[:, :CANDIDATES])
        probabilities.append(dist.probs[:, :CANDIDATES])
        for rule in rules:
            if rule.undefined_means:
                undefined[rule.label] += int(rule.undefined(dist).sum())
    trajectories = Trajectories.from_positions(np.concatenate(positions))
    certificates = []
    for rule, artifact in zip(rules, upstream["certificates"], strict=True):
        table = artifact.read(columns=["lower", "upper"])
        certificates.append(Certified(rule, table["lower"].to_numpy(), table["upper"].to_numpy()))
    bootstrap = PromptBootstrap(
        trajectories.prompts,
        node.config["resamples"],
        node.config["confidence"],
        node.config["statistics_seed"],
    )
    return Target(
        label,
        prompts,
        source,
        temperature,
        certificates,
        upstream["certificates"],
        upstream["run_lengths"][0].read().to_pandas(),
        bootstrap,
        ranks,
        np.concatenate(top),
        np.concatenate(candidates),
        np.concatenate(probabilities),
        undefined,
        *answers(prompts, source, trajectories),
    )


def answers(
    prompts: Artifact, source: Artifact, trajectories: Trajectories
) -> tuple[list[str], Flags]:
    """Return the (P,) category of each prompt, and which (N,) steps repeat their answer."""
    named = prompts.read(columns=["prompt_id", "source"]).to_pydict()
    category = dict(zip(named["prompt_id"], named["source"], strict=True))
    table = source.read(columns=["prompt_id", "token_id"])
    first = table["prompt_id"].take(trajectories.starts).to_pylist()
    repeated = inside_repeats(table["token_id"].to_numpy(), trajectories.prompts)
    return [category[name] for name in first], repeated


def read_results(
    node: Node, targets: Sequence[Target], upstream: Mapping[str, list[Artifact]]
) -> Results:
    """Compute the statistics of every target, and read those of a drafter where there is one."""
    frames = {
        "top": joined([top_statistics(t.label, t.top, t.ranks, t.bootstrap) for t in targets]),
        "certificates": joined(
            [
                certificate_statistics(
                    t.label,
                    item.rule,
                    item.lower,
                    item.upper,
                    t.bootstrap,
                    t.undefined.get(item.rule.label, math.nan),
                )
                for t in targets
                for item in t.certificates
            ]
        ),
        "runs": together({t.label: t.runs for t in targets}),
    }
    rules = {item.rule.label: item.rule for item in targets[0].certificates}
    found = upstream.get("acceptance", [])
    facts: dict[str, Any] = {}

    def of_targets(name: str) -> pd.DataFrame:
        pairs = zip(targets, found, strict=True)
        return together({t.label: artifact.read(name).to_pandas() for t, artifact in pairs})

    if found and "logged" in found[0].record["config"]:
        frames["logged"] = of_targets("statistics")
    elif found:
        frames |= {name: of_targets(file) for name, file in PAIR_FRAMES.items()}
        frames["listing"] = found[0].read("listing").to_pandas()
        facts["sampled"] = found[0].record["facts"]["sampled_temperature"]
        rules |= {rule.label: rule for rule in rules_of(found[0])}
    drafter = node.config["drafter"] if found else ""
    return Results([t.label for t in targets], rules, frames, drafter, facts)


def rules_of(acceptance: Artifact) -> list[Rule]:
    """Return every rule that was measured: of the study, of presets, of dials, and greedy."""
    config = acceptance.record["config"]
    mappings = [entry["rule"] for entry in config["rules"]]
    mappings += [entry["rule"] for entry in (*config["presets"].values(), *config["dials"])]
    return [StrictGreedy(), *map(build, mappings)]


def joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return frames of the same columns as one; without any row where there is none."""
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def comparisons(target: Target) -> list[Compared]:
    """Read the steps of a target at which each rule's certificate is exact and finite.

    An engine's log has none: its log-probabilities are rounded.
    """
    if "log_prob_error" in target.dump.record["facts"]:
        return []
    chosen = [
        (item, artifact)
        for item, artifact in zip(target.certificates, target.sources, strict=True)
        if has_closed_form(item.rule)
    ]
    if not chosen:
        return []
    rules = [item.rule for item, _ in chosen]
    rejected = [first_rejected_probability(item.rule, artifact) for item, artifact in chosen]
    p0, b, theta = first_probabilities(target, rules, rejected)
    compared = []
    for at, (item, artifact) in enumerate(chosen):
        active = artifact.read(columns=["active_size"])["active_size"].to_numpy()
        rows = (item.lower == item.upper) & np.isfinite(item.upper) & ~np.isnan(b[at])
        compared.append(
            Compared(
                item.rule,
                len(rows),
                item.lower[rows],
                active[rows].astype(np.float64),
                p0[rows],
                b[at][rows],
                theta[at][rows],
            )
        )
    return compared


def first_rejected_probability(rule: Rule, certificates: Artifact) -> np.ndarray:
    """Return the (N,) ranks, from 0, of the tokens whose tie is a rejection; -1 if unknown."""
    column = certificates.read(columns=["accepted_count"])["accepted_count"]
    if isinstance(rule, Tree):
        return np.full(len(column), rule.m)
    return np.asarray(column.fill_null(-1).to_numpy())


def first_probabilities(
    target: Target, rules: Sequence[Rule], rejected: Sequence[np.ndarray]
) -> tuple[Floats, Floats, Floats]:
    """Return p0 (N,), and for R rules (R, N) first rejected probabilities and thresholds.

    A probability that is not stored is NaN, and so is the threshold of a rule that has none.
    """
    p0, b, theta = [], [], []
    begun = 0
    for _, dist in distributions.chunks(target.dump, target.temperature):
        steps = slice(begun, begun + len(dist))
        begun = steps.stop
        p0.append(dist.top_probability)
        b.append([probability(dist, ranks[steps]) for ranks in rejected])
        theta.append([threshold(dist, rule) for rule in rules])
    shape = (len(rules), begun)
    return (
        np.concatenate(p0),
        np.concatenate(b, axis=1).reshape(shape),
        np.concatenate(theta, axis=1).reshape(shape),
    )


def probability(dist: TopK, ranks: np.ndarray) -> Floats:
    """Return the (N,) probabilities of the given ranks, from 0; NaN where they are not stored."""
    stored = (ranks >= 0) & (ranks < dist.k)
    at = np.where(stored, ranks, 0)[:, None]
    return np.where(stored, np.exp(np.take_along_axis(dist.log_probs, at, axis=1))[:, 0], np.nan)


def threshold(dist: TopK, rule: Rule) -> Floats:
    """Return the (N,) probability that a token must exceed, NaN for a rule without threshold."""
    cut = rule.cut(dist)
    return np.full(len(dist), np.nan) if cut is None else cut.threshold(dist)


def matches_of(target: Target, rules: Sequence[Rule]) -> list[Match]:
    """Match a target with each model of the paper, by the temperatures that are stored."""
    p0 = {
        temperature: distributions.read_top_probabilities(target.dump, temperature)
        for temperature in distributions.stored_temperatures(target.dump)
    }
    nearest = {paper: nearest_temperature(p0, paper) for paper in PAPERS}
    known = {
        temperature: measure_at(target, temperature, [rule for rule in RULES if rule in rules])
        for temperature in sorted(set(nearest.values()))
    }
    return [
        Match(target.label, paper, target.temperature, at, min(p0), max(p0), known[at])
        for paper, at in nearest.items()
    ]


def measure_at(target: Target, temperature: float, rules: Sequence[Rule]) -> Results:
    """Certify a target's stored distributions at one of their temperatures.

    Args:
        target: whose steps, prompts and resamples are taken.
        temperature: a stored one.
        rules: those the paper has numbers of; run lengths are estimated for those of Table 2.
    """
    top, lower, upper = [], [], []
    for _, dist in distributions.chunks(target.dump, temperature):
        top.append(top_probability(dist, target.ranks))
        if rules:
            found = certify(dist, rules)
            lower.append(found.lower)
            upper.append(found.upper)
    label, bootstrap = target.label, target.bootstrap
    trajectories = Trajectories(np.append(0, np.cumsum(target.lengths)[:-1]), bootstrap.prompts)
    certificates, runs = [], []
    for at, rule in enumerate(rules):
        low, high = (np.concatenate([part[:, at] for part in parts]) for parts in (lower, upper))
        certificates.append(certificate_statistics(label, rule, low, high, bootstrap))
        if rule in TABLE2:
            frame = run_lengths(low, high, EPS, trajectories, bootstrap)
            runs.append(frame.assign(target=label, rule=rule.label))
    return Results(
        [label],
        {rule.label: rule for rule in rules},
        {
            "top": top_statistics(label, np.concatenate(top), target.ranks, bootstrap),
            "certificates": joined(certificates),
            "runs": joined(runs),
        },
    )
