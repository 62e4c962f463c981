"""The closest draft that can be rejected, drawn beside its target."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ...certificates.reference import extremal_draft
from ...rules import Additive, Rule, StrictGreedy, Tree
from ..figure import Figure
from ..style import BLUE, COLUMN, LEVEL, ORANGE, legend, styled

# made up: under each of EXAMPLE_RULES another set of its tokens is active
EXAMPLE = (0.36, 0.26, 0.14, 0.09, 0.06, 0.04, 0.03, 0.02)
EXAMPLE_RULES: tuple[Rule, ...] = (StrictGreedy(), Additive(t=0.2), Tree(m=3))
PANEL_HEIGHT, LEGEND = 1.25, 0.3  # inches


@styled
def extremal_figure() -> Figure:
    """Draw p and q* of Lemma 4.2 or Theorem 5.1 for `EXAMPLE`, one panel a rule."""
    p, at = np.array(EXAMPLE), np.arange(1, len(EXAMPLE) + 1)
    size = (COLUMN, PANEL_HEIGHT * len(EXAMPLE_RULES) + LEGEND)
    drawing = Drawing(figsize=size, layout=ConstrainedLayoutEngine())
    axes = drawing.subplots(len(EXAMPLE_RULES), 1, sharex=True, sharey=True)
    frames = []
    for axis, rule in zip(axes, EXAMPLE_RULES, strict=True):
        q, kl = extremal_draft(p, rule)
        level = q[0]  # the argmax is always active
        axis.axhline(level, **LEVEL)
        axis.bar(at - 0.2, p, 0.38, color=BLUE, label="target p")
        axis.bar(
            at + 0.2,
            q,
            0.38,
            color=ORANGE,
            hatch="////",
            edgecolor="white",
            linewidth=0,
            label="closest rejected draft q*",
        )
        axis.annotate(
            f"level {level:.3f}",
            (1, level),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="right",
            fontsize=6.5,
            color="#555555",
        )
        axis.set_title(f"{rule.title}: KL(p‖q*) = {kl:.4f} nats", loc="left")
        axis.set_ylabel("probability")
        axis.tick_params(axis="x", length=0)
        bars = {"rule": rule.label, "token": at, "target": p, "draft": q, "level": level}
        frames.append(pd.DataFrame(bars).assign(kl=kl))
    axes[-1].set_xticks(at)
    axes[-1].set_xlabel("token, by rank under p")
    legend(drawing, axes[:1])
    return Figure(
        "extremal",
        "The closest draft that can be rejected",
        "A made-up target p over eight tokens and, for three criteria, the draft q* of "
        "least KL(p‖q) that can be rejected (Lemma 4.2, Theorem 5.1). Level (dashed) on the active "
        "tokens, equal to p elsewhere. Strict greedy: the second token ties with the first. "
        "Additive: the third is the first one that may be rejected, and the second, above the "
        "level, comes down with the first. Tree: the first token falls out of the three best when "
        "the third and fourth reach it; the second is above it already.",
        drawing,
        pd.concat(frames, ignore_index=True),
    )
