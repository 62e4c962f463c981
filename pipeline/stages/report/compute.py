"""Writes tables, figures, numbers and one page that shows them.

Files: ``index.html``, the page; ``tables.html``, all tables and figures; ``index.md``, a list of
the others; ``numbers.tex``, ``tables/*.csv`` and ``.tex``, ``figures/*.pdf``, ``.png`` and
``.csv``, the numbers drawn. They hold no date and no path. ``timings/`` holds what depends on the
clock.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from copy import copy
from dataclasses import replace
from importlib import import_module
from typing import Any

from analysis.decoding.answers import accuracy
from analysis.decoding.speed import speed
from analysis.report.escape import markdown
from analysis.report.published import CERTIFICATES
from analysis.report.records import Part, Results, Table
from analysis.report.render import files, macros, names
from analysis.report.sections.acceptance import acceptance_part
from analysis.report.sections.accuracy import accuracy_parts
from analysis.report.sections.bounds import bounds_table, determined_table
from analysis.report.sections.categories import CategorySteps, category_statistics, category_table
from analysis.report.sections.certificates import (
    COMPARED_AT,
    estimator_table,
    run_length_table,
    table1,
    table2,
    table3,
    table4,
    table7,
)
from analysis.report.sections.decoding import decoding_part
from analysis.report.sections.decoding_speed import speed_part
from analysis.report.sections.paper_figures import figure1, figure2, figure3, figure4, figure5
from analysis.report.sections.published_matched import compare, published_part
from analysis.rules import StrictGreedy
from pipeline.execution.children import processes
from pipeline.execution.progress import progress_bar
from pipeline.stages.report import setups
from pipeline.stages.report.inputs import (
    Target,
    comparisons,
    joined,
    matches_of,
    read_results,
    read_targets,
)
from pipeline.stages.report.page.build import page_files
from pipeline.stages.report.page.bundle import Bundle
from pipeline.stages.report.page.read import read_steps_shown
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.decoded import read_answered, read_decoded, thetas
from pipeline.store.node import Node

MOST_DRAWERS = 4  # processes
INDEX = """\
# Files of study {study}

[The page](index.html) is where all this is read; [tables.html](tables.html) shows the tables and
figures. [numbers.tex](numbers.tex) has the numbers of Tables 1 to 7 as LaTeX macros. Of a table
there are the numbers (CSV) and the table for a paper (TEX); of a figure the drawing (PDF, PNG) and
the numbers drawn (CSV). Files in timings/ depend on the machine and the moment:
[the verdict](timings/verdict.md){tables}.
"""


def compute(node: Node, upstream: dict[str, list[Artifact]], pending: Pending) -> None:
    """Write the report of a study into `pending.directory`."""
    study = str(node.config["study"])
    count = min(MOST_DRAWERS, os.cpu_count() or 1)
    with processes(count, f"report {study}") as pool:
        for _ in range(count):
            pool.submit(import_module, files.__module__)
        _write(node, upstream, pending, Drawing(pool, study, node.config.get("note")))


def _write(
    node: Node, upstream: dict[str, list[Artifact]], pending: Pending, drawing: Drawing
) -> None:
    bundle, config = Bundle(), node.config  # another process makes the bundle meanwhile
    statistics = config["resamples"], config["confidence"], config["statistics_seed"]
    targets = read_targets(node, upstream)
    results = read_results(node, targets, upstream)
    drawing.begin(certificates_part(targets, results))
    pairs = results if "acceptance" in results else None
    if results.drafter:
        sampling = upstream["distributions"][0].record["config"]
        sampled = "logged" in results or results.facts["sampled"] is not None
        drawing.begin(acceptance_part(results, [] if sampled else [setups.left_out(sampling)]))
    decoded = [
        read_decoded(label, config["drafter"], artifact)
        for label, artifact in zip(results.targets, upstream.get("decoding", []), strict=False)
    ]
    speeds = [speed(one, *statistics).assign(theta=thetas(one)) for one in decoded]
    if decoded:
        title, found = f"How it decodes with {config['drafter']}", upstream["decoding"]
        timed = [*setups.decoding_setup(decoded, found), *setups.warning(decoded, speeds)]
        drawing.begin(decoding_part(title, decoded, statistics, setups.extent(decoded, found)))
        drawing.begin(speed_part(title, decoded, speeds, timed))
    if "accuracy" in upstream:
        for part in answer_parts(node, upstream["accuracy"]):
            drawing.begin(part)
    if (categories := categories_table(node, targets, upstream)) is not None:
        drawing.begin(Part("By category of the prompts", [categories]))
    matches = [match for target in targets for match in matches_of(target, results.certified)]
    beside = compare(results, matches)
    published = published_part(beside, matches)
    drawing.begin(published)
    parts = drawing.parts
    contents = {
        "index.md": "\n".join([index(drawing.study, parts), *map(listing, parts)]),
        "numbers.tex": macros(results),
    }
    made = {name: text.encode() for name, text in contents.items()} | drawing.finish()
    made |= page_files(
        node,
        upstream,
        [*read_steps_shown(node, targets, upstream, drafted=pairs is not None)],
        pairs,
        [*zip(decoded, speeds, strict=True)],
        parts,
        {
            "introduction": setups.introduction(results.targets, config),
            "setups": setups.all_setups(targets, results, upstream),
            "published": published.shown[0] if set(results.targets) & set(CERTIFICATES) else None,
        },
        bundle,
    )
    for name, content_of in made.items():
        path = pending.directory / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content_of)
    items = [item for part in parts if not part.timed for item in part.shown]
    pending.facts |= {
        kind: [item.name for item in items if names(item)[0].startswith(kind)]
        for kind in ("tables", "figures")
    }


def certificates_part(targets: Sequence[Target], results: Results) -> Part:
    """Return the part on the certificates, with everything that it shows in the paper's order."""
    panels = {target.label: target.certificates for target in targets}
    bootstraps = {target.label: target.bootstrap for target in targets}
    runs = [run_length_table(results, at) for at in range(len(targets))]
    shown = [
        table1(results),
        figure1({target.label: target.top[:, 0] for target in targets}),
        table2(results),
        figure2(panels, bootstraps),
        table3(results),
        figure3(panels, bootstraps),
        figure4(panels, bootstraps),
        table4(results),
        figure5(panels, bootstraps),
        *runs[:2],
        estimator_table(results),
        table7(results),
        determined_table(panels),
        bounds_table({target.label: comparisons(target) for target in targets}),
        *runs[2:],
    ]
    return Part("Certificates", shown)


