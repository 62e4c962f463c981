"""A drafter's acceptance: accepted and certified steps, rule by rule.

It reads the frames `acceptance` (target, rule, statistic, value, ...) and `breakdown` (the same by
depth) of stage acceptance, and `parts`: steps by the target's margin, and by the position in its
answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ..acceptance.drafter import RACES, RACES_LOWER, SPECULATIVE
from ..rules import Additive, Mars, Multiplicative, Rule, StrictGreedy, TopMAdditive, Tree, Typical
from ..statistics.bootstrap import Flags
from ..statistics.run_lengths import with_censored
from . import style
from .published import TABLE2
from .results import Results, Target
from .table import Figure, Table, cells_to_grid
from .text import decimals, number_text, percent_text, run_text

COLUMNS = {  # statistic: heading
    "acceptance": "accepted",
    "certified": "certified",
    "coverage": "coverage",
    "probability_given_up": "p given up",
    "measured_per_call": "tokens per call",
}
CERTIFIED = ("certified", "coverage")
SAMPLED = {  # schemes that sample the draft
    SPECULATIVE: "Speculative sampling, 1 − TV(p, q)",
    RACES: "Exponential races, first draft",
    RACES_LOWER: "Exponential races, harmonic mean (Lemma C.1)",
}
BY_DEPTH = {
    "kl_median": "KL(p‖q), median, nats",
    "finite": "finite KL",
    "acceptance": "accepted",
    "certified": "certified",
}
SELECTED: tuple[Rule, ...] = (  # for tables with several rows a rule
    StrictGreedy(),
    Additive(0.1),
    Multiplicative(0.5),
    TopMAdditive(4, 0.1),
    Typical(0.1, 0.09),
    Mars(0.9),
    Tree(4),
)
ROW, APART = 0.3, 0.16  # inches for a rule, and between its two points
MOST = 10  # rows of a panel
EDGES = (0.5, 1.0, 2.0, 4.0)  # nats, of log p0 - log p1
BY = {"margin": "log p₀ − log p₁, nats", "position": "half of the answer"}
IN_PARTS = {  # of statistics, in the order of the table's rows
    "share": "of all steps",
    "acceptance": "accepted",
    "certified": "certified",
    "median": "median R, nats",
}


def selected(rules: Sequence[Rule]) -> list[Rule]:
    """Return the user's own rules and those of `SELECTED`, of a study's; without any, the first."""
    some = [rule for rule in rules if rule.is_custom] + [rule for rule in SELECTED if rule in rules]
    return (some or list(rules))[: len(SELECTED)]


def judged_rules(results: Results) -> list[Rule]:
    """Return the rules that drafts were judged by, strict greedy first."""
    labels = results["acceptance"]["rule"].unique()
    return [results.rules[label] for label in labels if label in results.rules]


def acceptance_table(results: Results) -> Table:
    """Return accepted and certified shares by rule; of sampled text also the schemes that sample.

    What is certified is left out where the drafter's KL is infinite at every step.
    """
    rules = judged_rules(results)
    order = [*(rule.label for rule in rules), *SAMPLED]
    data = with_censored(results.select("acceptance", rule=order))
    finite = results.select("breakdown", depth=0, rule="", statistic="finite")["value"]
    columns = [name for name in COLUMNS if finite.any() or name not in CERTIFIED]
    of_trees = [rule.label for rule in rules if not rule.judges_tokens]
    kept = (data["statistic"] != "probability_given_up") | ~data["rule"].isin(of_trees)
    shown = data[kept & data["statistic"].isin(columns)]
    shown = shown.sort_values("rule", key=lambda of: of.map(order.index), kind="stable")
    cells = [
        run_text(value, censored) if "per_call" in statistic else percent_text(value)
        for value, censored, statistic in zip(
            shown["value"], shown["censored"], shown["statistic"], strict=True
        )
    ]
    table = cells_to_grid(shown, "rule", ["target", "statistic"], cells)
    table = table.reindex(columns=pd.MultiIndex.from_product([results.targets, columns]))
    infinite = (
        f"KL is finite at {' and '.join(map(percent_text, finite))} of the steps; the others are "
        "certified only where nothing can be rejected. "
    )
    return Table(
        "acceptance",
        "Accepted and certified steps",
        f"Steps of {results.drafter} that each rule accepts along the target's own text, and that "
        "its certificate guarantees: KL(p‖q) < R. Coverage: certified among accepted. "
        + infinite * bool((finite < 1).any())
        + "p given up: target probability lost a step. Tokens per call: drafts of any length.",
        data,
        table.rename(index={**results.names, **SAMPLED})
        .rename(columns=COLUMNS, level=1)
        .rename_axis(index="Rule"),
    )


def depth_table(results: Results) -> Table | None:
    """Return KL, acceptance and certified shares by depth; None if the drafter is not a head.

    A depth at which KL is infinite everywhere has no certified share.
    """
    rules = [rule.label for rule in selected(judged_rules(results))]
    data = results.select("breakdown", rule=["", *rules])
    data = data[data["depth"] > 0] if len(data) else data
    if data.empty:
        return None
    finite = data[data["statistic"] == "finite"].set_index(["target", "depth"])["value"]
    of = data.join(finite.rename("finite"), on=["target", "depth"])["finite"]
    statistic, value = data["statistic"], data["value"]
    kept = (statistic != "certified") | (of > 0) | (value > 0)
    kept &= (statistic != "kl_median") | np.isfinite(value)
    kept &= (statistic != "finite") | bool((finite < 1).any())
    order = list(BY_DEPTH).index
    shown = data[kept].sort_values("statistic", key=lambda of: of.map(order), kind="stable")
    shown = shown.assign(depth=[f"depth {depth}" for depth in shown["depth"]])
    cells = [
        number_text(value, 3) if statistic == "kl_median" else percent_text(value)
        for statistic, value in zip(shown["statistic"], shown["value"], strict=True)
    ]
    table = cells_to_grid(shown, ["statistic", "rule"], ["target", "depth"], cells)
    depths = [f"depth {depth}" for depth in sorted(data["depth"].unique())]
    table = table.reindex(columns=pd.MultiIndex.from_product([results.targets, depths]))
    first = ["target", "depth", "rule"]
    return Table(
        "depths",
        "By depth of the draft",
        f"What {results.drafter} drafts after none, one, two, ... drafted tokens, along the "
        "target's own text: it reads the target's hidden states where they are known, and its own "
        "output after that. All other tables show depth 1.",
        data[[*first, *(name for name in data if name not in first)]],
        table.rename(index=BY_DEPTH, level=0)
        .rename(index={**results.names, "": "the drafter"}, level=1)
        .rename_axis(index=["", "Rule"]),
    )


def rules_figure(results: Results) -> Figure:
    """Draw the certified and accepted shares of each rule with their intervals."""
    every = judged_rules(results)
    rules = [rule for rule in every if rule in (*TABLE2, Mars(0.9)) or rule.is_custom]
    rules = (rules if len(rules) > 1 else every)[:MOST]

    @style.styled
    def draw() -> Drawing:
        size = (style.TEXT, 1.0 + ROW * len(rules))
        drawing = Drawing(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1))
        axes = drawing.subplots(1, len(results.targets), sharex=True, sharey=True, squeeze=False)
        heights, labels = np.arange(len(rules)), [rule.label for rule in rules]
        for axis, target in zip(axes[0], results.targets, strict=True):
            for side, kind, marker in ((-0.5, "certified", "D"), (0.5, "acceptance", "o")):
                rows = results.select("acceptance", target=target, statistic=kind)
                rows = rows.set_index("rule").loc[labels]
                axis.errorbar(
                    rows["value"],
                    heights + APART * side,
                    xerr=style.error_bars(rows["value"], rows["ci_low"], rows["ci_high"]),
                    fmt=marker,
                    color=style.LINES[side > 0][0],
                    markersize=3,
                    elinewidth=0.7,
                    label=COLUMNS[kind],
                )
            axis.set_title(target)
            axis.grid(axis="x", **style.RULED)
            axis.set_axisbelow(True)
            axis.set_xlabel("share of steps")
            style.percent(axis, "x")
        axes[0, 0].set_yticks(heights, [rule.title for rule in rules], fontsize=6.5)
        axes[0, 0].set_ylim(len(rules) - 0.4, -0.6)
        axes[0, 0].set_xlim(-0.02, 1.02)
        style.legend(drawing, axes[0, :1])
        return drawing

    return Figure(
        "acceptance_rules",
        "Certified and accepted, rule by rule",
        "Share of steps that each rule accepts, and share that its certificate guarantees. The gap "
        "is acceptance that no certificate guarantees: a certificate covers every drafter at this "
        "KL, not only this one. Bars: intervals over prompts.",
        draw,
    )


def margin_figure(by_target: Mapping[str, pd.DataFrame], rule: str) -> Figure:
    """Draw the accepted share of steps by R - KL, of `analysis.acceptance.drafter.margins`."""

    @style.styled
    def draw() -> Drawing:
        drawing = Drawing((style.COLUMN, 0.8 + 1.2 * len(by_target)), layout="constrained")
        axes = drawing.subplots(len(by_target), sharex=True, squeeze=False)[:, 0]
        for axis, (name, frame) in zip(axes, by_target.items(), strict=True):
            shares = (frame["accepted"] / frame["steps"]).fillna(0.0)
            colours = [style.BLUE if low >= 0 else style.VERMILION for low in frame["low"]]
            bars = axis.bar(range(len(frame)), shares, color=colours)
            counts = [f"{steps:.0f}" if steps else "" for steps in frame["steps"]]
            axis.bar_label(bars, counts, fontsize=5)
            axis.axvline(
                (frame["low"] < 0).sum() - 0.5, color=style.BLACK, linewidth=0.8, linestyle=":"
            )
            names = [margin_text(*ends) for ends in frame[["low", "high"]].to_numpy()]
            axis.set_xticks(range(len(frame)), names, rotation=45, ha="right", fontsize=6)
            axis.set(title=name, ylabel="accepted", ylim=(0, 1.08))
            style.percent(axis, "y")
        axes[-1].set_xlabel("R − KL, nats")
        return drawing

    return Figure(
        "margins",
        "Acceptance over R − KL",
        "Share of steps whose draft is accepted, by the certificate R minus the drafter's KL(p‖q). "
        f"Rule: {rule}. Right of zero the step is certified (blue), and every draft is accepted; "
        "left of it (orange) nothing is guaranteed. Numbers: steps.",
        draw,
    )


def margin_text(low: float, high: float) -> str:
    """Return the name of a bin of margins.

    >>> margin_text(-0.1, 0.0), margin_text(0.5, float("inf")), margin_text(-float("inf"), -2.0)
    ('−0.1 to 0', 'above 0.5', 'below −2')
    """
    names = [f"{end:g}".replace("-", "−") for end in (low, high)]
    if not np.isfinite(low):
        return f"below {names[1]}"
    return " to ".join(names) if np.isfinite(high) else f"above {names[0]}"


def parts(target: Target) -> Iterator[tuple[str, str, Flags]]:
    """Yield the parts of a target's N steps: by, name, and the (N,) steps that belong to it."""
    bin_of, edges = np.digitize(target.margin, EDGES), [f"{edge:g}" for edge in (0, *EDGES)]
    names = [f"{low} to {high}" for low, high in pairwise(edges)]
    for at, name in enumerate([*names, f"above {edges[-1]}"]):
        yield "margin", name, bin_of == at
    of_answer, steps = target.trajectories, target.bootstrap.steps
    position = np.arange(len(target.margin)) - of_answer.starts[of_answer.prompts]
    late = 2 * position >= steps[of_answer.prompts]
    yield "position", "first", ~late
    yield "position", "second", late


