"""Decoding with a drafter: acceptance, tokens per call, and what relaxed rules give up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..decoding import metrics
from ..decoding.metrics import Decoded
from ..statistics.bootstrap import Resampling
from .table import Table, indexed
from .text import UNDEFINED, interval_text, number_text, percent_text


def decoding_table(decoded: Sequence[Decoded], statistics: Resampling) -> Table:
    """Return acceptance, tokens per call and the cost of lossy rules, a row a method."""
    frames = [_acceptance(pair, statistics) for pair in decoded]
    data = pd.concat(frames, ignore_index=True)
    drafting = data["draft_length"] > 0
    columns: dict[str, Any] = {
        **settings(data),
        "a": [number_text(rate, 3) for rate in data["rate"]],
        "by position": data["by_position"],
        "drafted": [number_text(count) for count in data["drafted_per_call"]],
        "τ": [
            interval_text(*row)
            for row in data[[f"tokens_per_call{end}" for end in ("", "_ci_low", "_ci_high")]]
            .to_numpy()
            .tolist()
        ],
        "closed form": [number_text(tokens) for tokens in data["closed_form"].where(drafting)],
        "agreement": [percent_text(share) for share in data["agreement"]],
        "nats given up": [number_text(nats, 4) for nats in data["nats_given_up"]],
        "differ": [UNDEFINED if pd.isna(count) else f"{count:.0f}" for count in data["differing"]],
    }
    return Table(
        "decoding_acceptance",
        "Acceptance, and nats given up",
        "Acceptance rate a: accepted over tested tokens, pooled and by draft position. τ: tokens "
        "emitted per call of the target; closed form: (1 − aⁿ⁺¹)/(1 − a), were tests independent. "
        "Agreement: positions with the token of the target alone. Differ: answers of strict greedy "
        "that differ from it, at near-ties only (column largest_gap).",
        data,
        indexed(data, columns),
    )


def settings(data: pd.DataFrame) -> dict[str, list[str]]:
    """Return the columns of a method's draft length and temperature."""
    return {
        "γ": [str(int(gamma)) if gamma else UNDEFINED for gamma in data["draft_length"]],
        "T": [f"{temperature:g}" for temperature in data["temperature"]],
    }


def _acceptance(pair: Decoded, statistics: Resampling) -> pd.DataFrame:
    """Return `analysis.decoding.metrics.acceptance` of a target.

    Added are by_position, the acceptance at each place of a draft in percent; differing, the
    answers of strict greedy that differ from the target's own; and largest_gap, the largest
    difference of the two largest logits at the first token that differs.
    """
    table = metrics.acceptance(pair, *statistics).assign(prompts=pair.prompts, target=pair.target)
    rates = metrics.position_rates(pair.calls).groupby("run")["rate"]
    texts = rates.agg(lambda of_run: " ".join(f"{100 * rate:.0f}" for rate in of_run))
    differences = metrics.first_differences(pair).groupby("run")["gap"]
    counts = differences.size().reindex(metrics.greedy_runs(pair), fill_value=0)
    return table.assign(
        by_position=texts.reindex(table.index),
        differing=counts.reindex(table.index),
        largest_gap=differences.max().reindex(table.index),
    )
