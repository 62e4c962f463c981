"""Plain text as LaTeX, as the name of a LaTeX macro and as cells of a CSV file."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pandas as pd

LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "–": "--",
}
LATEX_MATHEMATICS = {
    "*": "^{*}",
    ">": ">",
    "<": "<",
    "=": "=",
    "+": "+",
    "≤": r"\le",
    "≥": r"\ge",
    "≠": r"\ne",
    "∞": r"\infty",
    "‖": r"\|",
    "α": r"\alpha",
    "θ": r"\theta",
    "δ": r"\delta",
    "ε": r"\epsilon",
    "₀": "_0",
    "₁": "_1",
    "−": "-",
    "√": r"\surd",
    "×": r"\times",
    "γ": r"\gamma",
    "ρ": r"\rho",
    "τ": r"\tau",
}
DIGITS = dict(
    zip(
        "0123456789.-",
        (
            *("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine"),
            *("Point", "Minus"),
        ),
        strict=True,
    )
)

FORMULA = re.compile(r"^(?:[=@\t\r]|[+-](?![\d.e+-]*$))")  # what a spreadsheet would compute


def latex(text: str) -> str:
    r"""Return plain text as LaTeX: special characters escaped, symbols in mathematics.

    >>> print(latex("Mult. (α = 0.5) > 10 %"))
    Mult. ($\alpha=0.5$) $>$ 10 \%
    >>> print(latex("2.76e-4"))
    $2.76\cdot10^{-4}$
    """
    assigned = re.compile(r"(\b[tm]|[αθδε]₀?) = ([\d.]+)")
    parts = assigned.split(one_line(text))
    done = [_numbers(parts[0])]
    for at in range(1, len(parts), 3):
        symbol = "".join(LATEX_MATHEMATICS.get(part, part) for part in parts[at])
        done.append(f"${symbol}={parts[at + 1]}${_numbers(parts[at + 2])}")
    return "".join(done)


def _numbers(text: str) -> str:
    """Escape a text; powers of ten are written as such."""
    parts = re.split(r"(?<![\w.])(\d\.\d+)e(-?\d+)(?!\w)", text)
    powers = (
        rf"${parts[at]}\cdot10^{{{parts[at + 1]}}}${_escape(parts[at + 2])}"
        for at in range(1, len(parts), 3)
    )
    return "".join([_escape(parts[0]), *powers])


def _escape(text: str) -> str:
    done = []
    for mathematics, part in itertools.groupby(text, LATEX_MATHEMATICS.__contains__):
        known = LATEX_MATHEMATICS if mathematics else LATEX
        escaped = "".join(known.get(character, character) for character in part)
        done.append(f"${escaped}$" if mathematics else escaped)
    return "".join(done)


def one_line(text: str) -> str:
    """Return a text on one line."""
    return re.sub(r"\s*[\r\n]\s*", " ", text)


def macro(*names: str) -> str:
    """Return the name of a LaTeX macro, which can hold letters only.

    >>> macro("Qwen3-1.7B", "additive t=0.1", "p5")
    'QwenThreeOnePointSevenBAdditiveTZeroPointOnePFive'
    """
    words = re.findall(r"[A-Za-z]+|[0-9.]|(?<==)-(?=[0-9])", " ".join(names))
    return "".join(DIGITS.get(word) or word[0].upper() + word[1:] for word in words)


def without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame for a CSV file: a text that a spreadsheet would compute gets an apostrophe.

    >>> frame = pd.DataFrame({"model": ["=1+1", "+x", "@y", "-", "a=b"], "value": [-1, 2, 3, 4, 5]})
    >>> without_formulas(frame)["model"].tolist()
    ["'=1+1", "'+x", "'@y", '-', 'a=b']
    """

    def safe(value: Any) -> Any:
        return FORMULA.sub(r"'\g<0>", value) if isinstance(value, str) else value

    escaped = frame.copy()
    for at, dtype in enumerate(frame.dtypes):
        if not pd.api.types.is_numeric_dtype(dtype):
            cells = frame.iloc[:, at].astype(object).map(safe, na_action="ignore")
            escaped.isetitem(at, cells.to_numpy())
    escaped.columns = pd.Index([safe(name) for name in frame.columns])
    return escaped
