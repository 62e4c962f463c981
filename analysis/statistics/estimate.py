"""A statistic with its interval over prompts, and the columns that hold the two in a frame."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    import pandas as pd


class Estimate(NamedTuple):
    """A statistic and the ends of its interval, NaN if unknown: numbers, or arrays of one shape.

    >>> Estimate(1.5, 1.0, 2.0).columns("speed")
    {'speed': 1.5, 'speed_ci_low': 1.0, 'speed_ci_high': 2.0}
    """

    value: Any
    low: Any = math.nan
    high: Any = math.nan

    def columns(self, column: str = "value") -> dict[str, Any]:
        """Return the statistic and its ends, by column name."""
        return dict(zip((column, *interval_columns(column)), self, strict=True))

    @classmethod
    def read(
        cls,
        row: Mapping[Any, Any] | pd.DataFrame,
        column: str = "value",
        ends: tuple[str, str] | None = None,
    ) -> Self:
        """Return the estimate in a row, or the estimates (N,) in a frame.

        `ends` are the columns of the interval; `interval_columns` by default.

        >>> Estimate.read({"value": 1.5, "ci_low": 1.0, "ci_high": 2.0})
        Estimate(value=1.5, low=1.0, high=2.0)
        """
        low, high = ends or interval_columns(column)
        return cls(row[column], row[low], row[high])


def interval_columns(column: str) -> tuple[str, str]:
    """Return the columns of the interval of the statistic in `column`.

    >>> interval_columns("value"), interval_columns("mean")
    (('ci_low', 'ci_high'), ('mean_ci_low', 'mean_ci_high'))
    """
    if column == "value":
        return "ci_low", "ci_high"
    return f"{column}_ci_low", f"{column}_ci_high"


def censored_column(column: str) -> str:
    """Return the column that says whether the length in `column` is a lower bound.

    >>> censored_column("value"), censored_column("length")
    ('censored', 'length_censored')
    """
    return "censored" if column == "value" else f"{column}_censored"
