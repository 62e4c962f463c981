"""Writes tables, figures, numbers and one page that shows them.

Files: ``index.html``, the page; ``index.md``, ``published.md``, ``numbers.tex``,
``tables/*.csv`` and ``.tex``, ``figures/*.pdf`` and ``.png``, and of most figures ``.csv``, the
numbers drawn. They hold no date and no path. ``timings/`` holds what depends on the clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.page.steps import TargetSteps
from analysis.report.figure import Figure
from analysis.report.table import Table
from pipeline.plan.stage import Node
from pipeline.stages.report.acceptance import (
    Drafter,
    acceptance_part,
    drafter_setup,
    measure_drafter,
)
from pipeline.stages.report.accuracy import TIMED, accuracy_part, accuracy_timed
from pipeline.stages.report.categories import categories_part
from pipeline.stages.report.decoding import decoding_parts, measure_decoding
from pipeline.stages.report.index import certificates_part
from pipeline.stages.report.inputs import Target, measure, read_targets, target_setup
from pipeline.stages.report.numbers import macros
from pipeline.stages.report.page.build import Found, build
from pipeline.stages.report.page.bundle import Bundle
from pipeline.stages.report.page.read import target_steps
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
    bundle = Bundle()  # another process makes it meanwhile
    targets = read_targets(node, upstream)
    measured = measure(targets)
    published = published_parts(targets, measured)
    verdict, beside = published.verdict, published.beside
    drafter = measure_drafter(node, upstream.get("acceptance", []))
    decoding = measure_decoding(node, upstream)
    found: list[Part | None] = [
        certificates_part(node.config["study"], targets, measured, node.config),
        verdict,
        categories_part(node, targets, upstream),
        acceptance_part(node, upstream, drafter),
        accuracy_part(node, upstream),
        NUMBERS,
    ]
    timed = None
    decoded = decoding_parts(node, upstream, decoding)
    if decoded is not None:
        found.append(decoded[0])
        timed = decoded[1]
    parts = [part for part in found if part is not None]
    contents = {
        "index.md": "\n".join(part.markdown() for part in parts).encode(),
        PAGE: beside.markdown().encode(),
        "numbers.tex": macros(measured).encode(),
        **{path: content for part in parts for path, content in part.files().items()},
        **beside.files(),
    }
    if timed is not None:
        contents["timings/decoding.md"] = timed.markdown().encode()
        contents |= {f"timings/{path}": content for path, content in timed.files().items()}
    answers_timed = accuracy_timed(node, upstream)
    if answers_timed is not None:
        contents[TIMED] = answers_timed.markdown().encode()
        contents |= {f"timings/{path}": text for path, text in answers_timed.files().items()}
    contents["index.html"] = build(
        Found(
            node.config["study"],
            measured,
            [*steps_of(node, targets, upstream, drafter)],
            None if drafter is None else drafter.pairs,
            [artifact.record["facts"] for artifact in upstream.get("acceptance", [])],
            None if drafter is None else drafter.profile,
            *decoding,
            published.compared,
            published.table,
            setups(targets, drafter, upstream),
            [
                *((item, "") for part in (*parts, beside) for item in part.shown),
                *((item, "timings/") for item in (timed.shown if timed else [])),
            ],
            contents,
        ),
        bundle,
    )
    for name, content in contents.items():
        path = pending.directory / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content)
    shown = [item for part in (*parts, beside) for item in part.shown]
    pending.facts |= {
        "tables": [item.name for item in shown if isinstance(item, Table)],
        "figures": [item.name for item in shown if isinstance(item, Figure)],
    }


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
    if drafter is not None:
        found.append(drafter_setup(drafter.pairs, upstream["drafts"], upstream["acceptance"]))
    return found
