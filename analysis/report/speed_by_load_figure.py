"""The figure of `pipeline.engine`: speed over load, with a line for each draft length."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from ..statistics.estimate import Estimate
from .style import GRID_LINES, LINES, POINTS, REFERENCE_LINE, TEXT, error_bars, legend, styled

HEIGHT = 2.6  # inches


@styled
def speed_by_load_figure(table: pd.DataFrame) -> Figure:
    """Draw speed over load, a line for each draft length.

    `table` has the columns load (requests at once), draft_length, speed with its interval, and
    known ("measured" or "predicted"). Bars are intervals over prompts. Predicted points are hollow,
    and have no interval.
    """
    figure = Figure(figsize=(TEXT / 1.5, HEIGHT), layout="constrained")
    axis = figure.subplots()
    axis.axhline(1.0, **REFERENCE_LINE)
    for number, (length, rows) in enumerate(table.groupby("draft_length")):
        color, style = LINES[number % len(LINES)]
        rows = rows.sort_values("load")
        name = f"drafts of {length:.0f}"
        axis.plot(rows["load"], rows["speed"], color=color, linestyle=style, label=name)
        measured = rows[rows["known"] == "measured"]
        bars = error_bars(*Estimate.read(measured, "speed"))
        drawn = {"color": color, "linestyle": "none", **POINTS}
        axis.errorbar(measured["load"], measured["speed"], bars, **drawn, elinewidth=0.7)
        predicted = rows[rows["known"] == "predicted"]
        axis.plot(predicted["load"], predicted["speed"], **drawn, markerfacecolor="white")
    loads = sorted(table["load"].unique())
    axis.set_xscale("log", base=2)
    axis.set_xticks(loads, [f"{load:.0f}" for load in loads])
    axis.minorticks_off()
    axis.set_xlabel("requests at once")
    axis.set_ylabel("speed over the target alone")
    axis.grid(**GRID_LINES)
    legend(figure, [axis], columns=4)
    return figure
