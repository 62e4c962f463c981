"""Draft trees that were decoded: law, shape and size of each run, predicted and measured tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from ..rules import StrictGreedy, Tree
from ..statistics.bootstrap import PromptBootstrap
from ..trees.acceptance import index_entropy, measured_rates, tunstall_upper
from ..trees.entropy import races_entropy_upper
from ..trees.topology import Floats, Topology, sequence, tree_tokens_per_call
from .metrics import Decoded, ratio_intervals

GREEDY, GSS, ERSS = "Tree-greedy", "GSS", "ERSS"
LAWS = {"speculative": GSS, "races": ERSS}
ENTROPY = {GSS: "greedy_entropy", ERSS: "races_entropy"}  # columns of contexts
SHAPES = {  # name in the configuration: as printed
    "sequence": "sequence",
    "batch": "batch",
    "symmetric": "symmetric",
    "spec_infer": "SpecInfer's tree",
    "optimal": "tau*",
    "dynamic": "dynamic",
}
ROUNDING = 1e-9  # nats
RUN_COLUMNS = [
    *("run", "method", "law", "temperature", "group", "shape", "nodes", "levels", "calls"),
    *("tokens_per_call", "ci_low", "ci_high", "predicted", "first_level", "later_levels"),
    "setting",
]


def tree_runs(one: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return a row for each run that drafts with the model, chain or tree, and loses nothing.

    Returns:
        `RUN_COLUMNS`. `setting` is the temperature and cut, `group` the law at it; R is estimated
        from all runs of a group with a fixed shape (`rates`), and `predicted` are the zero-order
        tokens a call at this R, NaN of dynamic trees. `tokens_per_call`, with its interval over
        prompts, counts `calls` that drafted the whole tree. `first_level` and `later_levels` are
        the shares of tested levels that accepted a child, at the first level and behind it: they
        are equal where acceptance is independent of what came before.
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


def alternatives(one: Decoded, table: pd.DataFrame, *resampling: Any) -> pd.DataFrame:
    """Return tokens a call of GSS and ERSS over the alternatives of one token, paired by prompt.

    R(i) does not depend on how many alternatives follow, so batches of all sizes give one estimate
    (`measured_rates`), and a batch of k emits 1 + R(1) + ... + R(k).

    Args:
        one: calls and levels.
        table: its `tree_runs`.
        resampling: resamples, confidence and seed of the bootstrap over prompts.

    Returns:
        setting, alternatives (k), gss, erss, difference (ERSS - GSS) with ci_low and ci_high, and
        `overtakes`, `overtakes_low` and `overtakes_high`: the least k at which ERSS emits more, inf
        where at none tried; the same in every row of a setting. Empty without batches of both.
    """
    bootstrap = one.bootstrap(*resampling)
    batches = table[table["shape"] == SHAPES["batch"]]
    frames = [pd.DataFrame()]
    for setting, runs in batches.groupby("setting", sort=False):
        emitted = {law: _emitted(one, mine["run"], bootstrap) for law, mine in runs.groupby("law")}
        if set(emitted) != {GSS, ERSS}:
            continue
        most = min(values.shape[1] for values in emitted.values())
        gss, erss = emitted[GSS][:, :most], emitted[ERSS][:, :most]
        ahead = erss > gss
        first = np.where(ahead.any(axis=1), 1.0 + ahead.argmax(axis=1), np.inf)
        low, high = bootstrap.interval((erss - gss)[1:])
        ends = bootstrap.interval(first[1:, None])
        frames.append(pd.DataFrame({
            "setting": setting, "alternatives": np.arange(1, most + 1), "gss": gss[0],
            "erss": erss[0], "difference": (erss - gss)[0], "ci_low": low, "ci_high": high,
            "overtakes": first[0], "overtakes_low": ends[0][0], "overtakes_high": ends[1][0],
        }))  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def _emitted(one: Decoded, runs: pd.Series, bootstrap: PromptBootstrap) -> Floats:
    """Return (1 + B, K) tokens a call of batches of 1, ..., K, of all prompts and of resamples."""
    levels = one.levels[one.levels["run"].isin(runs)]
    index, of = np.arange(1, int(levels["children"].max()) + 1), np.unique(one.data["prompt_id"])
    taken = levels["accepted"].to_numpy()[:, None]
    reached = (levels["children"].to_numpy()[:, None] >= index) & ((taken == 0) | (taken >= index))
    prompts = np.searchsorted(of, levels["prompt_id"])
    sums = np.zeros((2, len(of), len(index)))
    np.add.at(sums[0], prompts, taken == index)
    np.add.at(sums[1], prompts, reached)
    accepted, tested = (np.vstack([each.sum(0), bootstrap.sums(each)]) for each in sums)
    with np.errstate(invalid="ignore"):
        return 2 - np.cumprod(1 - accepted / tested, axis=1)


def entropies(one: Decoded, table: pd.DataFrame, *resampling: Any) -> pd.DataFrame:
    """Return KL, H[R] and the bounds of arXiv 2504.15475 beside the measured tokens, in nats.

    Args:
        one: contexts, calls and levels.
        table: its `tree_runs`.
        resampling: resamples, confidence and seed of the bootstrap over prompts.

    Returns:
        A row a group that draws or races: kl and entropy, means over contexts with their intervals
        (`_ci_low`, `_ci_high`), the latter H[R] of independent drafts (3); below, the contexts
        where it is less than KL, against (6); entropy_upper, the mean of the bound (8), NaN for
        GSS; zero_order, H of the R that decoding measured, with all later indices as one; the
        largest tree of fixed shape: nodes, tokens_per_call, and theorem, its bound (5).
    """
    bootstrap, rows = one.bootstrap(*resampling), []
    for group, runs in table[table["law"].isin(ENTROPY)].groupby("group", sort=False):
        law, run = str(runs["law"].iloc[0]), int(runs["run"].iloc[0])
        mine = one.contexts[one.contexts["run"].map(lambda at, run=run: one.alike(at, run))]
        fixed = runs[runs["shape"] != SHAPES["dynamic"]]
        if mine.empty or fixed.empty:
            continue
        rests = rates(one, table, str(group))
        largest = fixed.nlargest(1, "nodes").iloc[0]
        row: dict[str, Any] = {"group": group, "law": law, "contexts": len(mine)}
        for name, column in (("kl", "kl"), ("entropy", ENTROPY[law])):
            sums, counts = one.by_prompt(mine.assign(run=0, count=1), column, "count")
            mean, low, high = ratio_intervals(sums[:, :1], counts[:, :1], bootstrap)
            row |= {name: mean[0], f"{name}_ci_low": low[0], f"{name}_ci_high": high[0]}
        upper = float(mine["kl"].map(races_entropy_upper).mean()) if law == ERSS else math.nan
        rows.append(row | {
            "below": int((mine[ENTROPY[law]] < mine["kl"] - ROUNDING).sum()),
            "entropy_upper": upper,
            "zero_order": index_entropy(np.append(rests, max(0.0, 1 - rests.sum()))),
            "nodes": int(largest["nodes"]), "tokens_per_call": largest["tokens_per_call"],
            "theorem": tunstall_upper(
                row["entropy"], one.vocabulary, int(largest["nodes"]), tight=False
            ),
        })  # fmt: skip
    return pd.DataFrame(rows)


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
    setting = f"T = {row['temperature']:g}{cut}"
    levels = judged_levels(one)
    levels = levels[levels["run"] == run]
    taken = levels["accepted"] > 0
    first = levels["level"] == 1
    return {
        "run": run,
        "method": row["method"],
        "temperature": row["temperature"],
        "law": law,
        "setting": setting,
        "group": f"{law}, {setting}" if row["temperature"] else law,
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