def part_statistics(target: Target) -> pd.DataFrame:
    """Return a row for each part of a target's steps, rule and statistic.

    Returns:
        target, by, part, rule, statistic, value, ci_low, ci_high, steps, prompts. Of each part the
        share of all steps that it has, with an empty rule. Of each rule, with a drafter the shares
        of the part's steps that are accepted and certified; without one the median certificate,
        without an interval.
    """
    rows: list[dict[str, Any]] = []
    rules = selected(list(target.certificates))
    for by, name, flags in parts(target):
        found: list[tuple[str, str, Any]] = [("", "share", target.bootstrap.ratio_interval(flags))]
        for rule in rules if flags.any() else ():
            if target.judged:
                judged = target.judged[rule.label]
                shares = {"acceptance": judged.accepted, "certified": judged.certified}
                found += [
                    (rule.label, statistic, target.bootstrap.ratio_interval(kept & flags, flags))
                    for statistic, kept in shares.items()
                ]
            else:
                values = np.minimum(target.certificates[rule][0][flags], rule.ceiling)
                median = np.quantile(values, 0.5, method="inverted_cdf")
                found.append((rule.label, "median", (median, np.nan, np.nan)))
        for label, statistic, ends in found:
            keys = {"by": by, "part": name, "rule": label, "statistic": statistic}
            ends_named = zip(("value", "ci_low", "ci_high"), map(float, ends), strict=True)
            rows.append({"target": target.label, **keys, **dict(ends_named), "steps": flags.sum()})
    return pd.DataFrame(rows).assign(prompts=target.bootstrap.count)


