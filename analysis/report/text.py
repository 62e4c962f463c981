"""Text of values, intervals and parameters in tables, and the warning about few prompts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal
from typing import Any

import pandas as pd

from ..statistics.bootstrap import FEW_PROMPTS
from ..statistics.estimate import Estimate

CAP = 100.0  # tokens; the paper prints ">100" above it
UNDEFINED = "–"
MAX_DIGITS = 12  # most decimals, for an end that is close to a value where something is decided
NEAR = 1e-12  # two numbers are equal up to rounding
SYMBOLS = {"alpha": "α", "theta": "θ", "eps0": "ε₀", "delta0": "δ₀"}  # others by name


def symbol(parameter: str) -> str:
    """Return the printed name of a rule's parameter."""
    return SYMBOLS.get(parameter, parameter)


def number_text(value: float, digits: int = 2) -> str:
    """Return a number with a fixed number of decimals.

    >>> number_text(0.4376, 3), number_text(-0.001), number_text(-math.inf), number_text(math.nan)
    ('0.438', '0.00', '-∞', '–')
    """
    return UNDEFINED if math.isnan(value) else f"{value:z.{digits}f}".replace("inf", "∞")


def small_text(value: float, digits: int) -> str:
    """Return a number that is not negative, with a fixed number of decimals; only 0 prints as 0.

    >>> small_text(0.00031, 4), small_text(0.00003, 4), small_text(0.0, 4)
    ('0.0003', '< 0.0001', '0.0000')
    """
    least = 10.0**-digits
    return (
        f"< {number_text(least, digits)}" if 0 < value < least / 2 else number_text(value, digits)
    )


def decimals(values: Iterable[float], most: int = 5) -> int:
    """Return the number of decimals for a column of numbers, from 3 to `most`.

    They show two digits of the smallest positive number of the column, if `most` allows.

    >>> decimals([0.438, 0.0187]), decimals([0.438, 0.00276]), decimals([math.inf, 0.0])
    (3, 4, 3)
    """
    positive = [value for value in values if 0 < value < math.inf]
    least = min(positive, default=1.0)
    return min(most, max(3, 1 - math.floor(math.log10(least))))


def rounded_down(value: float, digits: int = 2) -> float:
    """Return a nonnegative number rounded down to significant digits.

    >>> rounded_down(0.023576), rounded_down(3.69e-6), rounded_down(0.0), rounded_down(math.inf)
    (0.023, 3.6e-06, 0.0, inf)
    """
    exact = Decimal(value)
    if exact == 0 or not exact.is_finite():
        return value
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() + 1 - digits), ROUND_FLOOR))


def run_text(value: float, censored: bool = False) -> str:
    """Return a run length in tokens: ">100" above the paper's cap, "≥" for a lower bound.

    >>> run_text(17.414), run_text(128.0), run_text(59.4, True)
    ('17.41', '>100', '≥ 59.40')
    """
    return at_least(f">{CAP:.0f}" if value > CAP else number_text(value), censored)


def at_least(text: str, censored: bool) -> str:
    """Return a printed length, with "≥" where it is a lower bound.

    >>> at_least("5.0", True), at_least("∞", True)
    ('≥ 5.0', '∞')
    """
    is_marked = text.startswith((">", "∞", UNDEFINED))
    return f"≥ {text}" if censored and not is_marked else text


def percent_text(share: float) -> str:
    """Return a share in percent with one decimal; only 0 and 1 are printed as 0 and 100 %.

    >>> percent_text(0.123), percent_text(0.99999), percent_text(1e-5), percent_text(math.nan)
    ('12.3 %', '> 99.9 %', '< 0.1 %', '–')
    """
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return UNDEFINED if math.isnan(share) else f"{100 * share:.1f} %"


def share_texts(data: pd.DataFrame, digits: Mapping[str, int]) -> list[str]:
    """Return the value of each row of a tidy frame as text: shares in percent.

    Statistics in `digits` are no shares, and have this number of decimals.
    """
    return [
        number_text(value, digits[statistic]) if statistic in digits else percent_text(value)
        for statistic, value in zip(data["statistic"], data["value"], strict=True)
    ]


def few_notes(prompts: Iterable[int]) -> list[str]:
    """Return a warning if intervals of any target or run come from few prompts, else nothing."""
    least = min(prompts, default=FEW_PROMPTS)
    if least >= FEW_PROMPTS:
        return []
    if least < 2:
        return ["Few prompts: there is no interval over a single prompt."]
    return [
        f"Few prompts: intervals come from {least} prompts, fewer than {FEW_PROMPTS}. Those of "
        "quantiles (p5, p25, median) and of several methods at once are still too narrow."
    ]


def estimate_text(
    estimate: Estimate,
    *,
    digits: int = 2,
    unit: str = "",
    percent: bool = False,
    distinct_from: Sequence[float] = (),
    zero_width: bool = False,
) -> str:
    """Return a number with its unit, and with its interval if it has a width, or `zero_width`.

    Args:
        estimate: a number and the ends of its interval.
        digits: decimals, at least.
        unit: printed right after the number.
        percent: the number is a share, printed in percent with one decimal.
        distinct_from: values at which something is decided, such as 1 for a speedup; the ends get
            enough digits to differ from them in print.
        zero_width: print an interval that has no width, too.

    >>> estimate_text(Estimate(1.204, 1.1, 1.3)), estimate_text(Estimate(1.0, 1.0, 1.0), unit="×")
    ('1.20 [1.10, 1.30]', '1.00×')
    >>> estimate_text(Estimate(0.653, 0.627, 0.679), percent=True)
    '65.3 % [62.7, 67.9]'
    >>> estimate_text(Estimate(1.087, 1.0042, 1.171), distinct_from=[1])
    '1.087 [1.004, 1.171]'
    """
    value, low, high = estimate
    if percent:
        text = percent_text(value)
        ends = [number_text(100 * end, 1) for end in (low, high)]
    else:
        digits = _deciding_digits((low, high), distinct_from, digits)
        text = number_text(value, digits)
        ends = [number_text(end, digits) for end in (low, high)]
    if unit and not math.isnan(value):
        text += unit
    has_interval = low <= high if zero_width else low < high
    return f"{text} [{', '.join(ends)}]" if has_interval else text


def _deciding_digits(ends: Iterable[float], distinct_from: Sequence[float], least: int) -> int:
    """Return the fewest decimals with which no end is printed as a value that it differs from."""
    pairs = [
        (end, value)
        for end in ends
        for value in distinct_from
        if not math.isclose(end, value, abs_tol=NEAR)
    ]
    enough = (
        digits
        for digits in range(least, MAX_DIGITS)
        if all(number_text(end, digits) != number_text(value, digits) for end, value in pairs)
    )
    return next(enough, MAX_DIGITS)


def estimate_texts(estimates: Estimate, **form: Any) -> list[str]:
    """Return the `estimate_text` of each of N estimates, whose value and ends are (N,)."""
    return [estimate_text(Estimate(*row), **form) for row in zip(*estimates, strict=True)]


def speed_texts(speedups: Estimate) -> list[str]:
    """Return the cells of speedups, with enough digits to tell the ends from 1."""
    return estimate_texts(speedups, unit="×", distinct_from=[1])
