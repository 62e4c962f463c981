"""Table of drafts that end where their drafter is not sure, beside drafts of the whole length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..decoding.metrics import Decoded
from .decoding_tables import method_sections, setting_texts, together
from .table import Table
from .text import UNDEFINED, number_text, share_text

SAME = ["rule", "sampling", "drafter", "tree", "draft_length", "temperature"]  # but for drafting
COLUMNS = ["method", "drafting", *SAME, "calls", "drafted", "wasted", "tokens", "precision"]


def drafting_table(decoded: Sequence[Decoded]) -> Table | None:
    """What each rule for stopping drafts, wastes and gains; None where no drafter stops."""
    frames = [_drafted(one) for one in decoded]
    data = together(decoded, frames)
    if data.empty:
        return None

    def texts(row: pd.Series) -> list[str]:
        return [
            *setting_texts(row),
            str(row["calls"]),
            number_text(row["drafted"]),
            number_text(row["wasted"]),
            number_text(row["tokens"]),
            UNDEFINED if pd.isna(row["precision"]) else share_text(row["precision"]),
        ]

    return Table(
        "decoding_drafting",
        "Drafts that stop",
        "Drafts that end where the drafter is not sure of the next token, beside drafts of the "
        "whole length, and trees as wide as a certificate says beside those of the whole width. "
        "Calls of the target; of each call the drafted tokens, those wasted (rejected, or not "
        "reached), and τ, the tokens emitted; accepted: share of the tested tokens, of trees of "
        "the tested levels. What is emitted is the same, or has the same law. Speed is in the "
        "table of the comparison.",
        "Method",
        [("", 7)],
        ["γ", "T", "calls", "drafted", "wasted", "τ", "accepted"],
        method_sections(decoded, frames, texts),
        data,
    )


def _drafted(one: Decoded) -> pd.DataFrame:
    """Return a row for each run whose drafter stops, and for those that differ in this only."""
    shown = [None if tree is None else tree["shown"] for tree in one.runs["tree"]]
    runs = one.runs.assign(tree=pd.Series(shown, one.runs.index, dtype=object))
    stops = runs["drafting"].notna()
    settings = set(runs.loc[stops, SAME].itertuples(index=False, name=None))
    rows: list[dict[str, Any]] = []
    for run in runs.index:
        if tuple(runs.loc[run, SAME]) not in settings:
            continue
        calls = one.calls[one.calls["run"] == run]
        tested = calls["tested"].sum()
        rows.append(
            {
                **runs.loc[run, ["method", "drafting", *SAME]].to_dict(),
                "calls": len(calls),
                "drafted": float(calls["drafted"].mean()),
                "wasted": float((calls["drafted"] - calls["accepted"]).mean()),
                "tokens": float(calls["emitted"].mean()),
                "precision": calls["accepted"].sum() / tested if tested else float("nan"),
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS)
