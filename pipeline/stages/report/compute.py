"""Writes tables, figures, numbers and one page that shows them.

Files: ``index.html``, the page; ``index.md``, a list of the others; ``numbers.tex``,
``tables/*.csv`` and ``.tex``, ``figures/*.pdf``, ``.png`` and ``.csv``, the numbers drawn. They
hold no date and no path. ``timings/`` holds what depends on the clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.page.steps import TargetSteps
from analysis.report.escape import markdown
from analysis.report.figure import Figure
from analysis.report.table import Table
from pipeline.execution.progress import progress_bar
from pipeline.plan.stage import Node
from pipeline.stages.report.acceptance import (
    Drafter,
    acceptance_part,
    drafter_setup,
    measure_drafter,
)
from pipeline.stages.report.accuracy import accuracy_part, accuracy_timed, measure_accuracy
from pipeline.stages.report.categories import categories_part
from pipeline.stages.report.decoding import decoding_parts, measure_decoding
from pipeline.stages.report.index import certificates_part, introduction
from pipeline.stages.report.inputs import Target, measure, read_targets, target_setup
from pipeline.stages.report.logged import logged_setup
from pipeline.stages.report.numbers import macros
from pipeline.stages.report.page.build import Found, build
from pipeline.stages.report.page.bundle import Bundle
from pipeline.stages.report.page.read import target_steps
from pipeline.stages.report.published import published_part
from pipeline.stages.report.shown import Part, files
from pipeline.store.artifacts import Artifact, Pending

INDEX = """\
# Files of study {study}

[The page](index.html) is where all this is read. [numbers.tex](numbers.tex) has the numbers of
Tables 1 to 7 as LaTeX macros. Of a table there are the numbers (CSV) and the table for a paper
(TEX); of a figure the drawing (PDF, PNG) and the numbers drawn (CSV). Files in timings/ depend on
the machine and the moment.
"""


def compute(node: Node, upstream: dict[str, list[Artifact]], pending: Pending) -> None:
    """Write the report of a study into `pending.directory`."""
    bundle = Bundle()  # another process makes it meanwhile
    targets = read_targets(node, upstream)
    measured = measure(targets)
    published = published_part(targets, measured)
    drafter = measure_drafter(node, upstream.get("acceptance", []))
    decoding = measure_decoding(node, upstream)
    answers = measure_accuracy(node, upstream)
    content, timed = decoding_parts(node, upstream, decoding) or (None, None)
    placed = [
        (certificates_part(targets, measured), ""),
        (acceptance_part(node, upstream, drafter), ""),
        (content, ""),
        (timed, "timings/"),
        (accuracy_part(node, answers), ""),
        (accuracy_timed(answers), "timings/"),
        (categories_part(node, targets, upstream), ""),
        (published.part, ""),
    ]
    parts = [(part, place) for part, place in placed if part is not None]
    listed = [part.listing(place) for part, place in parts]
    contents = {
        "index.md": "\n".join([INDEX.format(study=markdown(study_of(node))), *listed]).encode(),
        "numbers.tex": macros(measured).encode(),
        **drawn(node, parts),
    }
    contents["index.html"] = build(
        Found(
            study_of(node),
            measured,
            [*steps_of(node, targets, upstream, drafter)],
            None if drafter is None else drafter.pairs,
            [artifact.record["facts"] for artifact in upstream.get("acceptance", [])],
            None if drafter is None else drafter.profile,
            *decoding,
            published.compared,
            published.verdict,
            introduction([target.label for target in targets], node.config),
            setups(targets, drafter, upstream),
            parts,
            contents,
        ),
        bundle,
    )
    for name, content_of in contents.items():
        path = pending.directory / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content_of)
    items = [item for part, place in parts if not place for item in part.shown]
    pending.facts |= {
        "tables": [item.name for item in items if isinstance(item, Table)],
        "figures": [item.name for item in items if isinstance(item, Figure)],
    }


def study_of(node: Node) -> str:
    """Return the printed name of the study."""
    return str(node.config["study"])


def drawn(node: Node, parts: Sequence[tuple[Part, str]]) -> dict[str, bytes]:
    """Return the files of all tables and figures, by path in the report."""
    found: dict[str, bytes] = {}
    total = sum(len(part.shown) for part, _ in parts)
    with progress_bar(total, "table or figure", f"report {study_of(node)}") as bar:
        for part, place in parts:
            for item in part.shown:
                found |= {f"{place}{path}": content for path, content in files(item)}
                bar.update()
    return found


def steps_of(
    node: Node,
    targets: Sequence[Target],
    upstream: Mapping[str, list[Artifact]],
    drafter: Drafter | None,
) -> Iterator[TargetSteps]:
    """Yield the steps of every target as the page takes them."""
    for at, (source, target) in enumerate(
        zip(node.upstream["distributions"], targets, strict=True)
    ):
        if drafter is None:
            yield target_steps(source, target, None, None)
        else:
            yield target_steps(source, target, upstream["drafts"][at], upstream["acceptance"][at])


def setups(
    targets: Sequence[Target], drafter: Drafter | None, upstream: Mapping[str, list[Artifact]]
) -> list[dict[str, dict[str, Any]]]:
    """Return the facts of the set-up, by part of the report and by target."""
    found = [{target.label: target_setup(target) for target in targets}]
    if drafter is None:
        if upstream.get("acceptance"):
            found.append(logged_setup([target.label for target in targets], upstream["drafts"]))
    else:
        found.append(drafter_setup(drafter.pairs, upstream["drafts"], upstream["acceptance"]))
    return found
