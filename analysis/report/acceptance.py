"""The name that notebooks of version 1.0 import `margin_figure` by."""

from .drafter_figures import margin_figure as margin_figure
