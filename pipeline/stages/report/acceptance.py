"""The report's part on a drafter: will it be accepted?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.report.acceptance_budgets import budget_table
from analysis.report.acceptance_depths import by_depth
from analysis.report.acceptance_divergences import by_divergence, divergence_figure
from analysis.report.acceptance_figures import rules_figure
from analysis.report.acceptance_frontier import frontier_figure, frontier_table
from analysis.report.acceptance_sampling import sampling_table
from analysis.report.acceptance_tables import accepted
from analysis.report.pairs import Pairs
from analysis.report.records import Part
from analysis.report.text import UNDEFINED, number_text, share_text
from analysis.rules import (
    Additive,
    Mars,
    Multiplicative,
    Rule,
    StrictGreedy,
    TopMAdditive,
    Tree,
    Typical,
    build,
)
from pipeline.plan.stage import Node
from pipeline.stages.report.logged import logged_part
from pipeline.store.artifacts import Artifact

# rules of the profile and of the figure along an answer, as far as the study has them
SHOWN: tuple[Rule, ...] = (
    Additive(0.1),
    StrictGreedy(),
    Multiplicative(0.5),
    TopMAdditive(4, 0.1),
    Typical(0.1, 0.09),
    Mars(0.9),
    Tree(4),
)


class Drafter(NamedTuple):
    """What was measured of a drafter, and how it goes along answers and margins."""

    pairs: Pairs
    profile: pd.DataFrame


def measure_drafter(node: Node, found: Sequence[Artifact]) -> Drafter | None:
    """Read what was measured of a drafter; None without one, or where both were only logged."""
    if not found or "logged" in found[0].record["config"]:
        return None
    targets = node.config["targets"]
    pairs = read_pairs(targets, node.config["drafter"], found)
    return Drafter(pairs, drafters_together(targets, found, "profile"))


def acceptance_part(
    node: Node, upstream: Mapping[str, list[Artifact]], drafter: Drafter | None
) -> Part | None:
    """Return the part on the drafter, or None in a study without one."""
    found = upstream.get("acceptance", [])
    if not found:
        return None
    if drafter is None:
        return logged_part(node, found)
    pairs, profile = drafter
    measured = list(profile["rule"].unique())
    own = [rule for rule in pairs.rules.values() if rule.own]
    known = dict.fromkeys(rule.label for rule in (*own, *SHOWN) if rule.label in measured)
    chosen = list(known or measured)[: len(SHOWN)]
    sampling = upstream["distributions"][0].record["config"]
    return Part(
        f"Will {pairs.drafter} be accepted?",
        [
            rules_figure(pairs),
            accepted(pairs),
            by_divergence(pairs),
            divergence_figure(pairs, chosen),
            budget_table(pairs),
            frontier_table(pairs),
            frontier_figure(pairs),
            sampling_table(pairs),
            by_depth(pairs, chosen),
        ],
        [left_out(sampling)] if pairs.sampled is None else [],
    )


def read_pairs(targets: Sequence[str], drafter: str, found: Sequence[Artifact]) -> Pairs:
    """Read the statistics of every pair."""
    breakdown = drafters_together(targets, found, "breakdown")
    levels = drafters_together(targets, found, "levels")
    sampled = levels["statistic"] == "probability"
    return Pairs(
        drafter=drafter,
        targets=targets,
        rules={rule.label: rule for rule in rules_of(found[0])},
        listing=found[0].read("listing").to_pandas(),
        statistics=drafters_together(targets, found, "statistics"),
        sampled=found[0].record["facts"]["sampled_temperature"],
        depths=breakdown[breakdown["depth"] > 0].drop(columns="divergence"),
        divergences=breakdown[breakdown["depth"] == 0].drop(columns="depth"),
        budgets=levels[~sampled],
        sampling=levels[sampled].rename(columns={"rule": "law"}).drop(columns="statistic"),
        frontier=drafters_together(targets, found, "frontier"),
    )


def rules_of(acceptance: Artifact) -> list[Rule]:
    """Return every rule that was measured: of the study, of presets, of dials, and greedy."""
    config = acceptance.record["config"]
    mappings = [entry["rule"] for entry in config["rules"]]
    mappings += [entry["rule"] for entry in (*config["presets"].values(), *config["dials"])]
    return [StrictGreedy(), *map(build, mappings)]


def drafters_together(targets: Sequence[str], found: Sequence[Artifact], name: str) -> pd.DataFrame:
    """Return a file of all pairs, with the target's printed name."""
    frames = [
        artifact.read(name).to_pandas().assign(target=target)
        for target, artifact in zip(targets, found, strict=True)
    ]
    table = pd.concat(frames, ignore_index=True)
    return table[["target", *(column for column in table if column != "target")]]


def left_out(sampling: Mapping[str, Any]) -> str:
    """Say why table *stochastic* is not there.

    Args:
        sampling: temperature, top_p and top_k of the answers.
    """
    why = (
        "decoded greedily (distributions.temperature=0), and acceptance at a temperature belongs "
        "to text sampled at it"
        if sampling["temperature"] == 0
        else f"sampled from a part of the distribution (distributions.top_p={sampling['top_p']:g}, "
        f"top_k={sampling['top_k']}), and acceptance is known for the whole one"
    )
    return f"Stochastic verification is left out: these answers were {why}."


def drafter_setup(
    pairs: Pairs, drafts: Sequence[Artifact], found: Sequence[Artifact]
) -> dict[str, dict[str, Any]]:
    """Return what was compared, whether it was sound, and how far the passes drifted."""
    setups = {}
    for target, draft, artifact in zip(pairs.targets, drafts, found, strict=True):
        pair, sound = draft.record["facts"], artifact.record["facts"]
        drift = pair["drift"]
        rows_of = [pair[model]["vocab_size"] for model in ("target", "drafter")]
        changed = share_text(drift["changed_argmax"] / drift["steps"])
        setups[target] = {
            "steps and rules": f"{sound['steps']} and {sound['rules']}",
            "certified decisions": sound["certified"],
            "of them rejected": sound["violations"],
            "KL − R at rejected steps, least": near(sound["tightest_rejected"], pairs),
            "R − KL at certified steps, least": near(sound["tightest_certified"], pairs),
            "KL(p‖q), mean and median": " and ".join(
                f"{kl:.4g}" if np.isfinite(kl) else number_text(kl)
                for kl in (sound["mean_kl"], sound["median_kl"])
            )
            + " nats",
            "temperature of both distributions": f"{pair['temperature']:g}",
            "rows compared, of target and drafter": (
                f"{pair['vocab_size']}, of {rows_of[0]} and {rows_of[1]}"
            ),
            "drift against the decoding pass": (
                f"logits by at most {drift['max_logit_difference']:.1e}, the argmax of "
                f"{changed} of steps"
            ),
        }
    return setups


def near(found: Mapping[str, Any] | None, pairs: Pairs) -> str:
    """Return a slack and its rule as printed."""
    return (
        UNDEFINED if found is None else f"{found['nats']:.2e} nats ({pairs.names[found['rule']]})"
    )
