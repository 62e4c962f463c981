"""One answer from end to end: which of its steps a drafter's token passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Drawing
from matplotlib.font_manager import findfont, get_font
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from numpy.typing import NDArray

from .figure import Figure
from .style import GREEN, TEXT, VERMILION, YELLOW, styled

VERDICTS = {"certified": GREEN, "accepted, not certified": YELLOW, "rejected": VERMILION}
WIDTH = 92  # characters of a line of text
MONOSPACED = "DejaVu Sans Mono"  # comes with matplotlib


@styled
def along_figure(
    verdicts: Mapping[str, NDArray[np.int_]], tokens: Sequence[str], shown: str
) -> Figure:
    """Draw where along one answer steps are certified, accepted only, or rejected.

    Args:
        verdicts: by printed name of a rule, (n,) 0 certified, 1 accepted only, 2 rejected; the
            text is coloured by the first.
        tokens: (n,) the emitted tokens.
        shown: the pair and the answer, above the drawing.
    """
    colors = list(VERDICTS.values())
    lines = _wrap(tokens, WIDTH)
    rules = list(verdicts)
    height = 0.9 + 0.16 * len(rules) + 0.155 * len(lines)
    drawing = Drawing(figsize=(TEXT, height), layout=ConstrainedLayoutEngine(w_pad=0.1))
    strips, text = drawing.subplots(
        2, 1, height_ratios=[0.16 * len(rules) + 0.25, 0.155 * len(lines)]
    )
    strips.imshow(
        np.array(list(verdicts.values())),
        aspect="auto",
        vmin=0,
        vmax=2,
        cmap=ListedColormap(colors),
        interpolation="nearest",
        extent=(-0.5, len(tokens) - 0.5, len(rules) - 0.5, -0.5),
    )
    strips.set_yticks(range(len(rules)), rules)
    strips.hlines(
        np.arange(1, len(rules)) - 0.5, -0.5, len(tokens) - 0.5, color="white", linewidth=1
    )
    strips.set_xlabel("position in the answer")
    strips.set_title(shown)
    text.set_title(f"the text, coloured by {rules[0]}")
    _text(text, lines, verdicts[rules[0]], colors)
    drawing.legend(
        handles=[Patch(color=color, label=name) for name, color in VERDICTS.items()],
        loc="outside lower center",
        ncols=3,
    )
    words = np.array(list(VERDICTS))
    steps = pd.DataFrame({"position": np.arange(len(tokens)), "token": list(tokens)})
    frames = [steps.assign(rule=rule, verdict=words[verdict]) for rule, verdict in verdicts.items()]
    return Figure(
        "acceptance_along",
        "Along an answer",
        "Where along one answer steps are certified, accepted without being "
        "certified, and rejected. The text is coloured by the first rule.",
        drawing,
        pd.concat(frames, ignore_index=True),
    )


def _wrap(tokens: Sequence[str], width: int) -> list[list[tuple[int, str]]]:
    """Break tokens into lines of at most `width` characters; a newline is shown and breaks.

    Characters that the font lacks are shown as a box.
    """
    font = get_font(findfont(MONOSPACED))
    lines: list[list[tuple[int, str]]] = [[]]
    used = 0
    for at, token in enumerate(tokens):
        shown = "".join(
            c if font.get_char_index(ord(c)) else "□"
            for c in token.replace("\n", "⏎").replace("\t", " ")
        )[:width]
        if used + len(shown) > width:
            lines.append([])
            used = 0
        lines[-1].append((at, shown))
        used += len(shown)
        if "\n" in token:
            lines.append([])
            used = 0
    return [line for line in lines if line]


def _text(
    axis: Axes,
    lines: Sequence[Sequence[tuple[int, str]]],
    verdict: NDArray[np.int_],
    colors: Sequence[str],
) -> None:
    axis.set_axis_off()
    axis.set_xlim(0, WIDTH)
    axis.set_ylim(len(lines), 0)
    for row, line in enumerate(lines):
        x = 0
        for at, shown in line:
            axis.barh(
                row + 0.5,
                len(shown),
                left=x,
                height=0.86,
                color=colors[verdict[at]],
                alpha=0.45,
                linewidth=0,
            )
            for offset, character in enumerate(shown):
                axis.text(
                    x + offset + 0.5,
                    row + 0.5,
                    character,
                    family=MONOSPACED,
                    fontsize=6.2,
                    ha="center",
                    va="center",
                )
            x += len(shown)
