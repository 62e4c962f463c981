"""The report's part on an engine whose costs of a step were measured: `decoding.costs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.acceptance.engine_speed import StepCosts, engine_advice
from analysis.acceptance.verdict import Advice
from analysis.report.records import Section, Table, together, worded
from analysis.report.text import few_notes
from pipeline.engines.expected import speeds_in_engine
from pipeline.plan.slices import bootstrap_settings
from pipeline.stages.report.inputs import Upstream

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
