"""Table of what is certified along the greedy answers, and along those that a rule emitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..decoding.metrics import Decoded
from ..statistics.bootstrap import PromptBootstrap, few
from .decoding_tables import method_sections, together
from .notes import few_notes
from .table import Table
from .text import number_text, share_text

FLAGS = ("certified", "accepted")


def along_table(
    decoded: Sequence[Decoded], resamples: int, confidence: float, seed: int
) -> Table | None:
    """Return the shares of steps certified and accepted; None where no rule was decoded with."""
    frames = [_shares(one, (resamples, confidence, seed)) for one in decoded]
    data = together(decoded, frames)
    if data.empty:
        return None

    def texts(row: pd.Series) -> list[str]:
        limits = (share_text(row[f"certified_change_{end}"]) for end in ("low", "high"))
        return [
            str(row["draft_length"]),
            *(share_text(row[f"certified_{where}"]) for where in ("greedy", "own")),
            " to ".join(limits),
            *(share_text(row[f"accepted_{where}"]) for where in ("greedy", "own")),
            *(number_text(row[f"kl_{where}"]) for where in ("greedy", "own")),
        ]

    return Table(
        "decoding_along",
        "Certified along what is emitted",
        "A relaxed rule's answer leaves the target's greedy one. Both models read every answer "
        "again: the share of steps that are certified (KL(p‖q) below the rule's certificate), the "
        "share that the rule accepts, and the median KL, along the greedy answers and along those "
        "that the rule emitted. Between: by how much the certified share changes, interval over "
        "prompts.",
        "Method",
        [("", 1), ("certified along", 3), ("accepted along", 2), ("median KL along", 2)],
        ["γ", "greedy", "own", "change", "greedy", "own", "greedy", "own"],
        method_sections(decoded, frames, texts),
        data,
        few_notes(one.prompts for one in decoded),
    )


def _shares(one: Decoded, statistics: tuple[int, float, int]) -> pd.DataFrame:
    """Return a row for each run that was read along."""
    rows = []
    for run, steps in one.along.groupby("run", sort=True):
        names, prompts = np.unique(steps["prompt_id"].to_numpy(), return_inverse=True)
        bootstrap = PromptBootstrap(np.arange(len(names)), *statistics)
        row: dict[Any, Any] = one.runs.loc[run, ["method", "draft_length"]].to_dict()
        own = steps["own"].to_numpy()
        for name in FLAGS:
            draws = []
            for where, chosen in (("greedy", ~own), ("own", own)):
                flags = steps[name].to_numpy()[chosen]
                above = np.bincount(prompts[chosen], weights=flags, minlength=len(names))
                below = np.bincount(prompts[chosen], minlength=len(names))
                row[f"{name}_{where}"] = float(above.sum() / below.sum())
                draws.append(bootstrap.sums(above) / bootstrap.sums(below))
            low, high = bootstrap.interval(draws[1] - draws[0])
            row |= {f"{name}_change_low": float(low), f"{name}_change_high": float(high)}
        for where, chosen in (("greedy", ~own), ("own", own)):
            row[f"kl_{where}"] = float(np.median(steps["kl"].to_numpy()[chosen]))
        rows.append({**row, "prompts": len(names), "few_prompts": few(len(names))})
    return pd.DataFrame(rows)
