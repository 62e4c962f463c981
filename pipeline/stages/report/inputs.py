"""What the report reads: the artifacts of every target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.page.explorer import CANDIDATES
from analysis.report.measured import Certified, Measured, certificate_statistics, top_statistics
from analysis.report.text import share_text
from analysis.rules import Rule, build
from analysis.statistics.bootstrap import Flags, Floats, PromptBootstrap, top_probability
from analysis.statistics.trajectories import LENGTH, Trajectories, inside_repeats
from pipeline.store import distributions
from pipeline.store.artifacts import Artifact
from pipeline.store.node import Node

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


def measure(targets: list[Target]) -> Measured:
    """Compute the statistics of every target."""

    def frame(parts: list[pd.DataFrame]) -> pd.DataFrame:
        return pd.concat(parts, ignore_index=True)

    return Measured(
        targets=[target.label for target in targets],
        rules=[item.rule for item in targets[0].certificates],
        top=frame([top_statistics(t.label, t.top, t.ranks, t.bootstrap) for t in targets]),
        certificates=frame(
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
        runs=frame([t.runs.assign(target=t.label)[["target", *t.runs.columns]] for t in targets]),
    )


def target_setup(target: Target) -> dict[str, Any]:
    """Return what a reader must know of how a target's numbers were made, by printed name."""
    config, facts = target.dump.record["config"], target.dump.record["facts"]
    if "log" in config:
        return logged_setup(target, facts)
    prompts = target.prompts.record
    lengths, model = target.lengths, config["model"]
    excluded = [
        f"{entry['rows']} {reason}"
        for reason, entry in prompts["facts"].get("excluded", {}).items()
    ]
    decoding = (
        "greedy"
        if config["temperature"] == 0
        else (
            f"sampled at temperature {config['temperature']:g}, top_p {config['top_p']:g}, "
            f"top_k {config['top_k'] or 'all'}, seed {config['seed']}"
        )
    )
    chosen = target.prompts.read(columns=["source", "n_tokens"]).to_pandas()
    return {
        "prompts": f"{len(lengths)} of {', '.join(chosen['source'].unique())}",
        "prompt tokens, as the model reads them": (
            f"{chosen['n_tokens'].min()} to {chosen['n_tokens'].max()} "
            f"(allowed: {prompts['config']['min_tokens']} to {prompts['config']['max_tokens']})"
        ),
        "rows excluded while choosing them": ", ".join(excluded) or "none",
        "steps": int(lengths.sum()),
        "steps a prompt": f"at most {config['steps']}; {np.sum(lengths < config['steps'])} prompts "
        "end earlier",
        "decoding": decoding,
        f"steps inside a repeated {LENGTH}-gram of their answer": share_text(
            float(target.repeated.mean())
        ),
        "chat template": "used" if prompts["config"]["template"] == "chat" else "none: plain text",
        "enable_thinking": str(prompts["config"]["enable_thinking"]).lower(),
        "temperature of the certified distribution": f"{target.temperature:g}",
        "stored top tokens": f"{facts['k']} of {facts['vocab_size']}",
        "weights": model["dtype"],
        "final projection": model["head_dtype"],
        "attention": model["attention"],
        "model": named(model, facts.get("origin")),
    }


def logged_setup(target: Target, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same of what an engine logged."""
    excluded = [f"{count} {reason}" for reason, count in facts["excluded"].items()]
    return {
        "log": f"{facts['log']}, {facts['answers']} answers",
        "left out of it": ", ".join(excluded) or "none",
        "model": facts["model"],
        "steps": int(target.lengths.sum()),
        f"steps inside a repeated {LENGTH}-gram of their answer": share_text(
            float(target.repeated.mean())
        ),
        "log-probabilities a step": f"{facts['k']}, of {facts['vocab_size']} tokens",
        "each is off by at most": f"{facts['log_prob_error']:.2g} nats",
        "log-probabilities": facts["values"],
        "token ids": facts["token_ids"],
    }


def named(model: Mapping[str, Any], origin: Mapping[str, str] | None) -> str:
    """Return which model it is, from its configuration slice, and where a GGUF file is from.

    Example:
        >>> named({"hub": "owner/name", "commit": 40 * "0"}, None)
        'owner/name at 000000000000'
    """
    if "hub" in model:
        return f"{model['hub']} at {model['commit'][:12]}"
    if "content" in model:
        return f"local, content {model['content'][:12]}"
    origin = origin or {}
    told = {"model": "made from", "package": "from the package", "license": "licence"}
    more = [f"{word} {origin[key]}" for key, word in told.items() if key in origin]
    return ", ".join([f"{origin.get('file', 'GGUF file')}, SHA-256 {model['gguf'][:12]}", *more])
