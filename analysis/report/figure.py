"""A figure of a report: its drawing, and the numbers that are drawn."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure as Drawing

from .render import csv_text
from .style import letter, render


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure as a report shows it.

    Attributes:
        name: file name without suffix, for instance "figure2".
        title: heading on the page.
        caption: one paragraph of plain text.
        drawing: what is drawn.
        data: the tidy numbers drawn, for the CSV file.
    """

    name: str
    title: str
    caption: str
    drawing: Drawing
    data: pd.DataFrame

    def __post_init__(self) -> None:
        """Give the panels their letters, the same in every figure."""
        letter(self.drawing)

    def render(self, kind: str) -> bytes:
        """Return the file of the drawing; `kind` is pdf or png."""
        return render(self.drawing, kind)

    def csv(self) -> str:
        """Return the numbers as CSV; an empty cell is a value that does not exist."""
        return csv_text(self.data)
