"""What a sweep over drafters compares: a row a target, from the files of each report."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.report.text import limits
from analysis.rules import StrictGreedy
from pipeline.store.artifacts import Artifact

Row = dict[str, Any]


def rows_of_targets(artifact: Artifact, targets: list[str], drafter: str | None) -> list[Row]:
    """Return a row a target: what its drafter does under strict greedy, which loses nothing.

    Of stage acceptance: the accepted steps, those that some divergence certifies, and the tokens a
    call of drafts of any length. Of stage decoding, at the draft length that was fastest at
    temperature 0: the tokens a call, the cost of a drafted token and the speedup. Without a
    drafter: the statistics of Table 2.
    """

    def table(name: str) -> pd.DataFrame:
        file = artifact.directory / f"{name}.csv"
        frame = pd.read_csv(file) if file.is_file() else pd.DataFrame(columns=["target", "rule"])
        return frame[frame["rule"] == StrictGreedy().label]

    accepted, covered = table("tables/acceptance"), table("tables/divergences")
    if not covered.empty:
        covered = covered[covered["divergence"] == "union"]
    certificates, decoded = table("tables/table2"), table("timings/tables/decoding_speed")
    rows = []
    for target in targets:
        row: Row = {"target": target, "drafter": drafter or "none"}
        for frame, name, shown in (
            (certificates if accepted.empty else certificates[:0], "median", "median"),
            (accepted, "acceptance", "accepted"),
            (accepted if covered.empty else covered, "certified", "certified"),
        ):
            if not frame.empty:
                found = frame[(frame["target"] == target) & (frame["statistic"] == name)].iloc[0]
                ends = (found["ci_low"], found["ci_high"])
                row |= {"prompts": int(found["prompts"]), shown: found["value"]}
                row |= dict(zip(limits(shown), ends, strict=True))
        if not decoded.empty:
            runs = decoded.query("target == @target and drafter == 'model' and temperature == 0")
            for best in runs.sort_values("speedup").tail(1).to_dict("records"):
                row |= {"γ": int(best["draft_length"]), "tokens_per_call": best["tokens_per_call"]}
                ends = (best["ci_low"], best["ci_high"])
                row |= {"speedup": best["speedup"]} | dict(
                    zip(limits("speedup"), ends, strict=True)
                )
                row["cost"] = best["rho"]
        rows.append(row)
    return rows
