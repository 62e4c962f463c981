"""Expected speeds in an engine, where `decoding.costs` has its costs."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.acceptance.engine_speed import StepCosts, engine_advice
from analysis.report.records import Section, Table, together, worded
from analysis.report.text import few_notes
from pipeline.engines.expected import speeds_in_engine
from pipeline.plan.specs import ReportSpec
from pipeline.stages.report.sources import InEngine, Sources


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
        **worded("engine_speed", engine=costs.engine, longest=costs.longest),
        data=together(frames),
        notes=few_notes(int(frame["prompts"].iloc[0]) for frame in frames.values()),
    )
    sentences = [text for advice in engine.advice for text in (advice.sentence, *advice.beside)]
    return Section(f"In {costs.engine}", [table], sentences)
