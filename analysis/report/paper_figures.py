"""The paper's Figures 1 to 5, one panel a target, sized for the columns of a paper.

Every function returns a `Figure`, or None where the study has none of its rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from ..rules import Additive, Multiplicative, Rule, StrictGreedy, Tree
from ..statistics.bootstrap import Floats, PromptBootstrap, survival
from .figure import Figure
from .measured import Panels
from .paper_panels import finish, label, levels, panels_of, survival_drawing
from .style import BLUE, styled

SINGLE = 0.76  # nats shown of single-token certificates, which end at log 2


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
        axis.set_xlabel("probability of the most probable token")
        axis.legend(loc="upper left")
        bars = {"target": target, "from": bins[:-1], "to": bins[1:], "share": share}
        frames.append(pd.DataFrame(bars).assign(mean=mean, median=median))
    for axis in axes[::2]:
        axis.set_ylabel("fraction of steps")
    return Figure(
        "figure1",
        "Figure 1",
        "Distribution of the probability of the most probable target token over decoding steps.",
        drawing,
        pd.concat(frames, ignore_index=True),
    )


@styled
def figure2(panels: Panels, bootstraps: Mapping[str, PromptBootstrap]) -> Figure | None:
    """Draw the share of steps whose strict greedy certificate exceeds eps, with its interval."""
    greedy = StrictGreedy()
    chosen = {
        target: next((item for item in items if item.rule == greedy), None)
        for target, items in panels.items()
    }
    drawing, axes = panels_of(list(chosen), legend_rows=1)
    grid = levels(SINGLE)
    frames = []
    for axis, (target, item) in zip(axes, chosen.items(), strict=True):
        if item is None:
            return None
        bootstrap = bootstraps[target]
        low = survival_band(item.lower, grid, bootstrap)[0]
        high = survival_band(item.upper, grid, bootstrap)[1]
        name = f"{100 * bootstrap.confidence:g} % interval over prompts"
        axis.fill_between(grid, low, high, color=BLUE, alpha=0.3, linewidth=0, label=name)
        share = survival(item.lower, grid)
        axis.plot(grid, share, color=BLUE, linewidth=1, label=greedy.title)
        finish(axis, SINGLE, [greedy])
        curve = {"target": target, "eps": grid, "share": share, "ci_low": low, "ci_high": high}
        frames.append(pd.DataFrame(curve))
    label(drawing, axes)
    return Figure(
        "figure2",
        "Figure 2",
        "Fraction of steps whose strict greedy certificate exceeds ε. It ends at log 2, the "
        "ceiling of single-token criteria (Theorem 4.6), which very certain steps approach. "
        "Shaded: pointwise interval over prompts.",
        drawing,
        pd.concat(frames, ignore_index=True),
    )


def figure3(panels: Panels) -> Figure | None:
    """Compare additive certificates across t."""
    return _family(
        "figure3",
        "Figure 3",
        "Additive relaxed certificates across t. A curve that stays above zero beyond "
        "log 2 counts the steps whose rejection region is empty, which accept every "
        "drafter. A shaded area lies between the ends of certificates known as intervals.",
        panels,
        lambda rule: type(rule) is Additive,
        limit=SINGLE,
    )


def figure4(panels: Panels) -> Figure | None:
    """Compare multiplicative certificates across alpha."""
    return _family(
        "figure4",
        "Figure 4",
        "Multiplicative relaxed certificates across α.",
        panels,
        lambda rule: type(rule) is Multiplicative,
        limit=SINGLE,
    )


def figure5(panels: Panels) -> Figure | None:
    """Compare tree certificates across m."""
    greedy = any(item.rule == StrictGreedy() for items in panels.values() for item in items)
    return _family(
        "figure5",
        "Figure 5",
        f"Tree certificates across m{', with strict greedy' if greedy else ''}. Dashed: the "
        "ceilings log(m+1) (Theorem 5.3), reached only in the limit"
        f"{', and log 2' if greedy else ''}.",
        panels,
        lambda rule: type(rule) is Tree,
    )


def own_figure(panels: Panels) -> Figure | None:
    """Compare the certificates of a user's own rules."""
    return _family(
        "own",
        "Rules of the study's own",
        "Certificates of the rules that this study defines itself, with strict greedy where it "
        "is among the rules. Dashed: their ceilings.",
        panels,
        lambda rule: rule.own,
    )


@styled
def _family(
    name: str,
    title: str,
    caption: str,
    panels: Panels,
    of_family: Callable[[Rule], bool],
    limit: float | None = None,
) -> Figure | None:
    """Draw strict greedy, as the reference, and all rules of one family, up to their ceilings."""
    chosen = {
        target: [item for item in items if item.rule == StrictGreedy() or of_family(item.rule)]
        for target, items in panels.items()
    }
    ceilings = [
        item.rule.ceiling for items in chosen.values() for item in items if of_family(item.rule)
    ]
    if not ceilings:
        return None
    drawing, data = survival_drawing(chosen, 1.06 * max(ceilings) if limit is None else limit)
    return Figure(name, title, caption, drawing, data)


def survival_band(
    values: Floats, grid: Floats, bootstrap: PromptBootstrap
) -> tuple[Floats, Floats]:
    """Return the pointwise interval of the share of (N,) values above each of (G,) levels."""
    cell = np.searchsorted(grid, values, side="left")  # number of levels below the value
    width = len(grid) + 1
    counts = np.bincount(bootstrap.prompts * width + cell, minlength=bootstrap.count * width)
    above = np.cumsum(counts.reshape(-1, width)[:, ::-1], axis=1)[:, ::-1][:, 1:]
    draws = bootstrap.sums(above) / bootstrap.sums(bootstrap.steps[:, None])
    return bootstrap.interval(draws)
