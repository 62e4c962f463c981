"""The report's part on a drafter: will it be accepted?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.report.records import Part, Results, together
from analysis.report.sections import acceptance
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
from pipeline.store.artifacts import Artifact
from pipeline.store.node import Node

FRAMES = {  # of Results, and the files of stage acceptance that they are
    "acceptance": "statistics",
    "breakdown": "breakdown",
    "levels": "levels",
    "frontier": "frontier",
    "profile": "profile",
}
# rules of figures and of the table by depth, as far as the study has them
SHOWN: tuple[Rule, ...] = (
    Additive(0.1),
    StrictGreedy(),
    Multiplicative(0.5),
    TopMAdditive(4, 0.1),
    Typical(0.1, 0.09),
    Mars(0.9),
    Tree(4),
)


def measure_drafter(node: Node, found: Sequence[Artifact]) -> Results | None:
    """Read what was measured of a drafter, or only logged; None without one."""
    if not found:
        return None
    targets, drafter = node.config["targets"], node.config["drafter"]

    def read(name: str) -> Any:
        pairs = zip(targets, found, strict=True)
        return together({target: artifact.read(name).to_pandas() for target, artifact in pairs})

    if "logged" in found[0].record["config"]:
        own = {rule.label: rule for rule in map(build, node.config["rules"])}
        return Results(targets, own, {"logged": read("statistics")}, drafter)
    frames = {name: read(file) for name, file in FRAMES.items()}
    frames["listing"] = found[0].read("listing").to_pandas()
    rules = {rule.label: rule for rule in rules_of(found[0])}
    facts = {"sampled": found[0].record["facts"]["sampled_temperature"]}
    return Results(targets, rules, frames, drafter, facts)


def drafter_part(upstream: Mapping[str, list[Artifact]], drafter: Results) -> Part:
    """Return the part on the drafter."""
    if "logged" in drafter:
        return acceptance.acceptance_part(drafter, [])
    measured = list(drafter["profile"]["rule"].unique())
    own = [rule for rule in drafter.rules.values() if rule.own]
    known = dict.fromkeys(rule.label for rule in (*own, *SHOWN) if rule.label in measured)
    sampling = upstream["distributions"][0].record["config"]
    says = [left_out(sampling)] if drafter.facts["sampled"] is None else []
    return acceptance.acceptance_part(drafter, list(known or measured)[: len(SHOWN)], says)


def rules_of(acceptance: Artifact) -> list[Rule]:
    """Return every rule that was measured: of the study, of presets, of dials, and greedy."""
    config = acceptance.record["config"]
    mappings = [entry["rule"] for entry in config["rules"]]
    mappings += [entry["rule"] for entry in (*config["presets"].values(), *config["dials"])]
    return [StrictGreedy(), *map(build, mappings)]


def left_out(sampling: Mapping[str, Any]) -> str:
    """Say why table *sampling* is not there.

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


def logged_drafter_setup(
    targets: Sequence[str], drafts: Sequence[Artifact]
) -> dict[str, dict[str, Any]]:
    """Return what is known of both logs, by printed name of the target."""
    setups = {}
    for target, pair in zip(targets, drafts, strict=True):
        facts = pair.record["facts"]
        left_out = [f"{count} {reason}" for reason, count in facts["excluded"].items()]
        setups[target] = {
            "log of the drafter": facts["log"],
            "model": facts["drafter"],
            "steps": pair.record["rows"]["logged"],
            "log-probabilities a step": f"{facts['k']} of the target, {facts['draft_k']} of it",
            "each of it is off by at most": f"{facts['draft_log_prob_error']:.2g} nats",
            "left out": ", ".join(left_out) or "none",
        }
    return setups


def drafter_setup(
    results: Results, drafts: Sequence[Artifact], found: Sequence[Artifact]
) -> dict[str, dict[str, Any]]:
    """Return what was compared, whether it was sound, and how far the passes drifted."""
    setups = {}
    for target, draft, artifact in zip(results.targets, drafts, found, strict=True):
        pair, sound = draft.record["facts"], artifact.record["facts"]
        drift = pair["drift"]
        rows_of = [pair[model]["vocab_size"] for model in ("target", "drafter")]
        changed = share_text(drift["changed_argmax"] / drift["steps"])
        setups[target] = {
            "steps and rules": f"{sound['steps']} and {sound['rules']}",
            "certified decisions": sound["certified"],
            "of them rejected": sound["violations"],
            "KL − R at rejected steps, least": near(sound["tightest_rejected"], results.names),
            "R − KL at certified steps, least": near(sound["tightest_certified"], results.names),
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


def near(found: Mapping[str, Any] | None, names: Mapping[str, str]) -> str:
    """Return a slack and its rule as printed."""
    return UNDEFINED if found is None else f"{found['nats']:.2e} nats ({names[found['rule']]})"
