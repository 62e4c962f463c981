"""Writes tables, figures, numbers and one page that shows them.

Files: ``index.html``, the page; ``index.md``, a list of the others; ``numbers.tex``,
``tables/*.csv`` and ``.tex``, ``figures/*.pdf``, ``.png`` and ``.csv``, the numbers drawn. They
hold no date and no path. ``timings/`` holds what depends on the clock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from importlib import import_module
from typing import Any

from analysis.page.steps import TargetSteps
from analysis.report.escape import markdown
from analysis.report.records import Part, Results, Table
from pipeline.execution.children import processes
from pipeline.execution.progress import progress_bar
from pipeline.stages.report.acceptance import (
    drafter_part,
    drafter_setup,
    logged_drafter_setup,
    measure_drafter,
)
from pipeline.stages.report.accuracy import answers_shown
from pipeline.stages.report.categories import categories_part
from pipeline.stages.report.decoding import decoding_shown, measure_decoding
from pipeline.stages.report.index import certificates_part, introduction
from pipeline.stages.report.inputs import Target, measure, read_targets, target_setup
from pipeline.stages.report.numbers import macros
from pipeline.stages.report.page.build import Found, build
from pipeline.stages.report.page.bundle import Bundle
from pipeline.stages.report.page.read import target_steps
from pipeline.stages.report.published import published_part
from pipeline.stages.report.shown import files, listing, names
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.node import Node

MOST_DRAWERS = 4  # processes
INDEX = """\
# Files of study {study}

[The page](index.html) is where all this is read. [numbers.tex](numbers.tex) has the numbers of
Tables 1 to 7 as LaTeX macros. Of a table there are the numbers (CSV) and the table for a paper
(TEX); of a figure the drawing (PDF, PNG) and the numbers drawn (CSV). Files in timings/ depend on
the machine and the moment.
"""


def compute(node: Node, upstream: dict[str, list[Artifact]], pending: Pending) -> None:
    """Write the report of a study into `pending.directory`."""
    study = study_of(node)
    count = min(MOST_DRAWERS, os.cpu_count() or 1)
    with processes(count, f"report {study}") as pool:
        for _ in range(count):
            pool.submit(import_module, files.__module__)
        _write(node, upstream, pending, Drawing(pool, study))


def _write(
    node: Node, upstream: dict[str, list[Artifact]], pending: Pending, drawing: Drawing
) -> None:
    bundle = Bundle()  # another process makes it meanwhile
    targets = read_targets(node, upstream)
    measured = measure(targets)
    parts = drawing.begin(certificates_part(targets, measured))
    drafter = measure_drafter(node, upstream.get("acceptance", []))
    if drafter is not None:
        parts += drawing.begin(drafter_part(upstream, drafter))
    compared = drafter if drafter is not None and "logged" not in drafter else None
    decoding = measure_decoding(node, upstream)
    for part in (*decoding_shown(node, upstream, *decoding), *answers_shown(node, upstream)):
        parts += drawing.begin(part)
    parts += drawing.begin(categories_part(node, targets, upstream))
    published = published_part(targets, measured)
    parts += drawing.begin(published.part)
    listed = [listing(part) for part in parts]
    contents = {
        "index.md": "\n".join([INDEX.format(study=markdown(study_of(node))), *listed]).encode(),
        "numbers.tex": macros(measured).encode(),
        **drawing.finish(),
    }
    contents["index.html"] = build(
        Found(
            study_of(node),
            measured,
            [*steps_of(node, targets, upstream, compared)],
            compared,
            [artifact.record["facts"] for artifact in upstream.get("acceptance", [])],
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
    items = [item for part in parts if not part.timed for item in part.shown]
    pending.facts |= {
        kind: [item.name for item in items if names(item)[0].startswith(kind)]
        for kind in ("tables", "figures")
    }


def study_of(node: Node) -> str:
    """Return the printed name of the study."""
    return str(node.config["study"])


class Drawing:
    """The files of all tables and figures, made by other processes while numbers are computed."""

    def __init__(self, pool: ProcessPoolExecutor, study: str) -> None:
        """Draw with the processes of `pool`; `study` is the printed name."""
        self._pool = pool
        self._study = study
        self._begun: list[tuple[str, Future[list[tuple[str, bytes]]]]] = []

    def begin(self, part: Part | None) -> list[Part]:
        """Begin the files of a part, and return it; nothing where there is no part."""
        if part is None:
            return []
        for item in part.shown:
            if isinstance(item, Table):  # quick, and its formats can't leave the process
                made: Future[list[tuple[str, bytes]]] = Future()
                made.set_result(files(item))
            else:
                made = self._pool.submit(files, item)
            self._begun.append((part.place, made))
        return [part]

    def finish(self) -> dict[str, bytes]:
        """Return the files, by path in the report."""
        found: dict[str, bytes] = {}
        with progress_bar(len(self._begun), "table or figure", f"report {self._study}") as bar:
            for place, made in self._begun:
                found |= {f"{place}{path}": content for path, content in made.result()}
                bar.update()
        return found


def steps_of(
    node: Node,
    targets: Sequence[Target],
    upstream: Mapping[str, list[Artifact]],
    drafter: Results | None,
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
    targets: Sequence[Target], drafter: Results | None, upstream: Mapping[str, list[Artifact]]
) -> list[dict[str, dict[str, Any]]]:
    """Return the facts of the set-up, by part of the report and by target."""
    found = [{target.label: target_setup(target) for target in targets}]
    if drafter is not None and "logged" in drafter:
        found.append(logged_drafter_setup(drafter.targets, upstream["drafts"]))
    elif drafter is not None:
        found.append(drafter_setup(drafter, upstream["drafts"], upstream["acceptance"]))
    return found
