"""Table and figure of what a mean KL certifies: uniform bound, budget, realised."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from .figure import Figure
from .notes import few_notes
from .pairs import Pairs
from .style import GREY, LINES, RULED, TEXT, logarithmic, percent, styled
from .table import Cell, Section, Table
from .text import number_text, share_text

KINDS = ("uniform", "budget", "realised")
STYLES = {"uniform": ":", "budget": "-"}
DRAWN = 4  # rules; of more, curves cross too often to be told apart


def budget_table(pairs: Pairs) -> Table:
    """What each rule is sure to accept at the drafter's mean KL, beside what it accepts."""
    frame = pairs.budgets[pairs.budgets["at"] == "drafter"]
    found = frame.set_index(["target", "rule", "kind", "statistic"])["value"].to_dict()
    rules = [rule for rule in pairs.labels("baseline", "criteria") if rule in set(frame["rule"])]
    texts: dict[str, Callable[[float], str]] = {"acceptance": share_text, "tokens": number_text}
    limited = [name for name in frame["statistic"].unique() if name not in texts]
    lengths = {name: str(name).removeprefix("tokens_") for name in limited}
    texts |= dict.fromkeys(limited, number_text)
    rows = [
        (
            pairs.names[rule],
            [
                Cell(text(found[target, rule, kind, name]))
                for target in pairs.targets
                for name, text in texts.items()
                for kind in KINDS
            ],
        )
        for rule in rules
    ]
    means = " / ".join(number_text(mean, 3) for mean in _means(pairs, frame).values())
    return Table.side_by_side(
        "budgets",
        "What a mean KL certifies",
        f"Of {pairs.drafter}, whose mean KL(p‖q) is {means} nats: the share of steps that are "
        "accepted, then the tokens a call with drafts of any length, and of at most γ tokens. "
        "Uniform: sure if the KL is at most this at every step. Budget: sure if its mean is, as "
        "training reports it; the worst drafter spends it where certificates are smallest. "
        "Realised: of this drafter.",
        "Rule",
        pairs.targets,
        [
            *KINDS,
            *(f"tokens, {kind}" for kind in KINDS),
            *(f"γ={length}, {kind}" for length in lengths.values() for kind in KINDS),
        ],
        [Section("", rows)],
        frame[frame["rule"].isin(rules)],
        [*_infinite(pairs, frame), *few_notes(frame["prompts"])],
    )


@styled
def budget_figure(pairs: Pairs, rules: Sequence[str]) -> Figure:
    """Draw uniform bound and budget along the mean KL, and the drafter where it is.

    Args:
        pairs: the targets and what was measured.
        rules: labels of rules, the first `DRAWN` of which are drawn.
    """
    rules = list(rules)[:DRAWN]
    frame = pairs.budgets[pairs.budgets["rule"].isin(rules)]
    targets = pairs.targets
    drawing = Drawing(figsize=(TEXT, 4.4), layout="constrained")
    axes = drawing.subplots(2, len(targets), sharex=True, sharey="row", squeeze=False)
    for row, name in zip(axes, ("acceptance", "tokens"), strict=True):
        for axis, target in zip(row, targets, strict=True):
            part = frame[(frame["target"] == target) & (frame["statistic"] == name)]
            for (color, _), rule in zip(LINES, rules, strict=False):
                own = part[part["rule"] == rule]
                curves = own[own["at"] == "curve"]
                for kind, style in STYLES.items():
                    curve = curves[curves["kind"] == kind]
                    axis.plot(curve["eps"], curve["value"], color=color, linestyle=style)
                point = own[(own["at"] == "drafter") & (own["kind"] == "realised")]
                if np.isfinite(point["eps"]).all():
                    ends = np.stack(
                        [point["value"] - point["ci_low"], point["ci_high"] - point["value"]]
                    )
                    axis.errorbar(
                        point["eps"],
                        point["value"],
                        np.nan_to_num(ends.clip(min=0)),
                        fmt="o",
                        color=color,
                        markersize=4,
                        elinewidth=0.7,
                    )
            logarithmic(axis, "x")
            axis.grid(**RULED)
    for axis in axes[0]:
        percent(axis, "y")
    for row in axes:
        for axis, target in zip(row, targets, strict=True):
            axis.set_title(target)
    axes[0, 0].set_ylabel("accepted steps")
    axes[1, 0].set_ylabel("tokens a call (log scale)")
    logarithmic(axes[1, 0], "y")
    for axis in axes[1]:
        axis.set_xlabel("KL(p‖q), nats (log scale)")
    kinds = [
        Line2D([], [], color=GREY, linestyle=":", label="sure: KL at most this at every step"),
        Line2D([], [], color=GREY, linestyle="-", label="sure: its mean at most this"),
        Line2D([], [], color=GREY, marker="o", linestyle="none", label="realised"),
    ]
    colors = [
        Line2D([], [], color=color, label=pairs.names[rule])
        for (color, _), rule in zip(LINES, rules, strict=False)
    ]
    drawing.legend(handles=[*kinds, *colors], loc="outside lower center", ncols=3)
    return Figure(
        "budgets",
        "What a mean KL certifies, drawn",
        "Steps that are sure to be accepted, and tokens a call with drafts of any length, of every "
        "drafter whose KL is at most the given value at every step (dotted), or in the mean "
        f"(solid); and what {pairs.drafter} does (points, at its mean KL, with intervals over "
        "prompts). At the mean of the certificates a budget has nothing left.",
        drawing,
        frame,
    )


def _means(pairs: Pairs, frame: pd.DataFrame) -> dict[str, float]:
    by_target = frame.groupby("target", sort=False)["eps"].first()
    return {target: float(by_target[target]) for target in pairs.targets}


def _infinite(pairs: Pairs, frame: pd.DataFrame) -> list[str]:
    """Say what an infinite mean KL leaves."""
    endless = [name for name, mean in _means(pairs, frame).items() if math.isinf(mean)]
    if not endless:
        return []
    return [
        f"The mean KL is infinite ({', '.join(endless)}): the target gives probability to tokens "
        "that the drafter can't draft. Sure are only steps at which nothing can be rejected."
    ]
