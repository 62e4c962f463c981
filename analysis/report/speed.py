"""The speed of decoding with a drafter: what depends on the clock.

`speeds` are the tables of `analysis.decoding.speed.speed`, one for each target, with the threshold
`theta` of MARS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from ..decoding import speed
from ..decoding.metrics import Decoded
from .decoding import settings
from .table import Table, indexed
from .text import number_text, percent_text, times_text

Speeds = Sequence[pd.DataFrame]
MILLISECONDS = {  # heading: column in seconds
    ("ms", "first"): "first_token",
    ("ms", "a token"): "tpot",
    ("between tokens, ms", "50 %"): "itl_50",
    ("between tokens, ms", "99 %"): "itl_99",
    ("a call, ms", "draft"): "c_draft",
    ("a call, ms", "verify"): "c_verify",
    ("a call, ms", "other"): "c_other",
}


def speed_table(decoded: Sequence[Decoded], speeds: Speeds) -> Table:
    """Return throughput, latency, costs of a call and memory."""
    pairs = zip(decoded, speeds, strict=True)
    data = pd.concat([table.assign(target=pair.target) for pair, table in pairs], ignore_index=True)
    ends = data[["tpot_speedup", "tpot_ci_low", "tpot_ci_high"]].to_numpy().tolist()
    ratios = {  # heading: column and decimals
        ("costs", "ρ"): ("rho", 3),
        ("costs", "verify/c_p"): ("verify_ratio", 2),
        ("best", "γ"): ("best_length", 0),
        ("best", "γ*"): ("formula_length", 1),
    }
    columns = {
        **{("", name): cells for name, cells in settings(data).items()},
        ("", "tokens/s"): [number_text(rate, 1) for rate in data["tokens_per_second"]],
        ("speedup", "a token"): [times_text(*of) for of in ends],
        ("speedup", "S"): [times_text(value) for value in data["formula"]],
        **{
            heading: [number_text(1000 * seconds) for seconds in data[name]]
            for heading, name in MILLISECONDS.items()
        },
        **{
            heading: [number_text(value, digits) for value in data[name].astype(float)]
            for heading, (name, digits) in ratios.items()
        },
        ("", "MiB"): [number_text(size / 2**20, 1) for size in data["memory"]],
    }
    return Table(
        "decoding_speed",
        "Throughput, latency, costs, memory",
        "Time to the first token, per later token, between tokens, and of a call's parts. ρ: cost "
        "of a drafted token over one of the target alone, c_p. S = (1 − aᵞ⁺¹)/(1 − a)/(1 + γρ), "
        "largest at γ*; best γ: the fastest that was run. MiB: memory beyond the target's. Batch "
        "size 1; intervals over prompts hold for all methods together.",
        data,
        indexed(data, columns),
    )


def comparison_table(decoded: Sequence[Decoded], speeds: Speeds) -> Table:
    """Return speedup and τ by source of the prompts, and agreement, by temperature and length.

    The layouts are those of Tables 1 and 2 of MARS (arXiv 2601.15498).
    """
    sources = sorted({source for pair in decoded for source in pair.data["source"]})
    frames = []
    for pair, table in zip(decoded, speeds, strict=True):
        whole = table[["speedup", "ci_low", "ci_high"]].assign(tau=table["tokens_per_call"])
        parts = [*(_of_source(pair, source) for source in sources), whole]
        runs = pair.runs[["method", "draft_length", "temperature"]]
        runs = runs.assign(prompts=pair.prompts, agreement=table["agreement"])
        frames += [
            runs.join(part).reset_index(names="run").assign(target=pair.target, source=source)
            for source, part in zip([*sources, "all"], parts, strict=True)
        ]
    data = pd.concat(frames, ignore_index=True)
    whole = data[data["source"] == "all"]
    columns = {("", name): cells for name, cells in settings(whole).items()}
    for source in [*sources, "all"] if len(sources) > 1 else ["all"]:
        part = data[data["source"] == source]
        ends = part[["speedup", "ci_low", "ci_high"]].to_numpy().tolist()
        columns[source, "speedup"] = [times_text(*of) for of in ends]
        columns[source, "τ"] = [number_text(tokens) for tokens in part["tau"]]
    columns["all", "agreement"] = [percent_text(share) for share in whole["agreement"]]
    return Table(
        "decoding_comparison",
        "Methods compared",
        "Speedup over the target alone, tokens per call of the target (τ) and agreement with its "
        "tokens, by source of the prompts, temperature T and draft length γ (after Tables 1 and 2 "
        "of MARS). Batch size 1, prefill included; intervals over prompts hold for all methods of "
        "a temperature together.",
        data,
        indexed(whole, columns),
    )


def _of_source(decoded: Decoded, source: str) -> pd.DataFrame:
    """Return speedup and τ of every run on the prompts of a source; NaN if it has none."""
    prompts = decoded.data.loc[decoded.data["source"] == source, "prompt_id"].unique()
    if not len(prompts):
        return pd.DataFrame({"speedup": math.nan, "tau": math.nan}, index=decoded.runs.index)
    data, answers, calls = (
        table[table["prompt_id"].isin(prompts)]
        for table in (decoded.data, decoded.answers, decoded.calls)
    )
    speedups = speed.throughput(replace(decoded, data=data, answers=answers), 1, 0.5, 0)[
        ["speedup"]
    ]
    tau = calls.groupby("run")["emitted"].mean()
    return speedups.assign(tau=tau, ci_low=math.nan, ci_high=math.nan)
