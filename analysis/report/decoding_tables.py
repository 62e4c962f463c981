"""Decoding with a drafter: acceptance, tokens per call, what depends on the clock, right answers.

`speeds` are the tables of `analysis.decoding.speed.speed`, one for each target, with the threshold
`theta` of MARS.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from ..decoding import metrics, speed
from ..decoding.metrics import Decoded
from ..decoding.paired_accuracy import ALL, Answered, differing, losses
from ..rules import Mars
from ..statistics.bootstrap import Resampling
from .mars_figures import thresholds_figure
from .table import Section, Table, concat_targets, rows_by_method
from .text import UNDEFINED, interval_text, number_text, percent_text

Speeds = Sequence[pd.DataFrame]
NUMBERS = {  # of the speed table: heading, column, factor and decimals
    ("ms", "first"): ("first_token", 1000, 2),
    ("ms", "a token"): ("tpot", 1000, 2),
    ("between tokens, ms", "50 %"): ("itl_50", 1000, 2),
    ("between tokens, ms", "99 %"): ("itl_99", 1000, 2),
    ("a call, ms", "draft"): ("c_draft", 1000, 2),
    ("a call, ms", "verify"): ("c_verify", 1000, 2),
    ("a call, ms", "other"): ("c_other", 1000, 2),
    ("costs", "ρ"): ("rho", 1, 3),
    ("costs", "verify/c_p"): ("verify_ratio", 1, 2),
    ("best", "γ"): ("best_length", 1, 0),
    ("best", "γ*"): ("formula_length", 1, 1),
    ("", "MiB"): ("memory", 2**-20, 1),
}


def settings(data: pd.DataFrame) -> dict[str, list[str]]:
    """Return the columns of a method's draft length and temperature."""
    return {
        "γ": [str(int(gamma)) if gamma else UNDEFINED for gamma in data["draft_length"]],
        "T": [f"{temperature:g}" for temperature in data["temperature"]],
    }


def intervals(data: pd.DataFrame, names: Iterable[str]) -> list[str]:
    """Return the cells of a column and the two with the ends of its interval."""
    return [interval_text(*ends) for ends in data[[*names]].to_numpy().tolist()]


def speed_intervals(data: pd.DataFrame, names: Iterable[str]) -> list[str]:
    """Return the cells of a speedup, whose ends have the digits that tell them from 1."""
    rows = data[[*names]].to_numpy().tolist()
    return [interval_text(*ends, unit="×", apart=[1]) for ends in rows]


def decoding_table(decoded: Sequence[Decoded], statistics: Resampling) -> Table:
    """Return acceptance, tokens per call and the cost of lossy rules, a row a method."""
    data = pd.concat([_acceptance(pair, statistics) for pair in decoded], ignore_index=True)
    tokens = [f"tokens_per_call{end}" for end in ("", "_ci_low", "_ci_high")]
    drafting = data["draft_length"] > 0
    columns: dict[str, Any] = {
        **settings(data),
        "a": [number_text(rate, 3) for rate in data["rate"]],
        "by position": data["by_position"],
        "drafted": data["drafted_per_call"].map(number_text),
        "τ": intervals(data, tokens),
        "closed form": data["closed_form"].where(drafting).map(number_text),
        "agreement": data["agreement"].map(percent_text),
        "nats given up": [number_text(nats, 4) for nats in data["nats_given_up"]],
        "differ": [number_text(count, 0) for count in data["differing"]],
    }
    return Table(
        "decoding_acceptance",
        "Acceptance, and nats given up",
        "Acceptance rate a: accepted over tested tokens, pooled and by draft position. τ: tokens "
        "emitted per call of the target; closed form: (1 − aⁿ⁺¹)/(1 − a), were tests independent. "
        "Agreement: positions with the token of the target alone. Differ: answers of strict greedy "
        "that differ from it, at near-ties only (column largest_gap).",
        data,
        rows_by_method(data, columns),
    )


