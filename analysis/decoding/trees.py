"""Draft trees that were decoded: law, shape and size of each run, predicted and measured tokens."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from ..rules import StrictGreedy, Tree
from ..trees.acceptance import measured_rates
from ..trees.topology import Floats, Topology, sequence, tree_tokens_per_call
from .metrics import Decoded, ratio_intervals

GREEDY, GSS, ERSS = "Tree-greedy", "GSS", "ERSS"
LAWS = {"speculative": GSS, "races": ERSS}
SHAPES = {  # name in the configuration: as printed
    "sequence": "sequence",
    "batch": "batch",
    "symmetric": "symmetric",
    "spec_infer": "SpecInfer's tree",
    "optimal": "tau*",
    "dynamic": "dynamic",
}
RUN_COLUMNS = [
    *("run", "method", "law", "temperature", "group", "shape", "nodes", "levels", "calls"),
    *("tokens_per_call", "ci_low", "ci_high", "predicted", "first_level", "later_levels"),
]


def tree_runs(one: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return a row for each run that drafts with the model, chain or tree, and loses nothing.

    Returns:
        `RUN_COLUMNS`. `group` is the law at its temperature; R is estimated from all runs of a
        group with a fixed shape (`rates`), and `predicted` are the zero-order tokens a call at this
        R, NaN of dynamic trees. `tokens_per_call`, with its interval over prompts, counts `calls`
        that drafted the whole tree. `first_level` and `later_levels` are the shares of tested
        levels that accepted a child, at the first level and behind it: they are equal where
        acceptance is independent of what came before.
    """
    runs = [_described(one, int(run)) for run in one.runs.index[_lossless_drafts(one)]]
    table = pd.DataFrame(runs, columns=RUN_COLUMNS)
    if table.empty:
        return table
    by_group = {group: rates(one, table, str(group)) for group in table["group"].unique()}
    table["predicted"] = [
        _predicted(shape_of(one, run), by_group[group])
        for run, group in zip(table["run"], table["group"], strict=True)
    ]
    nodes = one.calls["run"].map(table.set_index("run")["nodes"])
    whole = one.calls[one.calls["drafted"] == nodes].assign(calls=1)
    emitted, calls = (sums[:, table["run"]] for sums in one.by_prompt(whole, "emitted", "calls"))
    table["calls"] = calls.sum(0).astype(int)
    found = ratio_intervals(emitted, calls, one.bootstrap(resamples, confidence, seed))
    table["tokens_per_call"], table["ci_low"], table["ci_high"] = found
    return table


def rates(one: Decoded, table: pd.DataFrame, group: str) -> Floats:
    """Return R over sibling indices of a group, from its runs with a fixed shape."""
    mine = table[(table["group"] == group) & (table["shape"] != SHAPES["dynamic"])]["run"]
    levels = judged_levels(one)
    levels = levels[levels["run"].isin(mine)]
    return measured_rates(levels["accepted"].to_numpy(), levels["children"].to_numpy())


def judged_levels(one: Decoded) -> pd.DataFrame:
    """Return run, level, children and accepted of all levels tested; of a chain one child each."""
    chains = one.calls[~one.calls["run"].map(one.of_trees)].reset_index(drop=True)
    tested = chains.loc[chains.index.repeat(chains["tested"]), ["run", "accepted"]]
    level = tested.groupby(level=0).cumcount() + 1
    tested = tested.assign(level=level, children=1, accepted=level <= tested["accepted"])
    of_trees = one.levels[["run", "level", "children", "accepted"]]
    return pd.concat([of_trees, tested], ignore_index=True).astype(int)


def shape_of(one: Decoded, run: int) -> Topology | None:
    """Return the shape of a run's drafts; None of one that each call chooses."""
    tree = one.runs["tree"][run]
    if not one.of_trees[run]:
        return sequence(int(one.runs["draft_length"][run]))
    return Topology(tuple(map(int, tree["parents"]))) if "parents" in tree else None


def _lossless_drafts(one: Decoded) -> list[bool]:
    rules = [one.rules.get(label) for label in one.runs["rule"]]
    return [
        drafter == "model"
        and (sampling in LAWS if rule is None else isinstance(rule, StrictGreedy | Tree))
        for rule, drafter, sampling in zip(
            rules, one.runs["drafter"], one.runs["sampling"], strict=True
        )
    ]


def _described(one: Decoded, run: int) -> dict[str, Any]:
    row: dict[Any, Any] = one.runs.loc[run].to_dict()
    of_tree = bool(one.of_trees[run])
    law = LAWS.get(row["sampling"], GREEDY)
    cut = "" if (row["top_p"], row["top_k"]) == (1, 0) else f", top-p {row['top_p']:g}"
    cut += f", top-k {row['top_k']:g}" if row["top_k"] else ""
    group = f"{law}, T = {row['temperature']:g}{cut}" if row["temperature"] else law
    levels = judged_levels(one)
    levels = levels[levels["run"] == run]
    taken = levels["accepted"] > 0
    first = levels["level"] == 1
    return {
        "run": run,
        "method": row["method"],
        "temperature": row["temperature"],
        "law": law,
        "group": group,
        "shape": SHAPES[row["tree"]["name"] if of_tree else "sequence"],
        "nodes": int(row["tree"]["nodes"] if of_tree else row["draft_length"]),
        "levels": int(row["tree"]["depth"] if of_tree else row["draft_length"]),
        "first_level": float(taken[first].mean()),
        "later_levels": float(taken[~first].mean()),
    }


def _predicted(tree: Topology | None, found: Floats) -> float:
    """Return the zero-order tokens a call; NaN where an index of the tree was never tested."""
    if tree is None or max(tree.siblings, default=0) > len(found):
        return math.nan
    return tree_tokens_per_call(tree, found)
