"""Runs that decoded with draft trees: scheme, shape, size, predicted and measured tokens."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from ..rules import StrictGreedy, Tree
from ..topk import Floats
from ..trees.index_entropies import races_entropy_upper
from ..trees.sibling_rates import measured_rates
from ..trees.token_bounds import least_residual_upper, tunstall_upper
from ..trees.topology import Topology, sequence, tree_tokens_per_call
from .metrics import CONFIGURED, Decoded

GREEDY = "Tree-greedy"
GSS = "GSS"
ERSS = "ERSS"
SCHEMES = {"speculative": GSS, "races": ERSS}
ENTROPY = {GSS: "greedy_entropy", ERSS: "races_entropy"}  # columns of `Decoded.contexts`
SHAPES = {  # name in the configuration: printed name
    "sequence": "sequence",
    "batch": "batch",
    "symmetric": "symmetric",
    "spec_infer": "SpecInfer's tree",
    "optimal": "tau*",
    "dynamic": "dynamic",
}
RUN_COLUMNS = [
    *("run", "method", "scheme", "temperature", "group", "shape", "nodes", "levels", "calls"),
    *("tokens_per_call", "ci_low", "ci_high", "predicted", "first_level", "later_levels"),
    "setting",
]


def tree_runs(decoded: Decoded, resamples: int, confidence: float, seed: int) -> pd.DataFrame:
    """Return a row for each lossless run with a model drafter, chain or tree.

    Returns:
        `RUN_COLUMNS`. `setting` is the temperature, `group` the verification scheme and the
        temperature. `predicted` are the zero-order tokens per call, NaN for dynamic trees; they use
        the R that `group_rates` estimates from all runs of the group with a fixed shape.
        `tokens_per_call`, with its interval over prompts, counts only the `calls` that drafted the
        full tree. `first_level` and `later_levels` are the shares of tested levels that accepted a
        child, at the first level and after it. They are equal if acceptance does not depend on
        earlier levels.
    """
    table = _run_settings(decoded)
    if table.empty:
        return table
    by_group = {group: group_rates(decoded, table, group) for group in table["group"].unique()}
    table["predicted"] = [
        _predicted(shape_of(decoded, run), by_group[group])
        for run, group in zip(table["run"], table["group"], strict=True)
    ]
    nodes = decoded.calls["run"].map(table.set_index("run")["nodes"])
    full_trees = decoded.calls[decoded.calls["drafted"] == nodes].assign(calls=1)
    emitted, calls = (
        sums[:, table["run"]] for sums in decoded.by_prompt(full_trees, "emitted", "calls")
    )
    table["calls"] = calls.sum(0).astype(int)
    bootstrap = decoded.bootstrap(resamples, confidence, seed)
    tokens = bootstrap.ratio(emitted, calls)
    table[["tokens_per_call", "ci_low", "ci_high"]] = np.transpose(tokens)
    return table


def group_rates(decoded: Decoded, table: pd.DataFrame, group: str) -> Floats:
    """Return R over sibling indices, from all runs of a group with a fixed shape."""
    fixed_shape = table[(table["group"] == group) & (table["shape"] != SHAPES["dynamic"])]["run"]
    levels = judged_levels(decoded)
    levels = levels[levels["run"].isin(fixed_shape)]
    return measured_rates(levels["accepted"].to_numpy(), levels["children"].to_numpy())


def tree_statistics(decoded: Decoded, table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `tree_runs` that drafted trees, with their bounds.

    Returns:
        The columns of `tree_runs`; `bound`, that of Lemma 4.3 on the tokens per call, NaN for
        dynamic trees; `acceptance`, R of the group as text; the columns of `entropies`, if contexts
        were measured; target.
    """
    acceptance = {group: group_rates(decoded, table, group) for group in table["group"].unique()}
    bounds = [
        math.nan
        if shape == SHAPES["dynamic"]
        else least_residual_upper(acceptance[group], int(nodes), tight=True)[1]
        for group, nodes, shape in table[["group", "nodes", "shape"]].to_numpy()
    ]
    texts = [" ".join(f"{rate:.3g}" for rate in acceptance[group]) for group in table["group"]]
    is_tree = table["run"].map(decoded.drafts_trees).astype(bool)
    frame = table.assign(bound=bounds, acceptance=texts)[is_tree]
    if len(frame) and len(decoded.contexts):
        of_groups = entropies(decoded, table)
        if len(of_groups):
            frame = frame.join(of_groups.set_index("group"), on="group")
    return frame.assign(target=decoded.target)


