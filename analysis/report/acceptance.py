"""Import of 1.0: notebooks use this name of `analysis.report.drafter_figures`."""

from .drafter_figures import margin_figure

__all__ = ["margin_figure"]
