"""Break-even: the acceptance that drafting needs to pay, beside what was measured.

`speeds` holds `analysis.decoding.speed.speed` of each target.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import pandas as pd
from matplotlib.ticker import MaxNLocator

from ..decoding.metrics import Decoded
from ..decoding.speed import break_even_by_batch, break_even_by_length
from .decoding_speed_tables import WALL_CLOCK, times
from .decoding_tables import method_sections, together
from .figure import Figure
from .style import GREY, LINES, POINTS, grid, legend, percent, styled
from .table import Cell, Section, Table
from .text import UNDEFINED, number_text


def break_even_table(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Table | None:
    """At the draft lengths tried: what a call costs, the acceptance it needs, and the speedup."""
    frames = [break_even_by_length(one, table) for one, table in zip(decoded, speeds, strict=True)]
    frames = [frame[frame["tried"]] for frame in frames]
    if all(frame.empty for frame in frames):
        return None

    def texts(row: pd.Series) -> list[str]:
        return [
            str(row["draft_length"]),
            f"{row['temperature']:g}",
            number_text(row["rho"], 3),
            number_text(row["cost"]),
            number_text(row["break_even"], 3),
            number_text(row["rate"], 3),
            f"{times(row['speedup'])} [{row['ci_low']:.2f}, {row['ci_high']:.2f}]",
        ]

    sections = method_sections(decoded, frames, texts)
    return Table(
        "decoding_break_even",
        "When drafting pays: break-even",
        "The least acceptance rate a at which drafting pays: where (1 − aᵞ⁺¹)/(1 − a) is what a "
        "call with a full draft costs over a token of the target alone (call/c_p, as measured). "
        f"{UNDEFINED}: not even if all drafts are accepted. Beside it the measured acceptance rate "
        "and the measured speedup, which should be above 1 where a is above break-even; tests are "
        "taken to succeed independently, and passes over the prompt are left out of break-even. "
        f"{WALL_CLOCK} Brackets: interval over prompts.",
        "Method",
        [("", 2), ("costs", 2), ("a", 2), ("", 1)],
        ["γ", "T", "ρ", "call/c_p", "break-even", "measured", "speedup"],
        [section for section in sections if section.rows],
        together(decoded, frames),
    )


def batches_table(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Table | None:
    """At each batch size: what passes cost, the acceptance that pays, and the best draft length."""
    frames = []
    for one, table in zip(decoded, speeds, strict=True):
        of_trees = one.of_trees.reindex(table.index, fill_value=False)
        chains = table[(table["drafter"] == "model") & ~of_trees]
        if one.passes.empty or chains.empty:
            return None
        first = chains[chains["method"] == chains["method"].iloc[0]]
        longest = first.sort_values("draft_length").iloc[-1]
        frames.append(
            break_even_by_batch(one, float(longest["rate"])).assign(
                method=longest["method"], temperature=longest["temperature"]
            )
        )

    def texts(row: pd.Series) -> list[Cell]:
        pays = row["draft_length"] > 0
        return [
            Cell(text)
            for text in (
                number_text(1e3 * row["seconds"], 1),
                number_text(row["rho"], 3),
                number_text(row["verify_ratio"]),
                number_text(row["break_even"], 3),
                str(row["at_length"]) if row["at_length"] else UNDEFINED,
                number_text(row["rate"], 3),
                str(row["draft_length"]) if pays else UNDEFINED,
                times(row["speedup"]) if pays else UNDEFINED,
            )
        ]

    method, most = frames[0]["method"].iloc[0], int(frames[0]["longest"].max())
    return Table(
        "decoding_batches",
        "Where drafting stops to pay, by batch size",
        "In a batch one pass verifies the drafts of all texts. c(n): the target's pass over n "
        "tokens of each text, behind a prompt of 64, the least of a few; ρ: the drafter's pass "
        "over one token of each, over c(1). Break-even: the least acceptance rate at which any "
        f"draft length below {most} pays, and the one that needs it. Beside it the measured a of "
        f"{method}, and the draft length and speedup that it predicts; {UNDEFINED}: drafting does "
        "not pay. Predicted from passes alone: choosing tokens, roll-back, and texts of a batch "
        f"that wait for each other are not in it. {WALL_CLOCK}",
        "Texts",
        [("passes", 3), ("break-even", 2), ("this drafter", 3)],
        ["c(1), ms", "ρ", f"c({most})/c(1)", "a", "at γ", "a", "best γ", "speedup"],
        [
            Section(one.target, [(str(row["batch"]), texts(row)) for _, row in frame.iterrows()])
            for one, frame in zip(decoded, frames, strict=True)
        ],
        together(decoded, frames),
    )


@styled
def break_even_figure(decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame]) -> Figure | None:
    """Draw the break-even acceptance over the draft length, and what was measured as points."""
    frames = [break_even_by_length(one, table) for one, table in zip(decoded, speeds, strict=True)]
    if any(frame.empty for frame in frames):
        return None
    drawing, axes = grid(1, [one.target for one in decoded])
    for axis, frame in zip(axes[0], frames, strict=True):
        groups = frame.groupby(["method", "temperature"], sort=False)
        for (colour, _), ((method, t), group) in zip(cycle(LINES), groups, strict=False):
            axis.plot(group["draft_length"], group["break_even"], color=colour)
            axis.plot(
                group["draft_length"],
                group["rate"],
                color=colour,
                **{**POINTS, "linestyle": "none"},
                label=f"{method}, T = {t:g}",
            )
        axis.plot([], [], color=GREY, label="break-even")
        axis.set_ylim(0, 1.02)
        percent(axis, "y")
        axis.set_xlabel("draft length γ")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0, 0].set_ylabel("acceptance rate a")
    legend(drawing, axes[0])
    return Figure(
        "decoding_break_even",
        "When drafting pays, drawn",
        "Lines: the least acceptance rate at which drafts of this length pay, from the costs of "
        "calls as measured, on a line between the lengths tried; a line ends where no acceptance "
        "pays. Points: acceptance rates as measured. A point above its line pays.",
        drawing,
        together(decoded, frames),
    )