def _acceptance(pair: Decoded, statistics: Resampling) -> pd.DataFrame:
    """Return `metrics.acceptance` with by_position, and of strict greedy differing, largest_gap."""
    table = metrics.acceptance(pair, *statistics).assign(prompts=pair.n_prompts, target=pair.target)
    rates = metrics.position_rates(pair.calls).groupby("run")["rate"]
    texts = rates.agg(lambda of_run: " ".join(f"{100 * rate:.0f}" for rate in of_run))
    differences = metrics.first_differences(pair).groupby("run")["gap"]
    counts = differences.size().reindex(metrics.greedy_runs(pair), fill_value=0)
    return table.assign(
        by_position=texts.reindex(table.index),
        differing=counts.reindex(table.index),
        largest_gap=differences.max().reindex(table.index),
    )


def speed_table(decoded: Sequence[Decoded], speeds: Speeds) -> Table:
    """Return throughput, latency, costs of a call and memory."""
    pairs = zip(decoded, speeds, strict=True)
    data = pd.concat([table.assign(target=pair.target) for pair, table in pairs], ignore_index=True)
    columns: dict[Any, Any] = {("", name): cells for name, cells in settings(data).items()}
    columns["", "tokens/s"] = [number_text(rate, 1) for rate in data["tokens_per_second"]]
    later = ("tpot_speedup", "tpot_ci_low", "tpot_ci_high")
    columns["speedup", "a token"] = speed_intervals(data, later)
    columns["speedup", "S"] = speed_intervals(data, ["formula"])
    for heading, (name, factor, digits) in NUMBERS.items():
        columns[heading] = [number_text(factor * x, digits) for x in data[name].astype(float)]
    return Table(
        "decoding_speed",
        "Throughput, latency, costs, memory",
        "Time to the first token, per later token, between tokens, and of a call's parts. ρ: cost "
        "of a drafted token over one of the target alone, c_p. S = (1 − aᵞ⁺¹)/(1 − a)/(1 + γρ), "
        "largest at γ*; best γ: the fastest that was run. MiB: memory beyond the target's. Batch "
        "size 1; intervals over prompts hold for all methods together.",
        data,
        rows_by_method(data, columns),
    )


def comparison_table(decoded: Sequence[Decoded], speeds: Speeds) -> Table:
    """Return speedup and τ by source of the prompts, and agreement, by temperature and length.

    The layouts are those of Tables 1 and 2 of MARS (arXiv 2601.15498).
    """
    sources = sorted({source for pair in decoded for source in pair.answers["source"]})
    frames = []
    for pair, table in zip(decoded, speeds, strict=True):
        whole = table[["speedup", "ci_low", "ci_high"]].assign(tau=table["tokens_per_call"])
        parts = [*(_of_source(pair, source) for source in sources), whole]
        runs = pair.runs[["method", "draft_length", "temperature"]]
        runs = runs.assign(prompts=pair.n_prompts, agreement=table["agreement"])
        frames += [
            runs.join(part).reset_index(names="run").assign(target=pair.target, source=source)
            for source, part in zip([*sources, "all"], parts, strict=True)
        ]
    data = pd.concat(frames, ignore_index=True)
    whole = data[data["source"] == "all"]
    columns: dict[Any, Any] = {("", name): cells for name, cells in settings(whole).items()}
    for source in [*sources, "all"] if len(sources) > 1 else ["all"]:
        part = data[data["source"] == source]
        columns[source, "speedup"] = speed_intervals(part, ["speedup", "ci_low", "ci_high"])
        columns[source, "τ"] = part["tau"].map(number_text)
    columns["all", "agreement"] = whole["agreement"].map(percent_text)
    return Table(
        "decoding_comparison",
        "Methods compared",
        "Speedup over the target alone, tokens per call of the target (τ) and agreement with its "
        "tokens, by source of the prompts, temperature T and draft length γ (after Tables 1 and 2 "
        "of MARS). Batch size 1, prefill included; intervals over prompts hold for all methods of "
        "a temperature together.",
        data,
        rows_by_method(whole, columns),
    )


