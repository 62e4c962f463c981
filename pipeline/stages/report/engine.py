"""Engines in the report: their settings, and expected speeds where `decoding.costs` has costs."""

from __future__ import annotations

from collections.abc import Sequence
from string import Template
from typing import Any

import pandas as pd

from analysis.acceptance.engine_speed import StepCosts, engine_advice
from analysis.acceptance.verdict import DO_NOT, Advice
from analysis.report.records import Section, Table, together, worded
from analysis.rules import Rule, StrictGreedy
from pipeline.engines.expected import speeds_in_engine
from pipeline.engines.runs import read_runs
from pipeline.engines.settings import ENGINES, setting_text, setting_values
from pipeline.errors import PipelineError
from pipeline.plan.specs import ReportSpec
from pipeline.stages.report.sources import InEngine, Sources
from pipeline.store.identity import local_path

PLACES: dict[str, Any] = {"target": "TARGET", "drafter": "DRAFTER"}  # words to be replaced


def in_engine(spec: ReportSpec, sources: Sequence[Sources]) -> InEngine | None:
    """Return an engine's costs, and the speeds and the verdict of each target; None without costs.

    Args:
        spec: of the report.
        sources: of each target.
    """
    if spec.engine is None:
        return None
    given, speeds = spec.engine.costs, {}
    step_costs = StepCosts(given.engine, given.drafter, *zip(*given.steps, strict=True))
    by_model = step_costs.drafter == "model"
    for source in sources:
        drafts = source.drafts.artifact if by_model and source.drafts is not None else None
        speeds[source.label] = speeds_in_engine(
            step_costs,
            (spec.engine.lookup, spec.engine.lookup_match),
            dump=source.distributions.artifact,
            prompts=source.prompts.artifact,
            drafts=drafts,
            resampling=spec.statistics,
        )
    drafter = spec.drafter if by_model else None
    advice = [engine_advice(name, drafter, table, step_costs) for name, table in speeds.items()]
    return InEngine(step_costs, speeds, advice)


def engine_section(engine: InEngine) -> Section:
    """Return the section on an engine: expected speed by draft length, and the verdict."""
    costs, frames = engine.costs, engine.speeds
    table = Table(
        **worded("engine_speed", engine=costs.engine, longest=costs.longest), data=together(frames)
    )
    sentences = [text for advice in engine.advice for text in (advice.sentence, *advice.beside)]
    return Section(f"In {costs.engine}", [table], sentences)


def flags_of_verdict(advice: Advice, sources: Sources) -> str:
    """Return the settings of the method that a verdict names, for engines with strict greedy.

    Look-up first is two methods there: of each its draft length.
    """
    run = advice.run
    if run is None or advice.outcome == DO_NOT or sources.decoding is None:
        return ""
    if not pd.isna(run["drafting"]):  # a tree
        return ""
    lengths = {run["drafter"]: run["draft_length"]}
    says = [advice.sentence]
    if run["drafter"] == "lookup_first":
        lengths = {"prompt_lookup": run["draft_length"], "model": run["model_length"]}
        says.append("No engine listed here drafts by look-up first: these are its two parts.")
    lookup = sources.decoding.node.spec.lookup
    fixed = PLACES | {"head": _head(sources), "temperature": run["temperature"]}
    return "\n".join(
        setting_text(
            engine,
            says,
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


def counted_drafts(sources: Sources) -> str:
    """Return the counts of drafts in a log as a clause; empty if it has none."""
    try:
        path = local_path(sources.distributions.node.spec.log.path)
        runs = [] if path is None else list(read_runs(path))
    except (PipelineError, ValueError):
        return ""
    if len(runs) != 1:
        return ""
    row, _ = runs[0].rows
    return (
        f"accepted {row['accepted']} of {row['drafted']} drafted tokens in this log, "
        f"{row['tokens_per_pass']:.2f} tokens a pass"
    )


def _head(sources: Sources) -> bool:
    """Whether the drafter is a head."""
    return sources.drafts is not None and sources.drafts.node.spec.drafter.head is not None


def flags(sources: Sources, rules: Sequence[Rule]) -> list[dict[str, str]]:
    """Return, rule by rule, the settings of the engines that run it; $length is left open."""
    fixed = PLACES | {"head": _head(sources), "temperature": sources.temperature}
    return [
        {
            name: Template(about["text"]).safe_substitute(
                setting_values(name, rule, draft_length=None, **fixed)
            )
            for name, about in ENGINES.items()
            if rule.name == (about["rule"] or "greedy")
        }
        for rule in rules
    ]
