"""Certificates along a rule's own text beside those along the target's."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from analysis.acceptance.texts import text_statistics

RESAMPLES = (400, 0.95, 0)


def texts(rows: list[tuple[str, str, int, float, float]]) -> pd.DataFrame:
    """Texts of run 1, from prompt, text, place, certificate and KL; positions by order."""
    names = ["prompt_id", "text", "place", "certificate", "kl"]
    frame = pd.DataFrame(rows, columns=names).assign(run=1)
    frame["position"] = frame.groupby(["prompt_id", "text"]).cumcount()
    frame["top_probability"] = np.where(frame["text"] == "own", 0.6, 0.9)
    return frame.assign(entropy=frame["place"] + 1.0)


ROWS = [
    ("a", "target", 0, 0.2, 0.1), ("a", "target", 0, 0.1, 0.1),
    ("a", "target", 0, math.inf, math.inf),
    ("b", "target", 0, 0.3, 0.4),
    ("a", "own", 0, 0.05, 0.01), ("b", "own", 0, 0.3, math.inf),
    ("a", "rejected", 2, 0.4, math.nan), ("a", "rejected", 3, 0.9, math.nan),
    # behind the end of an answer there is no token to compare with
    ("b", "rejected", 3, 0.01, math.nan), ("c", "rejected", 3, 0.9, math.nan),
]  # fmt: skip


def test_statistics_by_hand() -> None:
    table = text_statistics(texts(ROWS), 0.1, RESAMPLES).set_index("statistic")
    wanted = {  # the KL of 0.1 is no smaller than an R of 0.1, and R > 0.1 is strict
        "certified": (3 / 4, 1 / 2, 1 / 2, 1 / 2),
        "by_drafter": (2 / 4, 1 / 2, math.nan, 1 / 2),
        "certificate": (0.2, 0.05, 0.01, 0.05),
        "entropy": (1, 1, 3.5, 1),
        "top_probability": (0.9, 0.6, 0.9, 0.6),
    }
    columns = ["alone", "own", "rejected", "emitted"]
    for name, values in wanted.items():
        row = table.loc[name]
        assert row[columns].tolist() == pytest.approx(values, nan_ok=True)
        assert row["own_difference"] == pytest.approx(values[1] - values[0])
        assert row["own_ci_low"] <= row["own_difference"] <= row["own_ci_high"]
        change = row["rejected_difference"]
        assert change == pytest.approx(values[2] - values[3], nan_ok=True)
    assert table.loc["certified", ["place_2", "place_3"]].tolist() == [1, 0]
    assert table.loc["top_probability", "own_ci_low"] == pytest.approx(-0.3)


def test_equal_texts_differ_by_nothing_and_intervals_are_paired_by_prompt() -> None:
    """Prompts differ by much, the two texts of each by 0.1: an unpaired interval would be wide."""
    rows = [(f"{at:02}", text, 0, at / 10, 0.0) for at in range(40) for text in ("target", "own")]
    same = text_statistics(texts(rows), 1.0, RESAMPLES)
    own = same[same["statistic"] == "certified"][["own_difference", "own_ci_low", "own_ci_high"]]
    assert own.to_numpy().tolist() == [[0, 0, 0]]
    shifted = texts(rows)
    shifted.loc[shifted["text"] == "own", "entropy"] += 0.1
    shifted["entropy"] += shifted["prompt_id"].astype(float)
    table = text_statistics(shifted, 1.0, RESAMPLES).set_index("statistic")
    ends = table.loc["entropy", ["own_ci_low", "own_ci_high"]].tolist()
    assert ends == pytest.approx([0.1, 0.1])
