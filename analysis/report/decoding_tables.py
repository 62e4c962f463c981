"""Tables of decoding with a drafter: acceptance, tokens per call, and what depends on the clock.

`speeds` are the tables of `analysis.decoding.speed.speed`, one for each target, with the threshold
`theta` of MARS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..decoding import metrics, speed
from ..decoding.metrics import Decoded
from ..statistics.estimate import Estimate
from .table import Table, rows_by_method
from .text import UNDEFINED, estimate_text, estimate_texts, number_text, percent_text, speed_texts

Speeds = Sequence[pd.DataFrame]
NUMBERS = {  # heading in the speed table: column of the data, factor and decimals
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


def setting_columns(data: pd.DataFrame) -> dict[str, list[str]]:
    """Return the columns with each method's draft length and temperature."""
    return {
        "γ": [str(int(gamma)) if gamma else UNDEFINED for gamma in data["draft_length"]],
        "T": [f"{temperature:g}" for temperature in data["temperature"]],
    }


def decoding_table(decoded: Sequence[Decoded], accepted: Sequence[pd.DataFrame]) -> Table:
    """Return acceptance, tokens per call and what lossy rules give up, a row for each method.

    `accepted` are the tables of `analysis.decoding.metrics.acceptance`, one for each target.
    """
    pairs = zip(decoded, accepted, strict=True)
    data = pd.concat([metrics.with_differences(*pair) for pair in pairs], ignore_index=True)
    drafting = data["draft_length"] > 0
    columns: dict[str, Any] = {
        **setting_columns(data),
        "a": [number_text(rate, 3) for rate in data["rate"]],
        "by position": data["by_position"],
        "drafted": data["drafted_per_call"].map(number_text),
        "τ": estimate_texts(Estimate.read(data, "tokens_per_call")),
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
        "that differ from it; largest_gap in the CSV file: how far the two largest logits are "
        "apart at most where an answer first differs.",
        data,
        rows_by_method(data, columns),
    )


def speed_table(decoded: Sequence[Decoded], speeds: Speeds) -> Table:
    """Return throughput, latency, the costs of a call, and memory, a row for each method."""
    pairs = zip(decoded, speeds, strict=True)
    data = pd.concat([table.assign(target=pair.target) for pair, table in pairs], ignore_index=True)
    columns: dict[Any, Any] = {("", name): cells for name, cells in setting_columns(data).items()}
    columns["", "tokens/s"] = [number_text(rate, 1) for rate in data["tokens_per_second"]]
    later = Estimate.read(data, "tpot_speedup", speed.TPOT_ENDS)
    columns["speedup", "a token"] = speed_texts(later)
    columns["speedup", "S"] = [estimate_text(Estimate(s), unit="×") for s in data["formula"]]
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
    """Return speedup and τ by source of the prompts, and agreement, a row for each method.

    The layouts are those of Tables 1 and 2 of MARS (arXiv 2601.15498).
    """
    sources = sorted({source for pair in decoded for source in pair.answers["source"]})
    data = pd.concat(
        [
            speed.speeds_by_source(pair, table, sources)
            for pair, table in zip(decoded, speeds, strict=True)
        ],
        ignore_index=True,
    )
    all_sources = data[data["source"] == speed.ALL]
    settings = setting_columns(all_sources)
    columns: dict[Any, Any] = {("", name): cells for name, cells in settings.items()}
    for source in [*sources, speed.ALL] if len(sources) > 1 else [speed.ALL]:
        part = data[data["source"] == source]
        times = Estimate.read(part, "speedup", speed.SPEEDUP_ENDS)
        columns[source, "speedup"] = speed_texts(times)
        columns[source, "τ"] = part["tau"].map(number_text)
    columns[speed.ALL, "agreement"] = all_sources["agreement"].map(percent_text)
    return Table(
        "decoding_comparison",
        "Methods compared",
        "Speedup over the target alone, tokens per call of the target (τ) and agreement with its "
        "tokens, by source of the prompts, temperature T and draft length γ (after Tables 1 and 2 "
        "of MARS). Batch size 1, prefill included; intervals over prompts hold for all methods of "
        "a temperature together.",
        data,
        rows_by_method(all_sources, columns),
    )
