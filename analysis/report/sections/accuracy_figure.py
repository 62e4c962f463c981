"""Accuracy of every method over that of the target alone, as Figure 3 of the MARS paper."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from ...decoding.answers import Answered, recoveries
from ..records import Figure
from ..style import LEVEL, LINES, TEXT, legend, styled


@styled
def recovery_figure(answered: Sequence[Answered], tables: Sequence[pd.DataFrame]) -> Figure | None:
    """Accuracy of every method over that of the target alone, by task: Figure 3 of MARS."""
    frames = [recoveries(one, table) for one, table in zip(answered, tables, strict=True)]
    data = pd.concat(frames, ignore_index=True)
    if data.empty:
        return None
    drawing = Drawing(figsize=(TEXT, 0.5 + 2.2 * len(answered)), layout="constrained")
    axes = drawing.subplots(len(answered), 1, squeeze=False)[:, 0]
    for axis, one in zip(axes, answered, strict=True):
        part = data[data["target"] == one.target]
        tasks, methods = part["task"].drop_duplicates().tolist(), part["run"].drop_duplicates()
        apart = 0.8 / max(1, len(methods))
        for place, (run, (color, _)) in enumerate(zip(methods, cycle(LINES), strict=False)):
            mine = part[part["run"] == run].set_index("task").loc[tasks]
            at = np.arange(len(tasks)) + apart * (place - (len(methods) - 1) / 2)
            value = 100 * mine["recovery"].to_numpy()
            ends = 100 * mine[["recovery_ci_low", "recovery_ci_high"]].to_numpy().T
            axis.errorbar(
                at,
                value,
                yerr=np.nan_to_num(np.abs(ends - value)),
                fmt="os^Dv"[place // len(LINES) % 5],
                color=color,
                markersize=3,
                elinewidth=0.7,
                label=f"{mine['method'].iloc[0]}, γ = {mine['draft_length'].iloc[0]}",
            )
        axis.axhline(100, **LEVEL)
        axis.set_xticks(range(len(tasks)), tasks)
        axis.set_ylabel("recovery, %")
        axis.set_title(one.target)
    legend(drawing, axes, 3)
    return Figure(
        "accuracy_recovery",
        "Recovery",
        "Which share of the target's accuracy does each method keep, task by task?",
        "Accuracy of every method over that of the target alone, in percent, by task and over all. "
        "Bars: the paired interval of the difference of the two over the accuracy of the target "
        "alone. The layout is that of Figure 3 of the MARS paper.",
        data,
        drawing,
    )
