"""Where strict greedy verification parts from the target alone: near-ties, or something is wrong.

Two passes over different numbers of tokens round differently. Where the two largest logits are
equal up to that, either may come first, and from there on both answers are the target's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from .metrics import Decoded

COLUMNS = ("run", "method", "draft_length", "prompt_id", "position", "gap")


def partings(decoded: Decoded) -> pd.DataFrame:
    """Return the first token at which each greedy answer differs from that of the target alone.

    Returns:
        run, method, draft_length, prompt_id, position (of the token in the answer) and gap, the
        difference of the target's two largest logits there; a row an answer that differs.
    """
    runs, rows = decoded.runs, list[dict[str, Any]]()
    trajectory = decoded.trajectory.set_index(["prompt_id", "position"])
    gaps = (trajectory["z1"] - trajectory["z2"]).to_dict()
    for run in greedy_runs(decoded):
        answers = decoded.data[decoded.data["run"] == run]
        alone = decoded.data[decoded.data["run"] == decoded.baseline(run)]
        lengths = alone.set_index("prompt_id")["n_tokens"]
        for answer in answers.to_dict("records"):
            prompt, position = answer["prompt_id"], answer["common_prefix"]
            if position < max(answer["n_tokens"], lengths[prompt]):
                row = runs.iloc[run]
                rows.append(
                    {
                        "run": run,
                        "method": row["method"],
                        "draft_length": int(row["draft_length"]),
                        "prompt_id": prompt,
                        "position": int(position),
                        "gap": gaps.get((prompt, position), np.nan),
                    }
                )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def greedy_runs(decoded: Decoded) -> list[int]:
    """Return the runs that draft and verify by strict greedy."""
    runs = decoded.runs
    strict = (runs["rule"] == "greedy") & (runs["temperature"] == 0) & (runs["drafter"] != "none")
    return np.flatnonzero(strict).tolist()
