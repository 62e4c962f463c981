"""Style of all figures of a report: sizes, colours, lines, legends and rendering to bytes.

Figures are made inside `styled`, without pyplot's global state. `render` returns the bytes of a
file, which depend on the figure alone: fonts are the TrueType fonts of matplotlib, embedded, and
dates and software versions are left out.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

COLUMN = 3.25  # inches: the width of a column
TEXT = 6.75  # inches: the width of a page's text
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "text.parse_math": False,  # names of models and rules are printed literally, $ included
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 6.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "pdf.fonttype": 42,
    "savefig.dpi": 200,  # for PNG on screens; papers use the PDF
    "axes.unicode_minus": False,
}
ANONYMOUS: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "png": {"Software": None},
}
CANVASES: dict[str, Any] = {"pdf": FigureCanvasPdf, "png": FigureCanvasAgg}
# hues that stay distinct to colour-blind readers (Okabe and Ito)
BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
PINK = "#CC79A7"
ORANGE = "#E69F00"
SKY = "#56B4E9"
BLACK = "#000000"
PURPLE = "#7B4FA3"
GREY = "#B8B8B8"
# colours of certified and accepted steps, in figures and in the coloured answers of the page
CERTIFIED = GREEN
ACCEPTED = ORANGE
# lines differ in style as well as in colour
LINES = (
    (BLUE, (0, ())),
    (VERMILION, (0, (5, 1.5))),
    (GREEN, (0, (1.2, 1.2))),
    (PINK, (0, (6, 1.5, 1.2, 1.5))),
    (ORANGE, (0, (3, 1))),
    (SKY, (0, (5, 1.5, 1.2, 1.5, 1.2, 1.5))),
    (BLACK, (0, (8, 2))),
)
LEGEND_ROW = 0.17  # inches
POINTS: dict[str, Any] = {"marker": "o", "markersize": 2.5}
GRID_LINES: dict[str, Any] = {"color": "#DDDDDD", "linewidth": 0.4}
REFERENCE_LINE: dict[str, Any] = {  # for instance of a ceiling
    "color": "#888888",
    "linewidth": 0.7,
    "linestyle": (0, (2, 2)),
    "zorder": 0,
}

styled = matplotlib.rc_context(STYLE)  # decorator of the functions that draw a figure


@styled
def render(figure: Figure, kind: str) -> bytes:
    """Return the bytes of a figure's file, of `kind` pdf or png. Afterwards its layout is fixed."""
    canvas = CANVASES[kind](figure)
    figure.set_dpi(matplotlib.rcParams["savefig.dpi"])
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # a character that the font lacks is drawn as a box
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        getattr(canvas, f"print_{kind}")(buffer, metadata=ANONYMOUS[kind])
    figure.set_layout_engine("none")  # computing it again would take as long as drawing
    return buffer.getvalue()


def grid(rows: int, titles: Sequence[str], height: float = 1.9) -> tuple[Figure, np.ndarray]:
    """Return a figure with `rows` panels for each title, side by side, and its axes."""
    figure = Figure(figsize=(TEXT, 0.45 + height * rows), layout="constrained")
    axes = figure.subplots(rows, len(titles), squeeze=False)
    for line in axes:
        for axis, title in zip(line, titles, strict=True):
            axis.set_title(title)
    return figure, axes


def error_bars(value: Any, low: Any, high: Any) -> np.ndarray:
    """Return the distances (2, N) from values (N,) to the ends of their intervals; 0 for NaN.

    >>> error_bars([1.0, 2.0], [0.5, float("nan")], [1.0, 3.0]).tolist()
    [[0.5, 0.0], [0.0, 1.0]]
    """
    value, low, high = (np.asarray(ends, dtype=np.float64) for ends in (value, low, high))
    bars: np.ndarray = np.nan_to_num(np.stack([value - low, high - value]).clip(min=0))
    return bars


def percent(axes: Axes, name: str) -> None:
    """Format the shares along the x or y axis in percent."""
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{round(100 * share, 6):g} %"))


def legend(figure: Figure, axes: Iterable[Axes], columns: int = 2) -> None:
    """Add a legend of all labels of the axes below the panels, if there are several."""
    handles = {
        name: handle
        for axis in axes
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if len(handles) > 1:
        figure.legend(
            list(handles.values()), list(handles), loc="outside lower center", ncols=columns
        )