def entropies(decoded: Decoded, table: pd.DataFrame) -> pd.DataFrame:
    """Return KL, H[R] and the bounds of arXiv 2504.15475 on it and on the tokens, in nats.

    Returns:
        A row for each group that samples drafts (GSS) or races them (ERSS): `kl` and `entropy`,
        means over contexts, the latter H[R] of independent drafts (3); `entropy_upper`, the mean of
        the bound (8), NaN for GSS; `theorem`, the bound (5) on the tokens per call of the largest
        tree of fixed shape.
    """
    rows = []
    temperatures = decoded.runs["temperature"]
    for group, runs in table[table["scheme"].isin(ENTROPY)].groupby("group", sort=False):
        scheme = runs["scheme"].iloc[0]
        at_temperature = decoded.contexts["run"].map(temperatures) == runs["temperature"].iloc[0]
        contexts = decoded.contexts[at_temperature]
        sizes = runs["nodes"][runs["shape"] != SHAPES["dynamic"]]
        if contexts.empty or sizes.empty:
            continue
        kl = contexts["kl"]
        entropy = contexts[ENTROPY[scheme]].mean()
        upper = kl.map(races_entropy_upper).mean() if scheme == ERSS else math.nan
        theorem = tunstall_upper(entropy, decoded.vocabulary, int(sizes.max()), tight=False)
        rows.append(
            {
                "group": group,
                "kl": kl.mean(),
                "entropy": entropy,
                "entropy_upper": upper,
                "theorem": theorem,
            }
        )
    return pd.DataFrame(rows)


def judged_levels(decoded: Decoded) -> pd.DataFrame:
    """Return run, level, children and accepted of all tested levels; in a chain, of one child."""
    chains = decoded.calls[~decoded.calls["run"].map(decoded.drafts_trees)].reset_index(drop=True)
    tested = chains.loc[chains.index.repeat(chains["tested"]), ["run", "accepted"]]
    level = tested.groupby(level=0).cumcount() + 1
    tested = tested.assign(level=level, children=1, accepted=level <= tested["accepted"])
    tree_levels = decoded.levels[["run", "level", "children", "accepted"]]
    return pd.concat([tree_levels, tested], ignore_index=True).astype(int)


def shape_of(decoded: Decoded, run: int) -> Topology | None:
    """Return the shape of a run's drafts; None if each call chooses its own."""
    tree = decoded.runs["tree"][run]
    if not decoded.drafts_trees[run]:
        return sequence(int(decoded.runs["draft_length"][run]))
    return Topology(tuple(map(int, tree["parents"]))) if "parents" in tree else None


def _lossless_drafts(decoded: Decoded) -> list[bool]:
    lossless = []
    for run in decoded.runs.to_dict("records"):
        rule = decoded.rules.get(run["rule"])
        if rule is None:
            keeps_distribution = run["sampling"] in SCHEMES
        else:
            keeps_distribution = isinstance(rule, StrictGreedy | Tree)
        lossless.append(run["drafter"] == CONFIGURED and keeps_distribution)
    return lossless


def _run_settings(decoded: Decoded) -> pd.DataFrame:
    """Return `RUN_COLUMNS` of each run; tokens per call and their prediction are still missing."""
    levels = judged_levels(decoded)
    accepts = (levels["accepted"] > 0).groupby([levels["run"], levels["level"] == 1]).mean()
    rows = []
    for run, row in decoded.runs[_lossless_drafts(decoded)].iterrows():
        scheme = SCHEMES.get(row["sampling"], GREEDY)
        setting = f"T = {row['temperature']:g}"
        length = int(row["draft_length"])
        chain = {"name": "sequence", "nodes": length, "depth": length}
        tree = chain | (row["tree"] or {})
        rows.append(
            {
                "run": run,
                "method": row["method"],
                "temperature": row["temperature"],
                "scheme": scheme,
                "setting": setting,
                "group": f"{scheme}, {setting}" if row["temperature"] else scheme,
                "shape": SHAPES[tree["name"]],
                "nodes": int(tree["nodes"]),
                "levels": int(tree["depth"]),
                "first_level": accepts.get((run, True), math.nan),
                "later_levels": accepts.get((run, False), math.nan),
            }
        )
    return pd.DataFrame(rows, columns=RUN_COLUMNS)


def _predicted(tree: Topology | None, acceptance: Floats) -> float:
    """Return the zero-order tokens per call; NaN if an index of the tree was never tested."""
    if tree is None or max(tree.siblings, default=0) > len(acceptance):
        return math.nan
    return tree_tokens_per_call(tree, acceptance)
