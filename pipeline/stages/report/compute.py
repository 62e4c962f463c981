"""Writes tables, figures, numbers and one page that shows them.

Files: ``index.md``, ``numbers.tex``,
``tables/*.csv`` and ``.tex``, ``figures/*.pdf`` and ``.png``. They hold no date and no path.
``timings/`` holds what depends on the clock.
"""

from __future__ import annotations

from analysis.report.certificates_extremal import extremal_figure
from analysis.report.paper_figures import all_figures
from analysis.report.paper_tables import all_tables
from pipeline.plan.stage import Node
from pipeline.stages.report.acceptance import acceptance_part
from pipeline.stages.report.certificates import certificate_tables
from pipeline.stages.report.decoding import decoding_part
from pipeline.stages.report.index import page
from pipeline.stages.report.inputs import measure, read_targets, setup
from pipeline.stages.report.numbers import macros
from pipeline.stages.report.shown import files
from pipeline.store.artifacts import Artifact, Pending


def compute(node: Node, upstream: dict[str, list[Artifact]], pending: Pending) -> None:
    """Write the report of a study into `pending.directory`."""
    targets = read_targets(node, upstream)
    measured = measure(targets)
    tables = [*all_tables(measured), *certificate_tables(targets)]
    figures = all_figures(
        {target.label: target.top[:, 0] for target in targets},
        {target.label: target.certificates for target in targets},
        {target.label: target.bootstrap for target in targets},
    )
    figures["extremal"] = extremal_figure()
    setups = {target.label: setup(target) for target in targets}
    drafter = acceptance_part(node, upstream)
    text = page(
        node.config["study"],
        setups,
        tables,
        figures,
        dict(node.config),
        "" if drafter is None else drafter.text,
    )
    if drafter is not None:
        tables, figures = [*tables, *drafter.tables], {**figures, **drafter.figures}
    decoded, decoding_text = decoding_part(node, upstream)
    contents = {
        "index.md": (text + decoding_text).encode(),
        "numbers.tex": macros(measured).encode(),
        **files(tables, figures),
        **decoded,
    }
    for name, content in contents.items():
        path = pending.directory / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content)
    pending.facts |= {"tables": [table.name for table in tables], "figures": list(figures)}
