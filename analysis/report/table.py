"""What a report consists of: tables and figures with their captions, and sections of both.

A table has its numbers twice: `data`, tidy, for the CSV file, and `cells`, as text, for LaTeX and
HTML. `analysis.report.text` formats them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure as Drawing

from . import style
from .text import UNDEFINED

SPECIAL = {
    **{special: f"\\{special}" for special in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "–": "--",
    "…": r"\dots{}",
    "\n": " ",
}
SYMBOLS = {
    **{sign: sign for sign in "<>"},
    "≤": r"\le",
    "≥": r"\ge",
    "≠": r"\ne",
    "−": "-",
    "×": r"\times",
    "∞": r"\infty",
    "‖": r"\|",
    "α": r"\alpha",
    "γ": r"\gamma",
    "δ": r"\delta",
    "ε": r"\varepsilon",
    "θ": r"\theta",
    "ρ": r"\rho",
    "τ": r"\tau",
    **{
        subscript: f"_{{{plain}}}"
        for subscript, plain in zip("₀₁₂₃₄₅₆₇₈₉ᵢₖₘ", "0123456789ikm", strict=True)
    },
}
RAISED = dict(zip("⁺¹²ⁿᵞ", ["+", "1", "2", "n", r"\gamma"], strict=True))
ESCAPED = re.compile(
    rf"([{''.join(SYMBOLS)}]+)|([{''.join(RAISED)}]+)|[{re.escape(''.join(SPECIAL))}]"
)
# mean width of a letter, in points, of the LaTeX fonts for tables
FONTS = {r"\footnotesize": 4.2, r"\scriptsize": 3.7}
GAP = 6.0  # points between two columns
POINTS_PER_INCH = 72.27
FORMULA = re.compile(r"^(?=[=@\t\r]|[+-](?!([\d.]+(e[+-]?\d+)?)?$))")  # what a spreadsheet computes


@dataclass(frozen=True, eq=False)
class Table:
    """A table of a report."""

    name: str  # of its files, for instance "table2"
    title: str  # its heading
    caption: str  # plain text
    data: pd.DataFrame  # tidy numbers, as written to the CSV file
    # the cells as text. The name of its (last) index level is the heading of the first column
    cells: pd.DataFrame
    printed_cells: pd.DataFrame | None = None  # the cells for LaTeX, if they differ from `cells`

    def html(self) -> str:
        """Return the table in HTML, of class `printed`; its texts are escaped."""
        with pd.option_context("display.max_colwidth", None):
            text = str(_headed(self.cells).to_html(border=0, classes="printed"))
        return re.sub("<th([^>]*)></th>", r"<td\1></td>", text)  # no heading

    def latex(self) -> str:
        """Return the table as a LaTeX float; its first line names the packages that it needs.

        It is one column wide where it fits, else as wide as the page, in a small font and scaled
        down if it has to be.
        """
        cells = self.cells if self.printed_cells is None else self.printed_cells
        headed = _headed(cells)
        layout = _layout(headed)
        headed = headed.rename(index=latex, columns=latex).map(latex)
        headed.columns = headed.columns.set_names(
            [name and latex(name) for name in headed.columns.names]
        )
        tabular = headed.to_latex(
            column_format="l" * headed.index.nlevels + "r" * headed.shape[1],
            multicolumn_format="c",
            multirow=False,
            escape=False,
        ).rstrip()
        packages = ["booktabs"]
        if layout.is_scaled:
            packages.append("graphicx")
            tabular = f"\\resizebox{{\\textwidth}}{{!}}{{%\n{tabular}}}"
        lines = [
            f"% \\usepackage{{{','.join(packages)}}}",
            f"\\begin{{{layout.environment}}}[t]",
            "\\centering",
            f"\\caption{{{latex(self.caption)}}}",
            f"\\label{{tab:{self.name}}}",
            layout.font,
            "\\setlength{\\tabcolsep}{3pt}",
            tabular,
            f"\\end{{{layout.environment}}}",
        ]
        return "\n".join(lines) + "\n"

    def files(self) -> dict[str, bytes]:
        """Return the contents of the table's files by path."""
        texts = {"csv": csv_text(self.data), "tex": self.latex()}
        return {f"tables/{self.name}.{kind}": text.encode() for kind, text in texts.items()}


class Layout(NamedTuple):
    """How a table is set in LaTeX."""

    environment: str  # table: in a column; table*: across the page
    font: str
    is_scaled: bool  # to the width of the page


def _layout(headed: pd.DataFrame) -> Layout:
    """Return the first layout in which the texts fit, by their number of characters."""
    index = headed.index.to_frame()
    names = [[str(name)] for name in headed.columns.get_level_values(-1)]
    texts = [[str(text) for text in index[name]] for name in index]
    texts += [[*name, *map(str, headed.iloc[:, number])] for number, name in enumerate(names)]
    letters = sum(max(map(len, column), default=0) for column in texts)
    for environment, available in (("table", style.COLUMN), ("table*", style.TEXT)):
        for font, letter in FONTS.items():
            width = letter * letters + GAP * len(texts)
            if width <= available * POINTS_PER_INCH:
                return Layout(environment, font, is_scaled=False)
    return Layout("table*", font, is_scaled=True)


