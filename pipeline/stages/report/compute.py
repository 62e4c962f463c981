"""Writes tables, figures, numbers and one page that shows them.

Files: ``index.md``, ``published.md``, ``numbers.tex``,
``tables/*.csv`` and ``.tex``, ``figures/*.pdf`` and ``.png``, and of most figures ``.csv``, the
numbers drawn. They hold no date and no path. ``timings/`` holds what depends on the clock.
"""

from __future__ import annotations

from analysis.report.figure import Figure
from analysis.report.table import Table
from pipeline.plan.stage import Node
from pipeline.stages.report.acceptance import acceptance_part
from pipeline.stages.report.accuracy import accuracy_part
from pipeline.stages.report.categories import categories_part
from pipeline.stages.report.decoding import decoding_parts
from pipeline.stages.report.index import certificates_part
from pipeline.stages.report.inputs import measure, read_targets
from pipeline.stages.report.numbers import macros
from pipeline.stages.report.published import PAGE, published_parts
from pipeline.stages.report.shown import Part
from pipeline.store.artifacts import Artifact, Pending

NUMBERS = Part(
    [
        "## Numbers",
        "[numbers.tex](numbers.tex) holds the numbers of Tables 1 to 7 as LaTeX macros.",
    ],
    [],
)


def compute(node: Node, upstream: dict[str, list[Artifact]], pending: Pending) -> None:
    """Write the report of a study into `pending.directory`."""
    targets = read_targets(node, upstream)
    measured = measure(targets)
    verdict, beside = published_parts(targets, measured)
    found: list[Part | None] = [
        certificates_part(node.config["study"], targets, measured, node.config),
        verdict,
        categories_part(node, targets, upstream),
        acceptance_part(node, upstream),
        accuracy_part(node, upstream),
        NUMBERS,
    ]
    speed = {}
    decoded = decoding_parts(node, upstream)
    if decoded is not None:
        found.append(decoded[0])
        speed = {"decoding.md": decoded[1].markdown().encode(), **decoded[1].files()}
    parts = [part for part in found if part is not None]
    contents = {
        "index.md": "\n".join(part.markdown() for part in parts).encode(),
        PAGE: beside.markdown().encode(),
        "numbers.tex": macros(measured).encode(),
        **{path: content for part in parts for path, content in part.files().items()},
        **beside.files(),
        **{f"timings/{path}": content for path, content in speed.items()},
    }
    for name, content in contents.items():
        path = pending.directory / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content)
    shown = [item for part in (*parts, beside) for item in part.shown]
    pending.facts |= {
        "tables": [item.name for item in shown if isinstance(item, Table)],
        "figures": [item.name for item in shown if isinstance(item, Figure)],
    }
