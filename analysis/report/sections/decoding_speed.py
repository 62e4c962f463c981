"""The speed of decoding with a drafter in the report: tables that depend on the clock.

The comparison has the layout of Table 1 of MARS (arXiv 2601.15498), temperature and draft length
that of its Table 2, with agreement with the baseline's tokens instead of task accuracy. Thresholds
follow its Figure 4. `speeds` are the tables of `analysis.decoding.speed.speed`, one for each
target, with the threshold `theta` of MARS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle

import pandas as pd

from ...decoding import speed
from ...decoding.metrics import Decoded
from ..records import Column, Figure, Section, Table, worded
from ..style import GREY, LINES, POINTS, error_bars, grid, legend, percent, styled
from ..text import limits, number_text, share_text, times_text
from .decoding_trees import concat_targets

Speeds = Sequence[pd.DataFrame]


def speed_section(
    title: str, decoded: Sequence[Decoded], speeds: Speeds, paragraphs: Sequence[str]
) -> Section:
    """Return the section on speed."""
    shown = [
        comparison_table(decoded, speeds),
        speed_table(decoded, speeds),
        temperature_table(decoded, speeds),
        thresholds_figure(
            [pair.target for pair in decoded], speeds, "agreement", "decoding_thresholds"
        ),
    ]
    return Section(f"{title}: speed", shown, paragraphs, timed=True)


def comparison_table(decoded: Sequence[Decoded], speeds: Speeds) -> Table:
    """Return speedup and τ by source of the prompts, and for all prompts."""
    sources = sorted({source for pair in decoded for source in pair.data["source"]})
    frames = []
    for pair, table in zip(decoded, speeds, strict=True):
        whole = table[["speedup", "ci_low", "ci_high"]].assign(tau=table["tokens_per_call"])
        parts = [*(_of_source(pair, source) for source in sources), whole]
        settings = pair.runs[["method", "draft_length", "temperature"]]
        settings = settings.assign(prompts=pair.prompts)
        by_source = [
            settings.join(part).reset_index(names="run").assign(target=pair.target, source=source)
            for source, part in zip([*sources, "all"], parts, strict=True)
        ]
        frames.append(pd.concat(by_source))
    columns = [
        column
        for source in (*sources, "all")
        for column in (
            Column(
                "speedup", times_text, ("speedup", "ci_low", "ci_high"), {"source": source}, source
            ),
            Column("τ", number_text, "tau", {"source": source}, source),
        )
    ]
    return Table(
        **worded("decoding_comparison", more=columns), data=pd.concat(frames, ignore_index=True)
    )


def _of_source(decoded: Decoded, source: str) -> pd.DataFrame:
    """Return speedup and τ of every run on the prompts of a source; NaN if it has none."""
    prompts = decoded.data.loc[decoded.data["source"] == source, "prompt_id"].unique()
    if not len(prompts):
        return pd.DataFrame({"speedup": math.nan, "tau": math.nan}, index=decoded.runs.index)
    data, answers, calls = (
        table[table["prompt_id"].isin(prompts)]
        for table in (decoded.data, decoded.answers, decoded.calls)
    )
    speedups = speed.speedups(replace(decoded, data=data, answers=answers), 1, 0.5, 0)[["speedup"]]
    tau = calls.groupby("run")["emitted"].mean()
    return speedups.assign(tau=tau, ci_low=math.nan, ci_high=math.nan)


def speed_table(decoded: Sequence[Decoded], speeds: Speeds) -> Table:
    """Return the table of throughput, latency, costs of a call, predicted speedup and memory."""
    return Table(**worded("decoding_speed"), data=concat_targets(decoded, speeds))


def temperature_table(decoded: Sequence[Decoded], speeds: Speeds) -> Table | None:
    """Return speedup, τ and agreement by temperature and draft length; None at one temperature."""
    groups = {
        f"{pair.target}, {method}": group
        for pair, table in zip(decoded, speeds, strict=True)
        for method, group in table[table["draft_length"] > 0].groupby("method", sort=False)
        if len(set(group["temperature"])) > 1
    }
    if not groups:
        return None
    data = pd.concat(
        [group.assign(section=title) for title, group in groups.items()], ignore_index=True
    )
    effects: dict[str, tuple[Callable[..., str], str]] = {
        "speedup": (times_text, "speedup"),
        "τ": (number_text, "tokens_per_call"),
        "agreement": (share_text, "agreement"),
    }
    columns = [
        Column(name, text, source, {"temperature": t}, above=f"T = {t:g}")
        for t in sorted(data["temperature"].unique())
        for name, (text, source) in effects.items()
    ]
    return Table(
        **worded("decoding_temperature", more=columns),
        data=data,
        shown=data.sort_values("draft_length", kind="stable"),
        names={gamma: f"γ = {gamma}" for gamma in data["draft_length"].unique()},
    )


@styled
def thresholds_figure(
    targets: Sequence[str], frames: Sequence[pd.DataFrame], quality: str, name: str
) -> Figure | None:
    """Draw quality and speed over the threshold of MARS, as its Figure 4; None without a sweep.

    Args:
        targets: printed names.
        frames: of each target, a row a method: method, draft_length, temperature, theta (NaN of
            other rules), speedup, and the quality, each with its interval where it has one.
        quality: accuracy, or agreement with the baseline.
        name: of the figure.
    """
    sweeps, keys = [], ["draft_length", "temperature", "scheme"]
    for frame in frames:
        mars = frame[frame["theta"].notna()]
        schemes = [title.partition(")")[2] for title in mars["method"]]  # behind the rule's title
        mars = mars.assign(scheme=schemes)
        swept = mars.groupby(keys)["theta"].transform("nunique") > 1
        sweeps.append(mars[swept].sort_values("theta"))
    if any(table.empty for table in sweeps):
        return None
    drawing, axes = grid(2, targets)
    shown = ["theta", *keys, quality, *limits(quality), "speedup", "ci_low", "ci_high"]
    data = [
        table.reindex(columns=shown).assign(target=t)
        for t, table in zip(targets, sweeps, strict=True)
    ]
    for target, panels, table in zip(targets, axes.T, data, strict=True):
        groups = table.groupby(keys, sort=True)
        for (colour, style), ((gamma, t, scheme), group) in zip(cycle(LINES), groups, strict=False):
            label = f"γ = {gamma}, T = {t:g}{scheme}"
            drawn = {**POINTS, "color": colour, "linestyle": style, "label": label}
            for axis, of in zip(panels, (quality, "speedup"), strict=True):
                ends = ("ci_low", "ci_high") if of == "speedup" else limits(of)
                bars = error_bars(group[of], *(group[end] for end in ends))
                axis.errorbar(group["theta"], group[of], bars, **drawn, elinewidth=0.7)
        # a single line has no legend
        only = f"\n{label}" if len(groups) == 1 else ""
        for axis, of in zip(panels, (quality, "speedup"), strict=True):
            axis.set_title(f"{target}: {of}{only}")
        percent(panels[0], "y")
        panels[1].axhline(1, color=GREY, linewidth=0.8, zorder=0)
        panels[1].set_xlabel("threshold θ of the logit ratio")
    axes[0, 0].set_ylabel({"agreement": "agreement with the baseline"}.get(quality, quality))
    axes[1, 0].set_ylabel("speedup")
    legend(drawing, axes[0], 2)
    return Figure(**worded(name), data=pd.concat(data, ignore_index=True), drawing=drawing)
