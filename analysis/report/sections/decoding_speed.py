"""The speed of decoding with a drafter in the report: all that depends on the clock.

The comparison is laid out as Table 1 of MARS (arXiv 2601.15498), temperature and draft length as
its Table 2, with agreement with the baseline's tokens in the place of task accuracy; thresholds
follow its Figure 4. `speeds` holds `analysis.decoding.speed.speed` of each target, with the
threshold `theta` of MARS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle

import pandas as pd

from ...decoding import predicted, speed
from ...decoding.metrics import Decoded
from ...decoding.places import place_rates
from ...statistics.bootstrap import prompt_counts
from ..records import Column, Figure, Section, Table, worded
from ..style import GREY, LINES, POINTS, error_bars, grid, legend, percent, styled
from ..text import few_notes, number_text, share_text, times_text
from .decoding_trees import concat_targets

Speeds = Sequence[pd.DataFrame]


def speed_section(
    title: str, decoded: Sequence[Decoded], speeds: Speeds, says: Sequence[str]
) -> Section:
    """Return the section on speed."""
    shown = [
        comparison_table(decoded, speeds),
        speed_table(decoded, speeds),
        temperature_table(decoded, speeds),
        batches_table(decoded, speeds),
        thresholds_figure(decoded, speeds),
    ]
    return Section(f"{title}: speed", shown, says, timed=True)


def comparison_table(decoded: Sequence[Decoded], speeds: Speeds) -> Table:
    """Speedup and τ by source of the prompts, and of all."""
    sources = sorted({source for one in decoded for source in one.data["source"]})
    frames = []
    for one, table in zip(decoded, speeds, strict=True):
        whole = table[["speedup", "ci_low", "ci_high"]].assign(tau=table["tokens_per_call"])
        parts = [*(_of_source(one, source) for source in sources), whole]
        settings = one.runs[["method", "draft_length", "temperature"]]
        settings = settings.assign(**prompt_counts(one.prompts))
        by_source = [
            settings.join(part).reset_index(names="run").assign(target=one.target, source=source)
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
        **worded("decoding_comparison", more=columns),
        data=pd.concat(frames, ignore_index=True),
        notes=few_notes(one.prompts for one in decoded),
    )


def _of_source(one: Decoded, source: str) -> pd.DataFrame:
    """Return speedup and τ of every run on the prompts of a source; NaN without one."""
    prompts = one.data.loc[one.data["source"] == source, "prompt_id"].unique()
    if not len(prompts):
        return pd.DataFrame({"speedup": math.nan, "tau": math.nan}, index=one.runs.index)
    data, answers, calls = (
        table[table["prompt_id"].isin(prompts)] for table in (one.data, one.answers, one.calls)
    )
    found = speed.speedups(replace(one, data=data, answers=answers), 1, 0.5, 0)[["speedup"]]
    tau = calls.groupby("run")["emitted"].mean()
    return found.assign(tau=tau, ci_low=math.nan, ci_high=math.nan)


def speed_table(decoded: Sequence[Decoded], speeds: Speeds) -> Table:
    """What a reader of the answers sees, what a call costs, and what that predicts."""
    frames = []
    for one, table in zip(decoded, speeds, strict=True):
        best = predicted.draft_lengths(one, table).set_index(["method", "temperature"])
        lengths = best["predicted"].rename("best_length")
        frames.append(table.join(lengths, on=["method", "temperature"]))
    return Table(**worded("decoding_speed"), data=concat_targets(decoded, frames))


def temperature_table(decoded: Sequence[Decoded], speeds: Speeds) -> Table | None:
    """Temperature x draft length, for methods decoded at several temperatures."""
    groups = {
        f"{one.target}, {method}": group
        for one, table in zip(decoded, speeds, strict=True)
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
        Column(name, text, of, {"temperature": t}, above=f"T = {t:g}")
        for t in sorted(data["temperature"].unique())
        for name, (text, of) in effects.items()
    ]
    return Table(
        **worded("decoding_temperature", more=columns),
        data=data,
        shown=data.sort_values("draft_length", kind="stable"),
        names={gamma: f"γ = {gamma}" for gamma in data["draft_length"].unique()},
    )


def batches_table(decoded: Sequence[Decoded], speeds: Speeds) -> Table | None:
    """At each batch size: what passes cost, the acceptance that pays, and the best draft length."""
    frames = []
    for one, table in zip(decoded, speeds, strict=True):
        of_trees = one.of_trees.reindex(table.index, fill_value=False)
        chains = table[(table["drafter"] == "model") & ~of_trees]
        if one.passes.empty or chains.empty:
            return None
        first = chains[chains["method"] == chains["method"].iloc[0]]
        longest = first.sort_values("draft_length").iloc[-1]
        run, gamma = int(first["draft_length"].idxmax()), int(longest["draft_length"])
        rates = place_rates(one.calls, run, gamma)
        found = speed.break_even_by_batch(one, rates)
        frames.append(found.assign(method=longest["method"], temperature=longest["temperature"]))
    method, most = frames[0]["method"].iloc[0], int(frames[0]["longest"].max())
    data = concat_targets(decoded, frames)
    return Table(
        **worded("decoding_batches", most=most, method=method),
        data=data,
        shown=data.assign(speedup=data["speedup"].where(data["draft_length"] > 0)),
    )


@styled
def thresholds_figure(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Figure | None:
    """Draw agreement and speedup of MARS over its threshold (after Figure 4 of MARS)."""
    sweeps = []
    for table in speeds:
        mars = table[table["theta"].notna() & (table["temperature"] == 0)]
        swept = mars.groupby("draft_length")["theta"].transform("nunique") > 1
        sweeps.append(mars[swept])
    if any(table["theta"].nunique() < 2 for table in sweeps):
        return None
    drawing, axes = grid(2, [one.target for one in decoded])
    for (above, below), table in zip(axes.T, sweeps, strict=True):
        groups = table.sort_values("theta").groupby("draft_length")
        for (colour, style), (gamma, group) in zip(cycle(LINES), groups, strict=False):
            drawn = {**POINTS, "color": colour, "linestyle": style, "label": f"γ = {gamma}"}
            above.plot(group["theta"], group["agreement"], **drawn)
            ends = error_bars(group["speedup"], group["ci_low"], group["ci_high"])
            below.errorbar(group["theta"], group["speedup"], ends, **drawn, elinewidth=0.7)
        percent(above, "y")
        below.axhline(1, color=GREY, linewidth=0.8, zorder=0)
        below.set_xlabel("threshold θ of the logit ratio")
    axes[0, 0].set_ylabel("agreement with the baseline")
    axes[1, 0].set_ylabel("speedup")
    legend(drawing, axes[0], 4)
    shown = ["target", "draft_length", "theta", "agreement", "speedup", "ci_low", "ci_high"]
    data = concat_targets(decoded, sweeps)[shown]
    return Figure(**worded("decoding_thresholds"), data=data, drawing=drawing)