def _headed(cells: pd.DataFrame) -> pd.DataFrame:
    """Return `cells` with the heading of its first column in the last row of the header."""
    cells = cells.where(cells.notna(), UNDEFINED)
    above = [None] * (cells.columns.nlevels - 1)
    cells.columns = cells.columns.set_names([*above, cells.index.names[-1] or ""])
    cells.index = cells.index.set_names([None] * cells.index.nlevels)
    return cells


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure of a report, which `draw` returns. Name, title and caption are as in `Table`."""

    name: str
    title: str
    caption: str
    draw: Callable[[], Drawing]

    def files(self, titles: bool = True) -> dict[str, bytes]:
        """Return the contents of the figure's files by path.

        Without `titles` the panels of the PDF have none; those of the PNG on the page always do.
        """
        drawing = self.draw()
        printed = drawing
        if not titles:
            printed = self.draw()
            for axes in printed.axes:
                axes.set_title("")
        return {
            f"figures/{self.name}.pdf": style.render(printed, "pdf"),
            f"figures/{self.name}.png": style.render(drawing, "png"),
        }


@dataclass(frozen=True, eq=False)
class Section:
    """A section of a report."""

    title: str  # its heading
    items: Sequence[Table | Figure | None]  # tables and figures, in their order; None is left out
    notes: Sequence[str] = ()  # plain sentences below the heading
    # whether it depends on the clock. Its files are in timings/, outside all digests
    timed: bool = False

    @property
    def place(self) -> str:
        """Directory of its files within the report, with a slash; empty for the report's own."""
        return "timings/" if self.timed else ""


def latex(text: object) -> str:
    r"""Return plain text for LaTeX: special characters escaped, symbols in mathematics.

    >>> print(latex("Additive (t = 0.1), α & γ > 10 %, aⁿ⁺¹"))
    Additive (t = 0.1), $\alpha$ \& $\gamma$ $>$ 10 \%, a$^{n+1}$
    """

    def escaped(part: re.Match[str]) -> str:
        if part[1]:
            formula = "".join(SYMBOLS[sign] for sign in part[1])
            return f"${formula.replace('}_{', '')}$"  # one subscript, of all its digits
        if part[2]:
            return f"$^{{{''.join(RAISED[sign] for sign in part[2])}}}$"
        return SPECIAL[part[0]]

    return ESCAPED.sub(escaped, str(text))


def csv_text(frame: pd.DataFrame, digits: str | None = "%.6g") -> str:
    r"""Return a tidy frame as CSV, in which a missing value is an empty cell.

    Text that a spreadsheet would evaluate gets an apostrophe.

    >>> csv_text(pd.DataFrame({"model": ["=1", "+1+1", "-", "a=b"], "value": [-1e5, 2, 3, None]}))
    "model,value\n'=1,-100000\n'+1+1,2\n-,3\na=b,\n"
    """

    def safe(value: Any) -> Any:
        return FORMULA.sub("'", value) if isinstance(value, str) else value

    plain = frame.map(safe, na_action="ignore").rename(columns=safe)
    return str(plain.to_csv(index=False, float_format=digits, lineterminator="\n"))


def cells_to_grid(
    data: pd.DataFrame, rows: str | list[str], columns: str | list[str], cells: Iterable[str]
) -> pd.DataFrame:
    """Arrange cells in a grid by key columns of a tidy frame, in the order of their appearance.

    `cells` has the printed text of each row of `data`. `rows` and `columns` name its key columns;
    two rows with the same keys are an error.
    """

    def in_order(names: str | list[str]) -> pd.Index:
        if isinstance(names, list):
            return pd.MultiIndex.from_frame(data[names].drop_duplicates())
        once: pd.Index = pd.Index(data[names].drop_duplicates())
        return once

    grid = data.assign(cell=list(cells)).pivot(index=rows, columns=columns, values="cell")
    return grid.reindex(index=in_order(rows), columns=in_order(columns))


def rows_by_method(
    data: pd.DataFrame, columns: Mapping[Any, Sequence[str]], rows: Sequence[str] = ("method",)
) -> pd.DataFrame:
    """Return a frame of cells with a row for each row of `data`.

    `columns` has the cells by heading. Rows are named by the columns `rows` of `data`, and by their
    target first if there are several.
    """
    levels = list(rows)
    if len(data["target"].unique()) > 1:
        levels = ["target", *levels]
    names = pd.MultiIndex.from_frame(data[levels]).set_names(levels[-1].capitalize(), level=-1)
    table = pd.DataFrame({heading: list(cells) for heading, cells in columns.items()})
    return table.set_axis(names if len(levels) > 1 else names.get_level_values(0))


def concat_targets(parts: Iterable[tuple[str, pd.DataFrame]], key: str = "target") -> pd.DataFrame:
    """Concatenate named frames with equal columns; the first column, `key`, has the names."""
    frames = [frame.assign(**{key: name}) for name, frame in parts]
    if not frames:
        return pd.DataFrame()
    joined = pd.concat(frames, ignore_index=True)
    return joined[[key, *(column for column in joined if column != key)]]
