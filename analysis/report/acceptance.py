"""The name that notebooks of version 1.0 import `analysis.report.drafter_figures` by."""

from .drafter_figures import margin_figure

__all__ = ["margin_figure"]
