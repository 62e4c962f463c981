"""Tables of the draft trees that were decoded: prediction, bound, equal budgets, crossover."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ..decoding.metrics import Decoded, by_prompt
from ..rules import Tree
from ..statistics.bootstrap import PromptBootstrap
from ..trees.bounds import least_residual_upper
from .decoding_tables import method_sections, together
from .decoding_tree_runs import ERSS, GSS, SHAPES, rates, tree_runs, whole_calls
from .table import Cell, Section, Table
from .text import UNDEFINED, number_text, share_text

Statistics = tuple[int, float, int]


def trees_table(decoded: Sequence[Decoded], statistics: Statistics) -> Table | None:
    """Tokens a call of every tree, measured and predicted; None where no method drafted trees."""
    frames = [_trees(one, statistics) for one in decoded]
    data = together(decoded, frames)
    if data.empty:
        return None

    def texts(row: pd.Series) -> list[str]:
        return [
            f"{row['temperature']:g}",
            str(row["nodes"]),
            str(row["levels"]),
            _with_interval(row),
            number_text(row["predicted"]),
            number_text(row["bound"]),
            share_text(row["first_level"]),
            UNDEFINED if math.isnan(row["later_levels"]) else share_text(row["later_levels"]),
            row["acceptance"],
        ]

    return Table(
        "decoding_trees",
        "Trees",
        "Draft trees: nodes and levels of the whole tree; τ, tokens emitted by a target call, of "
        "the calls that drafted the whole tree (near the limit of an answer levels are cut), with "
        "its interval over prompts; predicted from R, if every level accepted child i with "
        "probability R(i) whatever came before; the bound of Lemma 4.3 (ends counted as in (29)) "
        "on this prediction, for any tree of so many nodes. Levels: share of those tested that "
        "accepted a child, of first levels and of later ones. R(i): share of levels that accepted "
        "their i-th child, estimated from all runs of one law and temperature with a fixed shape.",
        "Method",
        [("", 3), ("τ", 3), ("levels", 2), ("", 1)],
        ["T", "nodes", "levels", "measured", "predicted", "bound", "first", "later", "R"],
        [section for section in method_sections(decoded, frames, texts) if section.rows],
        data,
        [
            "Why prediction and measurement differ: the prediction takes first and later levels to "
            "accept alike. Later levels are reached in stretches on which both models agree; where "
            "they accept more than first ones, τ is above the prediction, and can exceed the "
            "bound. An answer that ends inside a draft emits less.",
            "R is ready for `acceptance` of `tree: optimal`, which takes that of stage drafts "
            "where none is given.",
        ],
    )


def _trees(one: Decoded, statistics: Statistics) -> pd.DataFrame:
    """Return a row for each run that drafted trees."""
    table = tree_runs(one, *statistics)
    found = {group: rates(one, table, group) for group in table["group"].unique()}
    table["bound"] = [
        math.nan
        if shape == SHAPES["dynamic"]
        else least_residual_upper(found[group], int(nodes), tight=True)[1]
        for group, nodes, shape in table[["group", "nodes", "shape"]].to_numpy()
    ]
    table["acceptance"] = [
        " ".join(f"{rate:.3g}" for rate in found[group]) for group in table["group"]
    ]
    return table[table["run"].map(one.of_trees).astype(bool)]


def budgets_table(
    decoded: Sequence[Decoded], speeds: Sequence[pd.DataFrame], statistics: Statistics
) -> Table | None:
    """Shapes of equally many drafted tokens side by side; None where there are none.

    `speeds` holds `analysis.decoding.speed.speed` of each target.
    """
    frames = []
    for one, speed in zip(decoded, speeds, strict=True):
        table = tree_runs(one, *statistics)
        shapes = table.groupby(["group", "nodes"])["shape"].transform("nunique")
        clock = ["per_token", "speedup", "ci_low", "ci_high"]
        timed = speed[clock].add_prefix("clock_")
        kept = table[shapes > 1].join(timed, on="run")
        frames.append(kept.sort_values(["group", "nodes"], kind="stable"))
    data = together(decoded, frames)
    if data.empty:
        return None
    sections = []
    for one, frame in zip(decoded, frames, strict=True):
        for (group, nodes), mine in frame.groupby(["group", "nodes"], sort=False):
            rows = [
                (
                    row["shape"],
                    [
                        Cell(str(row["levels"])),
                        Cell(_with_interval(row)),
                        Cell(number_text(1000 * row["clock_per_token"])),
                        Cell(
                            f"{row['clock_speedup']:.2f}× "
                            f"[{row['clock_ci_low']:.2f}, {row['clock_ci_high']:.2f}]"
                        ),
                    ],
                )
                for _, row in mine.iterrows()
            ]
            sections.append(Section(f"{one.target}: {group}, {nodes} drafted tokens", rows))
    return Table(
        "decoding_budgets",
        "Trees at equal budgets",
        "Shapes that draft equally many tokens a call: τ, tokens emitted by a target call that "
        "drafted all of them, and the wall-clock time of a token over whole answers, with the "
        "speedup over the target alone. A deep shape costs a pass of the drafter for each level. "
        "Brackets: intervals over prompts.",
        "Shape",
        [("", 2), ("wall clock", 2)],
        ["levels", "τ", "ms a token", "speedup"],
        sections,
        data,
    )


def crossover_table(decoded: Sequence[Decoded], statistics: Statistics) -> Table | None:
    """GSS against ERSS on alternatives of one token; None where both were not decoded."""
    frames = [_crossover(one, statistics) for one in decoded]
    data = together(decoded, frames)
    if data.empty:
        return None

    def texts(row: pd.Series) -> list[str]:
        interval = f"[{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
        return [
            *(number_text(row[law], 3) for law in (GSS, ERSS)),
            f"{row['difference']:.3f} {interval}",
        ]

    sections = [
        Section(
            one.target,
            [(f"T = {row['temperature']:g}, k = {int(row['nodes'])}", [*map(Cell, texts(row))])
             for _, row in frame.iterrows()],
        )
        for one, frame in zip(decoded, frames, strict=True)
        if len(frame)
    ]  # fmt: skip
    return Table(
        "decoding_crossover",
        "Speculative sampling and exponential races",
        "Tokens emitted by a target call that drafted k alternatives of one token, by speculative "
        "sampling without replacement (GSS) and by exponential races (ERSS), and their "
        "difference, with its interval over prompts. Published (arXiv 2504.15475): GSS is ahead "
        "at k = 1, ERSS at k of 3 or more.",
        "",
        [("", 3)],
        [GSS, ERSS, "ERSS less GSS"],
        sections,
        data,
        [f"{one.target}: {said}" for one, frame in zip(decoded, frames, strict=True)
         for said in crossover_said(frame)],
    )  # fmt: skip


def crossover_said(frame: pd.DataFrame) -> list[str]:
    """Say for each temperature whether the published crossover was seen."""
    said = []
    for temperature, mine in frame.groupby("temperature"):
        one, many = mine[mine["nodes"] == 1], mine[mine["nodes"] >= 3]
        if one.empty or many.empty:
            continue
        first = bool((one["ci_high"] < 0).all())
        later = bool((many["ci_low"] > 0).all())
        parts = [
            "GSS is ahead at k = 1" if first else "no difference is certain at k = 1"
            if (one["ci_low"] <= 0).all() else "ERSS is ahead at k = 1",
            "ERSS is ahead at every k of 3 or more" if later
            else "ERSS is not surely ahead at every k of 3 or more",
        ]  # fmt: skip
        verdict = "reproduced" if first and later else "not reproduced"
        said.append(
            f"the published crossover is {verdict} at T = {temperature:g}: {'; '.join(parts)}."
        )
    return said


def _crossover(one: Decoded, statistics: Statistics) -> pd.DataFrame:
    """Return temperature, nodes, τ of both laws, their difference and its interval."""
    columns = ["temperature", "nodes", GSS, ERSS, "difference", "ci_low", "ci_high"]
    table = tree_runs(one, *statistics)
    flat = table[(table["levels"] == 1) & table["law"].isin([GSS, ERSS])]
    whole = whole_calls(one, table)
    prompts = sorted(one.data["prompt_id"].unique())
    sums = whole.groupby(["prompt_id", "run"], as_index=False)[["emitted", "calls"]].sum()
    bootstrap = PromptBootstrap(np.arange(len(prompts)), *statistics)
    rows = []
    for (temperature, nodes), mine in flat.groupby(["temperature", "nodes"]):
        by_law = mine.drop_duplicates("law").set_index("law")
        if len(by_law) < 2:
            continue
        runs = by_law.loc[[GSS, ERSS], "run"].to_numpy()
        emitted, calls = (
            np.nan_to_num(by_prompt(sums, name, prompts, len(one.runs))[:, runs])
            for name in ("emitted", "calls")
        )
        draws = bootstrap.sums(emitted) / bootstrap.sums(calls)
        low, high = bootstrap.interval(draws[:, 1] - draws[:, 0])
        gss, erss = emitted.sum(0) / calls.sum(0)
        rows.append((temperature, nodes, gss, erss, erss - gss, float(low), float(high)))
    return pd.DataFrame(rows, columns=columns)


def tree_certificates_table(
    decoded: Sequence[Decoded], statistics: Sequence[Mapping[str, Mapping[str, float]]]
) -> Table | None:
    """What of tree-greedy's acceptance is certified; None where no rule of trees was decoded.

    Args:
        decoded: with runs of the rule.
        statistics: of each target, by rule and name, what stage acceptance found.
    """
    frames = []
    for one, known in zip(decoded, statistics, strict=True):
        rows = []
        for run in one.runs.index[one.of_trees]:
            label = one.runs["rule"][run]
            if not isinstance(one.rules.get(label), Tree) or label not in known:
                continue
            calls = one.calls[one.calls["run"] == run]
            rows.append(
                {
                    "method": one.runs["method"][run],
                    "draft_length": one.runs["draft_length"][run],
                    "certified": known[label]["certified"],
                    "accepted": known[label]["acceptance"],
                    "decoded": calls["accepted"].sum() / max(1, calls["tested"].sum()),
                }
            )
        names = ["method", "draft_length", "certified", "accepted", "decoded"]
        frames.append(pd.DataFrame(rows, columns=names))
    data = together(decoded, frames)
    if data.empty:
        return None

    def texts(row: pd.Series) -> list[str]:
        shares = (share_text(row[name]) for name in ("certified", "accepted", "decoded"))
        return [str(row["draft_length"]), *shares]

    return Table(
        "decoding_tree_certificates",
        "Certificates of trees, and what trees accept",
        "The rule Tree(m): share of the steps of the fixed text at which acceptance is certified, "
        "whatever a drafter as close as this one drafts; share at which a tree of this drafter "
        "accepts; and share of tested levels at which decoding with trees accepted. Decoding tests "
        "no bonus positions, so the last differs from the second.",
        "Method",
        [("", 1), ("fixed text", 2), ("", 1)],
        ["levels", "certified", "accepted", "decoded"],
        [section for section in method_sections(decoded, frames, texts) if section.rows],
        data,
    )


def _with_interval(row: pd.Series) -> str:
    if math.isnan(row["tokens_per_call"]):
        return UNDEFINED
    return f"{row['tokens_per_call']:.2f} [{row['ci_low']:.2f}, {row['ci_high']:.2f}]"
