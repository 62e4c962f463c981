"""Escaping of plain text for LaTeX and for the cells of a CSV file."""

from __future__ import annotations

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
PARTS = re.compile(
    r"(?P<symbol>\b[tm]|[αθδε]₀?) = (?P<value>[\d.]+)"
    r"|(?<![\w.])(?P<digits>\d\.\d+)e(?P<power>-?\d+)(?!\w)"
    rf"|(?P<mathematics>[{re.escape(''.join(LATEX_MATHEMATICS))}]+)"
    rf"|(?P<special>[{re.escape(''.join(LATEX))}])"
)
FORMULA = re.compile(r"^(?:[=@\t\r]|[+-](?![\d.e+-]*$))")  # text that a spreadsheet evaluates


def latex(text: str) -> str:
    r"""Return plain text as LaTeX: special characters escaped, symbols in mathematics.

    >>> print(latex("Mult. (α = 0.5) > 10 %"))
    Mult. ($\alpha=0.5$) $>$ 10 \%
    >>> print(latex("2.76e-4"))
    $2.76\cdot10^{-4}$
    """

    def symbols(characters: str) -> str:
        return "".join(LATEX_MATHEMATICS.get(character, character) for character in characters)

    def written(part: re.Match[str]) -> str:
        if part["symbol"]:
            return f"${symbols(part['symbol'])}={part['value']}$"
        if part["digits"]:
            return rf"${part['digits']}\cdot10^{{{part['power']}}}$"
        return (
            f"${symbols(part['mathematics'])}$" if part["mathematics"] else LATEX[part["special"]]
        )

    return PARTS.sub(written, re.sub(r"\s*[\r\n]\s*", " ", text))


def without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame for a CSV file: text that a spreadsheet would evaluate gets an apostrophe.

    >>> frame = pd.DataFrame({"model": ["=1+1", "+x", "@y", "-", "a=b"], "value": [-1, 2, 3, 4, 5]})
    >>> without_formulas(frame)["model"].tolist()
    ["'=1+1", "'+x", "'@y", '-', 'a=b']
    """

    def safe(value: Any) -> Any:
        return FORMULA.sub(r"'\g<0>", value) if isinstance(value, str) else value

    return frame.map(safe, na_action="ignore").rename(columns=safe)
