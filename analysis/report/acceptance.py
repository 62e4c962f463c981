"""The name that notebooks of version 1.0 import `analysis.report.drafter_tables` by."""

from .drafter_tables import margin_figure

__all__ = ["margin_figure"]
