"""Engines in the report: their settings, and expected speeds where `decoding.costs` has costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

import pandas as pd

from analysis.acceptance.engine_speed import StepCosts, engine_advice
from analysis.acceptance.verdict import DO_NOT, Advice
from analysis.report.records import Section, Table, together, worded
from analysis.report.text import few_notes
from analysis.rules import Rule, StrictGreedy
from pipeline.engines.expected import speeds_in_engine
from pipeline.engines.runs import read_runs
from pipeline.engines.settings import ENGINES, setting_text, setting_values
from pipeline.errors import PipelineError
from pipeline.plan.slices import bootstrap_settings
from pipeline.stages.report.inputs import Upstream
from pipeline.store.artifacts import Artifact
from pipeline.store.identity import local_path
from pipeline.store.node import Node

PLACES = {"target": "TARGET", "drafter": "DRAFTER"}  # words to be replaced
InEngine = tuple[StepCosts, dict[str, pd.DataFrame], list[Advice]]  # frames by target


def in_engine(config: Mapping[str, Any], sources: Sequence[Upstream]) -> InEngine | None:
    """Return an engine's costs, and the speeds and the verdict of each target; None without costs.

    Args:
        config: of the report's node.
        sources: the artifacts of each target by stage.
    """
    if "costs" not in config:
        return None
    of_file, lookup = config["costs"], (config["lookup"], config["lookup_match"])
    drafted, costs = zip(*of_file["steps"], strict=True)
    step_costs = StepCosts(of_file["engine"], of_file["drafter"], drafted, costs)
    by_model = step_costs.drafter == "model"
    frames = {
        target: speeds_in_engine(
            step_costs,
            lookup,
            mine["distributions"][0],
            mine["prompts"][0],
            mine["drafts"][0] if by_model else None,
            bootstrap_settings(config),
        )
        for target, mine in zip(config["targets"], sources, strict=True)
    }
    drafter = config["drafter"] if by_model else None
    advice = [engine_advice(name, drafter, table, step_costs) for name, table in frames.items()]
    return step_costs, frames, advice


def engine_section(found: InEngine) -> Section:
    """Return the section on an engine: expected speed by draft length, and the verdict."""
    costs, frames, advice = found
    table = Table(
        **worded("engine_speed", engine=costs.engine, longest=costs.longest),
        data=together(frames),
        notes=few_notes(int(frame["prompts"].iloc[0]) for frame in frames.values()),
    )
    said = [text for one in advice for text in (one.sentence, *one.beside)]
    return Section(f"In {costs.engine}", [table], said)


def flags_of_verdict(advice: Advice, upstream: Mapping[str, Sequence[Artifact]]) -> str:
    """Return the settings of the method that a verdict names, for engines with strict greedy.

    Look-up first is two methods there: of each its draft length.
    """
    run = advice.run
    if run is None or advice.outcome == DO_NOT or not upstream.get("decoding"):
        return ""
    if not pd.isna(run["drafting"]):  # a tree
        return ""
    lengths = {run["drafter"]: run["draft_length"]}
    said = [advice.sentence]
    if run["drafter"] == "lookup_first":
        lengths = {"prompt_lookup": run["draft_length"], "model": run["model_length"]}
        said.append("No engine listed here drafts by look-up first: these are its two parts.")
    lookup = upstream["decoding"][0].record["config"]["lookup"]
    fixed = PLACES | {"head": _head(upstream), "temperature": run["temperature"]}
    return "\n".join(
        setting_text(
            engine,
            said,
            rule=StrictGreedy(),
            strictest=None,
            draft_length=int(length),
            lookup=lookup if drafter == "prompt_lookup" else None,
            **fixed,
        )
        for drafter, length in lengths.items()
        for engine, about in ENGINES.items()
        if about["rule"] is None
    )


def counted_drafts(dump: Node) -> str:
    """Return what the file of a log counts of drafts, as a clause; empty if nothing.

    Args:
        dump: of stage distributions.
    """
    try:
        path = local_path(dump.settings["path"])
        (run,) = read_runs(path) if path is not None else ()
    except (PipelineError, ValueError):
        return ""
    row, _ = run.rows
    return (
        f"accepted {row['accepted']} of {row['drafted']} drafted tokens in this log, "
        f"{row['tokens_per_pass']:.2f} tokens a pass"
    )


def _head(upstream: Mapping[str, Sequence[Artifact]]) -> bool:
    """Whether the drafter is a head."""
    drafts = upstream.get("drafts") or ()
    return any("head" in made.record["config"]["drafter"] for made in drafts)


def flags(upstream: Mapping[str, list[Artifact]], rules: Sequence[Rule]) -> list[dict[str, str]]:
    """Return, rule by rule, the settings of the engines that run it; $length is left open."""
    temperature = upstream["certificates"][0].record["config"]["temperature"]
    fixed = PLACES | {"head": _head(upstream), "temperature": temperature, "draft_length": None}
    return [
        {
            name: Template(about["text"]).safe_substitute(setting_values(name, rule, **fixed))
            for name, about in ENGINES.items()
            if rule.name == (about["rule"] or "greedy")
        }
        for rule in rules
    ]
