"""Values of rules as points with their intervals, one panel a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine

from .pairs import Pairs
from .style import BLACK, LINES, RULED, TEXT, legend

MARKERS = ("D", "o", "s", "^", "v")
ROW, APART = 0.3, 0.16  # inches of a rule; of that, between two points


def dots(
    pairs: Pairs,
    rules: Sequence[str],
    kinds: Mapping[str, str],
    row_of: Callable[[str, str, str], Mapping[Any, Any]],
    last: str = "",
) -> tuple[Drawing, Sequence[Axes]]:
    """Draw a point of each kind for each rule.

    Args:
        pairs: the targets and the names of the rules.
        rules: labels of the rules, from the top.
        kinds: printed name of each kind.
        row_of: gives value, ci_low and ci_high of a target, rule and kind.
        last: a kind that is drawn in black, as a bar.
    """
    size = (TEXT, 1.0 + ROW * len(rules))
    drawing = Drawing(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1))
    axes = drawing.subplots(1, len(pairs.targets), sharey=True, squeeze=False)[0]
    at = np.arange(len(rules))
    for axis, target in zip(axes, pairs.targets, strict=True):
        for place, (kind, name) in enumerate(kinds.items()):
            rows = [row_of(target, rule, kind) for rule in rules]
            value, low, high = (
                np.array([row[key] for row in rows]) for key in ("value", "ci_low", "ci_high")
            )
            axis.errorbar(
                value,
                at + APART * (place - (len(kinds) - 1) / 2),
                xerr=np.nan_to_num(np.stack([value - low, high - value]).clip(min=0)),
                fmt="|" if kind == last else MARKERS[place % len(MARKERS)],
                color=BLACK if kind == last else LINES[place % len(LINES)][0],
                markersize=6 if kind == last else 3,
                elinewidth=0.7,
                label=name,
            )
        axis.set_title(target)
        axis.set_xlim(-0.02, 1.02)
        axis.grid(axis="x", **RULED)
        axis.set_axisbelow(True)
    axes[0].set_yticks(at, [pairs.names[rule] for rule in rules], fontsize=6.5)
    axes[0].set_ylim(len(rules) - 0.4, -0.6)
    legend(drawing, axes[:1], len(kinds))
    return drawing, axes