def categories_table(
    node: Node, targets: Sequence[Target], upstream: Mapping[str, list[Artifact]]
) -> Table | None:
    """Return the table by category of the prompts; None where all are of one."""
    if all(len(set(target.categories)) == 1 for target in targets):
        return None
    items = targets[0].certificates
    rule = next((item.rule for item in items if item.rule == StrictGreedy()), items[0].rule)
    levels = targets[0].runs["eps"].unique().tolist()
    eps = min(levels, key=lambda level: abs(level - COMPARED_AT))
    frames = []
    for at, target in enumerate(targets):
        certified = next(item for item in target.certificates if item.rule == rule)
        means: dict[str, Any] = {"p0": target.top[:, 0], "repeated": target.repeated}
        if "drafts" in upstream:
            drafts = upstream["drafts"][at].read(columns=["kl", "draft_rank"])
            means["kl"] = drafts["kl"].to_numpy()
            means["accepted"] = drafts["draft_rank"].to_numpy() == 1
        steps = CategorySteps(
            target.label, target.categories, rule, certified.lower, certified.upper, means
        )
        seed = node.config["statistics_seed"]
        frames.append(category_statistics(steps, eps, target.bootstrap, seed))
    return category_table(joined(frames), rule, eps)


def answer_parts(node: Node, found: Sequence[Artifact]) -> list[Part]:
    """Return the parts on answers to tasks, from the artifacts of stage accuracy."""
    config = node.config
    pairs = zip(config["targets"], found, strict=True)
    answered = [read_answered(target, artifact) for target, artifact in pairs]
    confidence, margin = config["confidence"], config["margin"]
    settings = config["resamples"], confidence, config["statistics_seed"], margin
    tables = [accuracy(one, *settings) for one in answered]
    return accuracy_parts(config["drafter"], answered, tables, margin, confidence)


class Drawing:
    """The files of all tables and figures, made by other processes while numbers are computed."""

    def __init__(self, pool: ProcessPoolExecutor, study: str, note: str | None) -> None:
        """Draw with the processes of `pool`; `study` is the printed name.

        `note` is said at the end of every caption.
        """
        self._note = note
        self.study = study
        self.parts: list[Part] = []
        self._pool = pool
        self._begun: list[tuple[str, Future[list[tuple[str, bytes]]]]] = []

    def begin(self, part: Part) -> None:
        """Begin the files of a part."""
        if self._note is not None:
            part = replace(part, shown=[_noted(one, self._note) for one in part.shown])
        self.parts.append(part)
        for item in part.shown:
            if isinstance(item, Table):  # quick, and its formats can't leave the process
                made: Future[list[tuple[str, bytes]]] = Future()
                made.set_result(files(item))
            else:
                made = self._pool.submit(files, item)
            self._begun.append((part.place, made))

    def finish(self) -> dict[str, bytes]:
        """Return the files, by path in the report."""
        found: dict[str, bytes] = {}
        with progress_bar(len(self._begun), "table or figure", f"report {self.study}") as bar:
            for place, made in self._begun:
                found |= {f"{place}{path}": content for path, content in made.result()}
                bar.update()
        return found


def index(study: str, parts: list[Part]) -> str:
    """Return the beginning of the list of files, in Markdown."""
    timed = any(part.place == "timings/" for part in parts)
    tables = (
        " and [tables that were timed](timings/tables.html) are among them"
        if timed
        else (" is one of them")
    )
    return INDEX.format(study=markdown(study), tables=tables)


def listing(part: Part) -> str:
    """Return the part of the list of files, in Markdown."""
    lines = [
        f"- {markdown(item.title)}: "
        + ", ".join(
            f"[{path.rpartition('.')[2].upper()}]({part.place}{path})" for path in names(item)
        )
        for item in part.shown
    ]
    return "\n".join([f"## {markdown(part.title)}", "", *lines, ""])


def _noted(item: Any, note: str) -> Any:
    """Return a table or figure with a sentence at the end of its caption."""
    found = copy(item)
    object.__setattr__(found, "caption", f"{item.caption} {note}")
    return found
