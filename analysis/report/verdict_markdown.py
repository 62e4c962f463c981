"""The verdict and the table of methods as Markdown, to paste."""

from __future__ import annotations

from collections.abc import Sequence

from .table import Table
from .verdict_sentences import Advice


def verdict_markdown(advice: Sequence[Advice], methods: Table | None) -> str:
    """Return a paragraph for each target, and the table of methods in Markdown, to paste.

    Names are text: nothing in them makes a tag, a link or a cell.
    """
    blocks = []
    for of_target in advice:
        beside = [f"- {text}" for text in (*of_target.outlooks, *of_target.beside)]
        blocks.append("\n".join([of_target.sentence, *beside]))
    if methods is not None:
        flat = methods.cells.reset_index().rename(columns=str.lower)
        rows = [list(flat.columns), ["---"] * flat.shape[1], *flat.to_numpy().tolist()]
        cells = [[str(cell).replace("|", r"\|") for cell in row] for row in rows]
        blocks.append("\n".join(f"| {' | '.join(row)} |" for row in cells))
    return "\n\n".join(blocks).replace("<", r"\<").replace("](", r"]\(") + "\n"
