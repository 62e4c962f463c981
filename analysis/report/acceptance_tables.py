"""Tables of a drafter's acceptance: accepted and certified steps by rule, and by depth.

They show the frames of stage acceptance: `acceptance` (target, rule, statistic, value, ...),
`sources` (the same by source of the prompt) and `breakdown` (by depth).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..acceptance.drafter import RACES, RACES_LOWER, SPECULATIVE
from ..acceptance.target_statistics import representative_rules
from ..rules import Rule
from ..statistics.estimate import Estimate
from ..statistics.run_lengths import with_censored
from .results import Results
from .table import Table, cells_to_grid
from .text import estimate_texts, percent_text, run_text, share_texts

COLUMNS = {  # statistic: heading
    "acceptance": "accepted",
    "certified": "certified",
    "coverage": "coverage",
    "probability_given_up": "p given up",
    "measured_per_call": "tokens per call",
}
CERTIFIED = ("certified", "coverage")  # statistics of certificates
SAMPLED = {  # schemes that sample the draft, and their printed names
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


def judged_rules(results: Results) -> list[Rule]:
    """Return the rules that stage acceptance applied, strict greedy first."""
    labels = results["acceptance"]["rule"].unique()
    return [results.rules[label] for label in labels if label in results.rules]


def acceptance_table(results: Results) -> Table:
    """Return accepted and certified shares by rule; for sampled text also the schemes that sample.

    The certified columns are left out if the drafter's KL is infinite at every step.
    """
    rules = judged_rules(results)
    order = [*(rule.label for rule in rules), *SAMPLED]
    data = with_censored(results.select("acceptance", rule=order))
    finite = results.select("breakdown", depth=0, rule="", statistic="finite")["value"]
    columns = [name for name in COLUMNS if finite.any() or name not in CERTIFIED]
    tree_rules = [rule.label for rule in rules if not rule.judges_tokens]
    # a level of a tree emits the target's own token, so a tree gives up nothing
    gives_up_nothing = data["statistic"].eq("probability_given_up") & data["rule"].isin(tree_rules)
    printed_rows = data[data["statistic"].isin(columns) & ~gives_up_nothing]
    printed_rows = printed_rows.sort_values(
        "rule", key=lambda labels: labels.map(order.index), kind="stable"
    )
    cells = [
        run_text(row["value"], row["censored"])
        if "per_call" in row["statistic"]
        else percent_text(row["value"])
        for row in printed_rows.to_dict("records")
    ]
    table = cells_to_grid(printed_rows, "rule", ["target", "statistic"], cells)
    table = table.reindex(columns=pd.MultiIndex.from_product([results.targets, columns]))
    infinite_note = ""
    if (finite < 1).any():
        infinite_note = (
            f"KL is finite at {' and '.join(map(percent_text, finite))} of the steps; the others "
            "are certified only where nothing can be rejected. "
        )
    return Table(
        "acceptance",
        "Accepted and certified steps",
        f"Steps of {results.drafter} that each rule accepts along the target's own text, and that "
        "its certificate guarantees: KL(p‖q) < R. Coverage: certified among accepted. "
        f"{infinite_note}p given up: target probability lost a step. Tokens per call: drafts of "
        "any length.",
        data,
        table.rename(index={**results.titles, **SAMPLED})
        .rename(columns=COLUMNS, level=1)
        .rename_axis(index="Rule"),
    )


def acceptance_by_source(results: Results) -> Table | None:
    """Return the share that each rule accepts, by source; None if there is only one source."""
    data = results.select("sources", statistic="acceptance")
    if data.empty or data["source"].nunique() < 2:
        return None
    data = data[data["rule"].isin(results.rules)]
    cells = estimate_texts(Estimate.read(data), percent=True)
    return Table(
        "sources",
        "Accepted steps by source of the prompt",
        f"Steps of {results.drafter} that each rule accepts along the target's own text, by the "
        "category of the prompt, or else its file. In brackets: intervals over the prompts of the "
        "source.",
        data,
        cells_to_grid(data, "rule", ["target", "source"], cells)
        .rename(index=results.titles)
        .rename_axis(index="Rule"),
    )


def depth_table(results: Results) -> Table | None:
    """Return KL, acceptance and certified shares by depth; None if the drafter is not a head.

    A depth at which KL is infinite at every step has no certified share, unless a rule rejects
    nothing.
    """
    rules = [rule.label for rule in representative_rules(judged_rules(results))]
    data = results.select("breakdown", rule=["", *rules])
    data = data[data["depth"] > 0] if len(data) else data
    if data.empty:
        return None
    finite = data[data["statistic"] == "finite"].set_index(["target", "depth"])["value"]
    finite_there = data.join(finite.rename("finite"), on=["target", "depth"])["finite"]
    statistic = data["statistic"]
    value = data["value"]
    # left out: the certified share where no KL is finite, unless it is above 0; a median that is
    # infinite or undefined; and the share of finite KLs, if all are finite
    kept = (statistic != "certified") | (finite_there > 0) | (value > 0)
    kept &= (statistic != "kl_median") | np.isfinite(value)
    kept &= (statistic != "finite") | bool((finite < 1).any())
    order = list(BY_DEPTH).index
    printed_rows = data[kept].sort_values(
        "statistic", key=lambda names: names.map(order), kind="stable"
    )
    printed_rows = printed_rows.assign(depth=[f"depth {depth}" for depth in printed_rows["depth"]])
    cells = share_texts(printed_rows, {"kl_median": 3})
    table = cells_to_grid(printed_rows, ["statistic", "rule"], ["target", "depth"], cells)
    depths = [f"depth {depth}" for depth in sorted(data["depth"].unique())]
    table = table.reindex(columns=pd.MultiIndex.from_product([results.targets, depths]))
    first = ["target", "depth", "rule"]
    infinite = ""
    if (finite[finite.index.get_level_values("depth") > 1] == 0).any():
        infinite = (
            " A finite KL of 0.0 %: at later depths the KL of a head with a vocabulary of its own "
            "is not computed and counts as infinite."
        )
    return Table(
        "depths",
        "By depth of the draft",
        f"What {results.drafter} drafts after none, one, two, ... drafted tokens, along the "
        "target's own text: it reads the target's hidden states where they are known, and its own "
        f"output after that. All other tables show depth 1.{infinite}",
        data[[*first, *(name for name in data if name not in first)]],
        table.rename(index=BY_DEPTH, level=0)
        .rename(index={**results.titles, "": "the drafter"}, level=1)
        .rename_axis(index=["", "Rule"]),
    )
