"""The paper's Figures 1 to 5, one panel a target, sized for the columns of a paper.

Every function returns a `Figure`, or None where the study has none of its rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from ...rules import Additive, Multiplicative, Rule, StrictGreedy, Tree
from ...statistics.bootstrap import Floats, PromptBootstrap
from ..figure import Figure
from ..measured import Panels
from ..style import BLUE, percent, styled
from .paper_panels import panels_of, survival_drawing

BAND = (
    "Shaded: pointwise interval over prompts; of certificates known as intervals, from the lower "
    "ends to the upper ends."
)


@styled
def figure1(top: Mapping[str, Floats]) -> Figure:
    """Draw the distribution of the argmax's probability; (N,) of each target."""
    drawing, axes = panels_of(list(top))
    bins = np.linspace(0, 1, 41)
    frames = []
    for axis, (target, probability) in zip(axes, top.items(), strict=True):
        share = np.histogram(probability, bins)[0] / len(probability)
        axis.bar(
            bins[:-1],
            share,
            np.diff(bins),
            align="edge",
            color=BLUE,
            edgecolor="white",
            linewidth=0.3,
        )
        mean, median = float(probability.mean()), float(np.median(probability))
        for value, name, style in ((mean, "mean", "--"), (median, "median", ":")):
            axis.axvline(
                value,
                0,
                0.78,
                linestyle=style,
                color="black",
                linewidth=0.9,
                label=f"{name} {value:.3f}",
            )
        axis.set_xlim(0, 1)
        axis.set_xlabel("p₀, probability of the most probable token")
        percent(axis, "y")
        axis.legend(loc="upper left")
        bars = {"target": target, "from": bins[:-1], "to": bins[1:], "share": share}
        frames.append(pd.DataFrame(bars).assign(mean=mean, median=median))
    for axis in axes[::2]:
        axis.set_ylabel("steps")
    return Figure(
        "figure1",
        "Figure 1: probability of the most probable token",
        "Distribution of the probability of the most probable target token over decoding steps.",
        drawing,
        pd.concat(frames, ignore_index=True),
    )


def figure2(panels: Panels, bootstraps: Mapping[str, PromptBootstrap]) -> Figure | None:
    """Draw the share of steps whose strict greedy certificate exceeds eps."""
    greedy = {
        target: [item for item in items if item.rule == StrictGreedy()]
        for target, items in panels.items()
    }
    if not all(greedy.values()):
        return None
    return _drawn(
        "figure2",
        "Figure 2: strict greedy certificates",
        "Share of steps whose strict greedy certificate exceeds ε. It ends at log 2, the "
        f"ceiling of single-token criteria (Theorem 4.6), which very certain steps approach. "
        f"{BAND}",
        greedy,
        bootstraps,
        shared_limit(panels),
    )


def figure3(panels: Panels, bootstraps: Mapping[str, PromptBootstrap]) -> Figure | None:
    """Compare additive certificates across t."""
    return _family(
        "figure3",
        "Figure 3: additive certificates over t",
        "Additive relaxed certificates across t. A curve that stays above zero beyond "
        "log 2 counts the steps whose rejection region is empty, which accept every "
        f"drafter. {BAND}",
        panels,
        bootstraps,
        lambda rule: type(rule) is Additive,
    )


def figure4(panels: Panels, bootstraps: Mapping[str, PromptBootstrap]) -> Figure | None:
    """Compare multiplicative certificates across alpha."""
    return _family(
        "figure4",
        "Figure 4: multiplicative certificates over α",
        f"Multiplicative relaxed certificates across α. {BAND}",
        panels,
        bootstraps,
        lambda rule: type(rule) is Multiplicative,
    )


def figure5(panels: Panels, bootstraps: Mapping[str, PromptBootstrap]) -> Figure | None:
    """Compare tree certificates across m."""
    greedy = any(item.rule == StrictGreedy() for items in panels.values() for item in items)
    return _family(
        "figure5",
        "Figure 5: tree certificates over m",
        f"Tree certificates across m{', with strict greedy' if greedy else ''}. Dashed: the "
        "ceilings log(m+1) (Theorem 5.3), reached only in the limit"
        f"{', and log 2' if greedy else ''}. {BAND}",
        panels,
        bootstraps,
        lambda rule: type(rule) is Tree,
    )


def own_figure(panels: Panels, bootstraps: Mapping[str, PromptBootstrap]) -> Figure | None:
    """Compare the certificates of a user's own rules."""
    return _family(
        "own",
        "Rules of the study's own",
        "Certificates of the rules that this study defines itself, with strict greedy where it "
        f"is among the rules. Dashed: their ceilings. {BAND}",
        panels,
        bootstraps,
        lambda rule: rule.own,
    )


def _family(
    name: str,
    title: str,
    caption: str,
    panels: Panels,
    bootstraps: Mapping[str, PromptBootstrap],
    of_family: Callable[[Rule], bool],
) -> Figure | None:
    """Draw strict greedy, as the reference, and all rules of one family."""
    chosen = {
        target: [item for item in items if item.rule == StrictGreedy() or of_family(item.rule)]
        for target, items in panels.items()
    }
    ceilings = [
        item.rule.ceiling for items in chosen.values() for item in items if of_family(item.rule)
    ]
    if not ceilings:
        return None
    limit = max(shared_limit(panels), 1.06 * max(ceilings))
    return _drawn(name, title, caption, chosen, bootstraps, limit)


@styled
def _drawn(
    name: str,
    title: str,
    caption: str,
    chosen: Panels,
    bootstraps: Mapping[str, PromptBootstrap],
    limit: float,
) -> Figure:
    drawing, data = survival_drawing(chosen, bootstraps, limit)
    return Figure(name, title, caption, drawing, data)


def shared_limit(panels: Panels) -> float:
    """Return the nats up to which Figures 2 to 5 are drawn: just past the largest ceiling."""
    shown = (StrictGreedy, Additive, Multiplicative, Tree)
    ceilings = [
        item.rule.ceiling for items in panels.values() for item in items if type(item.rule) in shown
    ]
    return 1.06 * max(ceilings, default=math.log(2))