def _of_source(decoded: Decoded, source: str) -> pd.DataFrame:
    """Return speedup and τ of every run on the prompts of a source; NaN if it has none."""
    prompts = decoded.answers.loc[decoded.answers["source"] == source, "prompt_id"].unique()
    if not len(prompts):
        return pd.DataFrame({"speedup": math.nan, "tau": math.nan}, index=decoded.runs.index)
    data, answers, calls = (
        table[table["prompt_id"].isin(prompts)]
        for table in (decoded.answers, decoded.answer_seconds, decoded.calls)
    )
    whole = speed.throughput(replace(decoded, answers=answers, answer_seconds=seconds), 1, 0.5, 0)
    tau = calls.groupby("run")["emitted"].mean()
    return whole[["speedup"]].assign(tau=tau, ci_low=math.nan, ci_high=math.nan)


def accuracy_sections(
    drafter: str,
    answered: Sequence[Answered],
    tables: Sequence[pd.DataFrame],
    margin: float,
    confidence: float,
) -> list[Section]:
    """Return the section on answers, and that of timed results, from `accuracy` of every target."""
    title = f"Right answers when decoding with {drafter}"
    swept = []
    for table in tables:
        totals = table[table["task"] == ALL]
        theta = [rule.theta if isinstance(rule, Mars) else math.nan for rule in totals["rule"]]
        swept.append(totals.assign(theta=theta))
    figure = thresholds_figure([pair.target for pair in answered], swept, "accuracy")
    shown = [accuracy_table(answered, tables, margin, confidence)]
    return [
        Section(title, shown, [f"{tasks_sentence(pair)}." for pair in answered]),
        Section(f"{title}: speed", [figure], timed=True),
    ]


def accuracy_table(
    answered: Sequence[Answered], tables: Sequence[pd.DataFrame], margin: float, confidence: float
) -> Table:
    """Return the accuracy of every method by task and over all, paired with the target alone."""
    data = concat_targets(
        (pair.target, table.assign(decided=table["run"].map(losses(table)["decision"])))
        for pair, table in zip(answered, tables, strict=True)
    ).drop(columns="speedup")
    alone = data["drafter"] == "none"  # compared with itself
    paired = data[["difference", "difference_ci_low", "difference_ci_high"]].mask(alone)
    changes = data["lost"].astype(str) + ", " + data["won"].astype(str)
    decided = data["decided"].astype(object).where(data["task"] == ALL)
    columns: dict[str, Any] = {
        **settings(data),
        "items": data["items"].map(str),
        "right": data["accuracy"].map(percent_text),
        "lost, won": changes.mask(alone, UNDEFINED),
        "difference": [
            interval_text(*ends, digits=1, apart=[-100 * margin, 0])
            for ends in (100 * paired).to_numpy().tolist()
        ],
        "p": [number_text(p, 3) for p in data["p_value"].mask(alone)],
        "decided": decided.fillna(UNDEFINED),
        "recovery": [number_text(share, 3) for share in data["recovery"]],
        "changed": data["changed"].map(percent_text),
        "nats given up": [number_text(nats, 4) for nats in data["nats_given_up"]],
        "τ": data["tokens_per_call"].map(number_text),
    }
    rows = ["task", "method"] if len(data["task"].unique()) > 1 else ["method"]
    return Table(
        "accuracy_losses",
        "What a method costs in right answers",
        "Lost, won: items that only the target, or only the method, answers right. Difference in "
        f"points with its {100 * confidence:g} % interval, paired by item (Agresti and Min); p: "
        "McNemar's exact test. Decided: a loss is excluded where the interval lies above minus "
        f"{100 * margin:g} points, accuracy falls where it lies below 0. After Table 2 of MARS.",
        data,
        rows_by_method(data, columns, rows),
    )


def tasks_sentence(pair: Answered) -> str:
    """Return a line with a target's tasks, and the answers that exact methods changed."""
    items = pair.answers["item_id"].groupby(pair.answers["run"]).size().iloc[0]
    text = f"{pair.target}: {items} items of the tasks {', '.join(pair.tasks)}"
    if not pair.runs["exact"].sum() > (pair.runs["drafter"] == "none").sum():
        return text
    changed = differing(pair).query("exact").to_dict("records")
    text += f"; methods that must not change answers changed {len(changed) or 'none'}"
    where = ", ".join(
        f"{row['task']}/{row['item_id']} with {row['method']} (gap {row['gap']:.1e})"
        for row in changed
    )
    return f"{text}: {where}" if changed else text
