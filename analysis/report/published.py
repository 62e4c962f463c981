"""The tables printed in the paper (arXiv 2606.30265v1, Tables 1 to 6), as data.

Transcribed as printed, for comparison only: nothing is fitted to them. Keys are the label of a
target, then a rule or a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..rules import Additive, Multiplicative, Rule, StrictGreedy, TopMAdditive, Tree, Typical

ABOVE = math.inf  # printed as ">100", the cap of Tables 5 and 6
CAP = 100.0
STATISTICS = ("mean", "median", "p5", "p25")
EPS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.69)
P5_AT = ("p5",)
RUNS = "5 and 6"  # tables of one layout, one a model

# Table 1: probability of the k most probable tokens, by k: STATISTICS
TOP_PROBABILITY: dict[str, dict[int, tuple[float, ...]]] = {
    "Qwen3-1.7B": {
        1: (0.845, 0.969, 0.343, 0.846),
        3: (0.963, 1.000, 0.715, 0.984),
        5: (0.980, 1.000, 0.792, 0.995),
        10: (0.991, 1.000, 0.901, 0.999),
        25: (0.997, 1.000, 0.964, 1.000),
    },
    "Qwen3-4B": {
        1: (0.871, 0.988, 0.391, 0.886),
        3: (0.974, 1.000, 0.787, 0.992),
        5: (0.988, 1.000, 0.852, 0.998),
        10: (0.995, 1.000, 0.927, 1.000),
        25: (0.998, 1.000, 0.976, 1.000),
    },
}

# Table 2: certificates in nats, by rule: STATISTICS
CERTIFICATES: dict[str, dict[Rule, tuple[float, ...]]] = {
    "Qwen3-1.7B": {
        StrictGreedy(): (0.438, 0.559, 0.006, 0.160),
        Additive(0.1): (0.445, 0.559, 0.023, 0.178),
        Additive(0.3): (0.482, 0.573, 0.102, 0.272),
        Multiplicative(0.5): (0.464, 0.560, 0.061, 0.235),
        Multiplicative(0.1): (0.555, 0.610, 0.279, 0.435),
        Typical(0.1, 0.09): (0.598, 0.646, 0.375, 0.522),
        Tree(2): (0.772, 0.962, 0.071, 0.448),
        Tree(4): (1.213, 1.456, 0.249, 0.862),
        Tree(8): (1.736, 2.038, 0.531, 1.355),
    },
    "Qwen3-4B": {
        StrictGreedy(): (0.468, 0.619, 0.007, 0.217),
        Additive(0.1): (0.475, 0.619, 0.025, 0.236),
        Additive(0.3): (0.505, 0.625, 0.107, 0.315),
        Multiplicative(0.5): (0.492, 0.619, 0.066, 0.288),
        Multiplicative(0.1): (0.573, 0.643, 0.296, 0.465),
        Typical(0.1, 0.09): (0.606, 0.664, 0.378, 0.536),
        Tree(2): (0.820, 1.036, 0.099, 0.538),
        Tree(4): (1.276, 1.541, 0.327, 0.995),
        Tree(8): (1.814, 2.126, 0.663, 1.520),
    },
}

PAPERS = tuple(TOP_PROBABILITY)  # the models
TABLE2 = tuple(CERTIFICATES["Qwen3-1.7B"])  # its rules, which Tables 5 and 6 show as well

TS, ALPHAS, MS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5), (0.9, 0.7, 0.5, 0.3, 0.2, 0.1), (2, 4, 6, 8)
# Tables 3 and 4: their rules, and p5 of the certificates in nats by rule
P5_RULES: tuple[Rule, ...] = (
    *map(Additive, TS),
    *map(Multiplicative, ALPHAS),
    *(TopMAdditive(m, t) for t in TS[:4] for m in MS),
)
P5: dict[str, dict[Rule, float]] = {
    model: dict(zip(P5_RULES, [*additive, *multiplicative, *top_m], strict=True))
    for model, additive, multiplicative, top_m in (
        (
            "Qwen3-1.7B",
            (0.008, 0.011, 0.023, 0.056, 0.102, 0.217),
            (0.008, 0.027, 0.061, 0.125, 0.176, 0.279),
            (
                *(0.008, 0.008, 0.008, 0.008),  # t = 0.01, m = 2, 4, 6, 8
                *(0.011, 0.012, 0.012, 0.012),
                *(0.018, 0.023, 0.024, 0.024),
                *(0.037, 0.054, 0.056, 0.057),
            ),
        ),
        (
            "Qwen3-4B",
            (0.008, 0.014, 0.025, 0.061, 0.107, 0.218),
            (0.008, 0.030, 0.066, 0.141, 0.196, 0.296),
            (
                *(0.011, 0.011, 0.011, 0.011),
                *(0.014, 0.015, 0.015, 0.015),
                *(0.023, 0.027, 0.027, 0.027),
                *(0.045, 0.060, 0.063, 0.063),
            ),
        ),
    )
}

# Tables 5 and 6: mean certifiable acceptance length in tokens, by rule: EPS
RUN_LENGTHS: dict[str, dict[Rule, tuple[float, ...]]] = {
    "Qwen3-1.7B": {
        StrictGreedy(): (12.06, 6.51, 4.83, 3.53, 2.90, 2.49, 2.16, 1.36),
        Additive(0.1): (34.57, 8.37, 5.41, 3.71, 2.97, 2.51, 2.16, 1.37),
        Additive(0.3): (ABOVE, ABOVE, 17.79, 5.53, 3.55, 2.73, 2.23, 1.38),
        Multiplicative(0.5): (ABOVE, 26.16, 8.42, 4.46, 3.27, 2.61, 2.17, 1.37),
        Multiplicative(0.1): (ABOVE, ABOVE, ABOVE, 63.18, 13.07, 5.21, 2.86, 1.38),
        Typical(0.1, 0.09): (ABOVE, ABOVE, ABOVE, ABOVE, 45.38, 12.57, 4.61, 1.43),
        Tree(2): (57.15, 22.25, 13.57, 8.02, 5.81, 4.36, 3.55, 2.72),
        Tree(4): (ABOVE, 68.99, 41.51, 21.95, 14.14, 10.31, 7.88, 5.31),
        Tree(8): (ABOVE, ABOVE, 90.03, 54.67, 36.46, 25.27, 18.78, 11.93),
    },
    "Qwen3-4B": {
        StrictGreedy(): (13.65, 7.42, 5.60, 4.07, 3.31, 2.81, 2.44, 1.47),
        Additive(0.1): (36.13, 9.69, 6.38, 4.31, 3.40, 2.84, 2.44, 1.47),
        Additive(0.3): (ABOVE, 98.09, 19.67, 6.39, 4.05, 3.07, 2.51, 1.48),
        Multiplicative(0.5): (ABOVE, 34.21, 10.44, 5.32, 3.78, 2.97, 2.45, 1.47),
        Multiplicative(0.1): (ABOVE, ABOVE, ABOVE, 74.15, 16.24, 6.30, 3.30, 1.49),
        Typical(0.1, 0.09): (ABOVE, ABOVE, ABOVE, 99.57, 45.57, 13.33, 5.06, 1.55),
        Tree(2): (64.57, 28.39, 17.25, 10.24, 7.30, 5.27, 4.19, 3.16),
        Tree(4): (ABOVE, 84.46, 54.05, 29.54, 19.03, 13.82, 10.44, 6.65),
        Tree(8): (ABOVE, ABOVE, ABOVE, 73.77, 50.31, 35.21, 26.67, 16.14),
    },
}


def printed_rows(paper: str) -> list[tuple[str, Rule | int, str | float, float]]:
    """Return every number printed of one model: table, row (rule or k), column, value."""
    p5 = {rule: (value,) for rule, value in P5[paper].items()}
    tables: list[tuple[str, Mapping[Any, tuple[float, ...]], tuple[Any, ...]]] = [
        ("1", TOP_PROBABILITY[paper], STATISTICS),
        ("2", CERTIFICATES[paper], STATISTICS),
        ("3", {rule: cells for rule, cells in p5.items() if type(rule) is not TopMAdditive}, P5_AT),
        ("4", {rule: cells for rule, cells in p5.items() if type(rule) is TopMAdditive}, P5_AT),
        (RUNS, RUN_LENGTHS[paper], EPS),
    ]
    return [
        (table, row, column, value)
        for table, known, columns in tables
        for row, cells in known.items()
        for column, value in zip(columns, cells, strict=True)
    ]


@cache
def _by_cell() -> dict[tuple[str, Rule | int, str | float], float]:
    return {
        (paper, row, column): value
        for paper in PAPERS
        for _, row, column, value in printed_rows(paper)
    }


def printed(target: str, row: Rule | int, column: str | float) -> float:
    """Return the number printed of a target; NaN where the paper has none.

    Args:
        target: its printed name.
        row: a rule, or the k of Table 1.
        column: a statistic, or ε in Tables 5 and 6 (inf above their cap).

    >>> printed("Qwen3-4B", 3, "p5"), printed("mini", 3, "p5"), printed("Qwen3-4B", Tree(2), 0.01)
    (0.787, nan, 64.57)
    """
    return _by_cell().get((target, row, column), math.nan)
