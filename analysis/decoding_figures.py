"""Figures of decoding with a drafter, one column a target."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from analysis import decoding
from analysis.decoding import Decoded, Floats
from analysis.figures import LINES, STYLE, TEXT

BLUE, RED, PURPLE, GREY = "#0072B2", "#D55E00", "#7B4FA3", "#B8B8B8"
THRESHOLD = 0.9  # of the logit ratio, the default of MARS
SHOWN = 5  # methods in a panel


def content_figures(decoded: Sequence[Decoded]) -> dict[str, Figure]:
    """Return the figures that do not depend on the clock, by file name without suffix."""
    figures = {"decoding_places": places_figure(decoded)}
    if all(len(one.trajectory) for one in decoded):
        figures |= {
            "decoding_ratios": ratios_figure(decoded),
            "decoding_ratio_histograms": histograms_figure(decoded),
        }
    return figures


def timing_figures(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> dict[str, Figure]:
    """Return the figures of speed."""
    figures = {
        "decoding_thresholds": thresholds_figure(decoded, speeds),
        "decoding_lengths": lengths_figure(decoded, speeds),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def places_figure(decoded: Sequence[Decoded]) -> Figure:
    """Draw acceptance by place in the draft, and the histogram of accepted lengths."""
    with matplotlib.rc_context(STYLE):
        figure, axes = _grid(2, [one.target for one in decoded])
        for column, one in enumerate(decoded):
            rates = decoding.position_rates(one.calls)
            lengths = decoding.length_histogram(one.calls)
            for at, (run, name) in enumerate(_longest(one)):
                colour, style = LINES[at]
                mine = rates[rates["run"] == run]
                axes[0, column].plot(
                    mine["place"],
                    mine["rate"],
                    color=colour,
                    linestyle=style,
                    marker="o",
                    markersize=2.5,
                    label=name,
                )
                mine = lengths[lengths["run"] == run]
                axes[1, column].plot(
                    mine["accepted"],
                    mine["share"],
                    color=colour,
                    linestyle=style,
                    marker="o",
                    markersize=2.5,
                )
            axes[0, column].set_xlabel("place in the draft")
            axes[1, column].set_xlabel("accepted tokens of a call")
            axes[0, column].set_ylim(-0.03, 1.03)
            for axis in axes[:, column]:
                axis.xaxis.set_major_locator(MaxNLocator(integer=True))
                axis.yaxis.set_major_formatter(PercentFormatter(1))
        axes[0, 0].set_ylabel("accepted, of tested")
        axes[1, 0].set_ylabel("share of calls")
        _legend(figure, axes[0])
    return figure


def _longest(one: Decoded) -> list[tuple[int, str]]:
    """Return up to five methods at their longest draft, one setting of each kind of rule."""
    seen: dict[tuple[str, float], tuple[int, str]] = {}
    ordered = one.runs[one.runs["draft_length"] > 0].sort_values("draft_length", kind="stable")
    for run, row in ordered.iterrows():
        key = (str(row["method"]), float(row["temperature"]))
        seen[key] = int(run), f"{row['method']}, T = {row['temperature']:g}"  # type: ignore[call-overload]
    kinds: dict[tuple[str, float], tuple[int, str]] = {}
    for (method, temperature), found in seen.items():
        preferred = f"θ = {THRESHOLD:g})" in method
        kind = (method.split(" (θ")[0], temperature)
        if preferred or kind not in kinds:
            kinds[kind] = found
    return sorted(kinds.values())[:SHOWN]


def ratios_figure(decoded: Sequence[Decoded]) -> Figure:
    """Draw the top two logits, the top two probabilities, and one ratio against the other.

    After Figure 1 of MARS: what the logit ratio calls a low margin, and what the drafter's token
    is there. The last row zooms into it.
    """
    draw = (_logits, _probabilities, _decoupling, _zone)
    with matplotlib.rc_context(STYLE):
        figure, axes = _grid(len(draw), [one.target for one in decoded])
        for column, one in enumerate(decoded):
            steps = _ratios(one.trajectory)
            for row, panel in enumerate(draw):
                panel(axes[row, column], steps)
        _legend(figure, axes[3])
    return figure


def _ratios(trajectory: pd.DataFrame) -> pd.DataFrame:
    z1, z2 = (trajectory[name].to_numpy(np.float64) for name in ("z1", "z2"))
    total = trajectory["logsumexp"].to_numpy()
    ratio = np.divide(z2, z1, out=np.zeros_like(z1), where=z1 > 0)
    return trajectory.assign(
        ratio=ratio,
        low=ratio > THRESHOLD,
        p1=np.exp(z1 - total),
        p2=np.exp(z2 - total),
        probability_ratio=np.exp(z2 - z1),
    )


def _logits(axis: Axes, steps: pd.DataFrame) -> None:
    _pairs(axis, steps, "z1", "z2", "largest logit", "second logit")


def _probabilities(axis: Axes, steps: pd.DataFrame) -> None:
    _pairs(axis, steps, "p1", "p2", "largest probability", "second probability")


def _decoupling(axis: Axes, steps: pd.DataFrame) -> None:
    _pairs(
        axis, steps, "ratio", "probability_ratio", "logit ratio z₂/z₁", "probability ratio p₂/p₁"
    )


def _pairs(axis: Axes, steps: pd.DataFrame, x: str, y: str, across: str, up: str) -> None:
    for low, colour in ((False, GREY), (True, RED)):
        mine = steps[steps["low"] == low]
        axis.scatter(mine[x], mine[y], s=4, color=colour, linewidths=0, rasterized=True)
    axis.set_xlabel(across)
    axis.set_ylabel(up)


def _zone(axis: Axes, steps: pd.DataFrame) -> None:
    """Within the zone the rank of the drafted token decides: 1 exact, 2 relaxed, else rejected."""
    zone = steps[steps["low"]]
    for name, mine, colour in (
        ("argmax drafted", zone["draft_rank"] == 1, BLUE),
        ("second drafted: accepted by MARS", zone["draft_rank"] == 2, PURPLE),
        ("another drafted: rejected", zone["draft_rank"] > 2, RED),
    ):
        axis.scatter(
            zone.loc[mine, "ratio"],
            zone.loc[mine, "probability_ratio"],
            s=5,
            color=colour,
            linewidths=0,
            label=name,
            rasterized=True,
        )
    axis.set_xlabel(f"logit ratio above {THRESHOLD:g}")
    axis.set_ylabel("probability ratio p₂/p₁")


def histograms_figure(decoded: Sequence[Decoded]) -> Figure:
    """Draw histograms of the largest logit and of both ratios (after Figure 5 of MARS)."""
    with matplotlib.rc_context(STYLE):
        figure, axes = _grid(3, [one.target for one in decoded])
        for column, one in enumerate(decoded):
            steps = _ratios(one.trajectory)
            negative = float((steps["z1"] <= 0).mean())
            _histogram(
                axes[0, column],
                steps["z1"].to_numpy(),
                0.0,
                None,
                f"largest logit ({100 * negative:.1f} % not positive)",
            )
            _histogram(
                axes[1, column], steps["ratio"].to_numpy(), THRESHOLD, (0, 1), "logit ratio z₂/z₁"
            )
            _histogram(
                axes[2, column],
                steps["probability_ratio"].to_numpy(),
                THRESHOLD,
                (0, 1),
                "probability ratio p₂/p₁",
            )
        for axis in axes[:, 0]:
            axis.set_ylabel("share of steps")
    return figure


def _histogram(
    axis: Axes, values: Floats, mark: float, extent: tuple[float, float] | None, name: str
) -> None:
    axis.hist(
        values, bins=40, range=extent, weights=np.full(len(values), 1 / len(values)), color=BLUE
    )
    axis.axvline(mark, color=RED, linestyle="--", linewidth=0.9)
    axis.set_xlabel(name)


def thresholds_figure(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Figure | None:
    """Draw agreement and speedup of MARS over its threshold (after Figure 4 of MARS)."""
    sweeps = [table[table["theta"].notna() & (table["temperature"] == 0)] for table in speeds]
    if any(table["theta"].nunique() < 2 for table in sweeps):
        return None
    with matplotlib.rc_context(STYLE):
        figure, axes = _grid(1, [one.target for one in decoded])
        for axis, table in zip(axes[0], sweeps, strict=True):
            other = axis.twinx()
            other.spines["right"].set_visible(True)
            for at, (gamma, group) in enumerate(table.groupby("draft_length")):
                group = group.sort_values("theta")
                style = LINES[at][1]
                axis.plot(
                    group["theta"],
                    group["agreement"],
                    color=BLUE,
                    linestyle=style,
                    marker="o",
                    markersize=2.5,
                    label=f"γ = {gamma}",
                )
                other.plot(
                    group["theta"],
                    group["speedup"],
                    color=PURPLE,
                    linestyle=style,
                    marker="s",
                    markersize=2.5,
                )
            axis.set_ylim(table["agreement"].min() - 0.02, 1.01)
            axis.yaxis.set_major_formatter(PercentFormatter(1))
            axis.set_xlabel("threshold θ of the logit ratio")
            axis.set_ylabel("agreement with the baseline", color=BLUE)
            other.set_ylabel("speedup", color=PURPLE)
            axis.legend(loc="best")
    return figure


def lengths_figure(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Figure | None:
    """Draw speedup over draft length, as measured and as predicted, where several were tried."""
    panels = []
    for one, table in zip(decoded, speeds, strict=True):
        mine = table[table["drafter"] == "model"]
        counts = mine.groupby(["method", "temperature"])["draft_length"].transform("nunique")
        panels.append((one.target, mine[counts > 2]))
    if any(table.empty for _, table in panels):
        return None
    with matplotlib.rc_context(STYLE):
        figure, axes = _grid(1, [target for target, _ in panels])
        for axis, (_, table) in zip(axes[0], panels, strict=True):
            groups = table.groupby(["method", "temperature"], sort=False)
            for (colour, _), ((method, t), group) in zip(LINES, groups, strict=False):
                group = group.sort_values("draft_length")
                error = np.stack(
                    [group["speedup"] - group["low"], group["high"] - group["speedup"]]
                ).clip(min=0)
                axis.errorbar(
                    group["draft_length"],
                    group["speedup"],
                    error,
                    color=colour,
                    marker="o",
                    markersize=2.5,
                    elinewidth=0.7,
                    label=f"{method}, T = {t:g}",
                )
                axis.plot(group["draft_length"], group["predicted"], color=colour, linestyle=":")
                axis.plot(
                    group["draft_length"], group["predicted_costs"], color=colour, linestyle="--"
                )
            axis.axhline(1, color=GREY, linewidth=0.8, zorder=0)
            axis.set_xlabel("draft length γ")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[0, 0].set_ylabel("speedup")
        _legend(figure, axes[0])
    return figure


def _grid(rows: int, targets: Sequence[str]) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(TEXT, 0.45 + 1.9 * rows), layout="constrained")
    axes = figure.subplots(rows, len(targets), squeeze=False)
    for axis, target in zip(axes[0], targets, strict=True):
        axis.set_title(target)
    return figure, axes


def _legend(figure: Figure, axes: np.ndarray) -> None:
    found = {
        name: handle
        for axis in axes
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if found:
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=2)