def parts_table(results: Results) -> Table:
    """Return the shares of `part_statistics`; without a drafter the median certificates."""
    data = results["parts"]
    order = list(IN_PARTS).index
    shown = data.sort_values("statistic", key=lambda of: of.map(order), kind="stable")
    digits = decimals(shown.loc[shown["statistic"] == "median", "value"])
    cells = [
        number_text(value, digits) if statistic == "median" else percent_text(value)
        for statistic, value in zip(shown["statistic"], shown["value"], strict=True)
    ]
    table = cells_to_grid(shown, ["statistic", "rule"], ["target", "by", "part"], cells)
    drafted = f"accepted for {results.drafter} and certified at its KL(p‖q)"
    what = drafted if results.drafter else "median certificate R, the ceiling where nothing fails"
    return Table(
        "parts",
        "By margin and by position in the answer",
        f"Steps by the target's margin log p₀ − log p₁, and in the first and second half of its "
        f"answers: {what}. Strict greedy rejects and certifies least at low margins; a relaxed "
        "rule helps where its row exceeds that of strict greedy.",
        data,
        table.rename(index=IN_PARTS, level=0)
        .rename(index={**results.names, "": ""}, level=1)
        .rename(columns=BY, level="by")
        .rename_axis(index=["", "Rule"]),
    )
