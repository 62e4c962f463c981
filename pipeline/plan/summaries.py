"""What the summaries of stages share: the bootstrap's settings, and marks of lower bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from analysis.report.text import mark_of, upper_end
from pipeline.plan.stage import SummaryRow


class BootstrapSettings(NamedTuple):
    """The settings of the bootstrap over prompts, as `PromptBootstrap` takes them."""

    resamples: int
    confidence: float
    seed: int


def bootstrap_settings(settings: Mapping[str, Any]) -> BootstrapSettings:
    """Return the settings that `pipeline.plan.slices.statistics_slice` gave a node."""
    return BootstrapSettings(
        settings["resamples"], settings["confidence"], settings["statistics_seed"]
    )


def lower_bound_marks(column: str, row: SummaryRow) -> SummaryRow:
    """Say whether a length, of a row with its cuts, and its upper end are lower bounds."""
    from analysis.statistics.run_lengths import censored_ends

    return dict(zip((mark_of(column), upper_end(mark_of(column))), censored_ends(row), strict=True))
