"""Writes tables, figures and one page that shows them.

Files: ``index.html``, the page; ``tables.html``, all tables and figures, with links to the others;
``tables/*.csv`` and ``.tex``,
``figures/*.pdf``, ``.png`` and ``.csv``, the numbers drawn. They hold no date and no path.
``timings/`` holds what depends on the clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.decoding.answers import accuracy
from analysis.decoding.metrics import Decoded
from analysis.decoding.speed import speed
from analysis.page.grid import drafted_margins
from analysis.report.elements import elements_section
from analysis.report.measured import Results, Target
from analysis.report.records import Section, Table, together, worded
from analysis.report.render import files, names
from analysis.report.sections.acceptance import acceptance_section
from analysis.report.sections.accuracy import accuracy_sections
from analysis.report.sections.bounds import bounds_table, determined_table
from analysis.report.sections.categories import category_statistics, category_table
from analysis.report.sections.certificates import (
    compared_level,
    estimator_table,
    run_length_table,
    table1,
    table2,
    table3,
    table4,
    table7,
)
from analysis.report.sections.decoding import decoding_section
from analysis.report.sections.decoding_speed import speed_section
from analysis.report.sections.paper_figures import figure1, survival_figure
from analysis.report.sections.published_matched import compare, published_section
from analysis.rules import StrictGreedy
from pipeline.execution.progress import progress_bar
from pipeline.plan.slices import bootstrap_settings
from pipeline.stages.report import setups
from pipeline.stages.report.engine import engine_section, in_engine
from pipeline.stages.report.inputs import (
    Upstream,
    by_target,
    comparisons,
    matches_of,
    read_results,
    read_target,
    with_names_of_logs,
)
from pipeline.stages.report.page import page_files
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.decoded import read_answered, read_decoded, thetas
from pipeline.store.node import Node


def compute(node: Node, upstream: dict[str, list[Artifact]], pending: Pending) -> None:
    """Write the report of a study into `pending.directory`."""
    sources = by_target(node, upstream)
    node = with_names_of_logs(node, sources)
    config, study = node.config, str(node.config["study"])
    pending.facts["targets"] = list(config["targets"])
    targets = [read_target(node, at, mine) for at, mine in enumerate(sources)]
    results = read_results(node, targets, sources)
    decoded = [
        read_decoded(target.label, config["drafter"], mine["decoding"][0])
        for target, mine in zip(targets, sources, strict=True)
        if "decoding" in mine
    ]
    statistics = bootstrap_settings(config)
    speeds = [speed(one, *statistics).assign(theta=thetas(one)) for one in decoded]
    engine = in_engine(config, sources)
    sections = [*sections_of(node, sources, targets, results, decoded, speeds)]
    if engine is not None:
        sections.insert(-1, engine_section(engine))
    sections.insert(-1, elements_section(sections))  # what is beside the published comes last
    shown = [(section, item) for section in sections for item in section.shown]
    made: dict[str, bytes] = {}
    with progress_bar(len(shown), "table or figure", f"report {study}") as bar:
        for section, item in shown:
            found = files(item, config.get("note", ""))
            made |= {f"{section.place}{path}": content for path, content in found}
            bar.update()
    made |= page_files(
        node,
        upstream,
        targets,
        results,
        [*zip(decoded, speeds, strict=True)],
        sections,
        sources,
        [] if engine is None else engine[-1],
    )
    for name, content_of in made.items():
        path = pending.directory / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content_of)
    items = [item for section in sections if not section.timed for item in section.shown]
    pending.facts |= {
        kind: [item.name for item in items if names(item)[0].startswith(kind)]
        for kind in ("tables", "figures")
    }


def sections_of(
    node: Node,
    sources: Sequence[Upstream],
    targets: Sequence[Target],
    results: Results,
    decoded: Sequence[Decoded],
    speeds: Sequence[pd.DataFrame],
) -> Iterator[Section]:
    """Yield the sections of a report, in their order."""
    config = node.config
    yield certificates_section(targets, results, sources)
    if results.drafter:
        sampling = sources[0]["distributions"][0].record["config"]
        sampled = results.facts["sampled"] is not None
        greedy = StrictGreedy().label
        margins = {
            target.label: drafted_margins(target, target.judged[greedy])
            for target in targets
            if greedy in target.judged
        }
        yield acceptance_section(
            results, [] if sampled else [worded("left_out", **sampling)["sampling"]], margins
        )
    if decoded:
        found = [mine["decoding"][0] for mine in sources]
        title = f"How it decodes with {config['drafter']}"
        yield decoding_section(
            title, decoded, bootstrap_settings(config), setups.extent(decoded, found)
        )
        said = [*setups.machines(decoded, found), *setups.warning(decoded, speeds)]
        yield speed_section(title, decoded, speeds, said)
    if "accuracy" in sources[0]:
        yield from answer_sections(node, [mine["accuracy"][0] for mine in sources])
    if any(len({category for *_, category in target.prompts}) > 1 for target in targets):
        yield Section("By category of the prompts", [categories_table(node, targets, results)])
    matches = [
        match
        for target, mine in zip(targets, sources, strict=True)
        for match in matches_of(target, mine)
    ]
    yield published_section(compare(results, matches), matches)


def certificates_section(
    targets: Sequence[Target], results: Results, sources: Sequence[Upstream]
) -> Section:
    """Return the section on the certificates, with all that it shows in the paper's order."""
    panels = {target.label: target.certificates for target in targets}
    bootstraps = {target.label: target.bootstrap for target in targets}
    compared = {
        target.label: comparisons(target, mine)
        for target, mine in zip(targets, sources, strict=True)
    }
    runs = [run_length_table(results, at) for at in range(len(targets))]
    drawn = [survival_figure(f"figure{number}", panels, bootstraps) for number in (2, 3, 4, 5)]
    shown = [
        table1(results),
        figure1({target.label: target.top[1] for target in targets}),
        table2(results),
        drawn[0],
        table3(results),
        *drawn[1:3],
        table4(results),
        drawn[3],
        *runs[:2],
        estimator_table(results),
        table7(results),
        determined_table(panels),
        bounds_table(compared, compared_level(results["runs"]["eps"])),
        *runs[2:],
    ]
    return Section("Certificates", shown)


def categories_table(node: Node, targets: Sequence[Target], results: Results) -> Table:
    """Return the table by category of the prompts."""
    rules = list(targets[0].certificates)
    rule = StrictGreedy() if StrictGreedy() in rules else rules[0]
    eps = compared_level(results["runs"]["eps"])
    frames = {}
    for target in targets:
        means: dict[str, Any] = {"p0": target.top[1], "repeated": target.repeated}
        if target.draft is not None:
            means["kl"] = target.draft["kl"].to_numpy()
            means["accepted"] = target.draft["rank"].to_numpy() == 1
        categories = [category for *_, category in target.prompts]
        seed = node.config["statistics_seed"]
        frames[target.label] = category_statistics(
            categories, rule, target.certificates[rule], means, eps, target.bootstrap, seed
        )
    return category_table(together(frames), rule, eps)


def answer_sections(node: Node, found: Sequence[Artifact]) -> list[Section]:
    """Return the sections on answers to tasks, from the artifacts of stage accuracy."""
    config = node.config
    pairs = zip(config["targets"], found, strict=True)
    answered = [read_answered(target, artifact) for target, artifact in pairs]
    margin = config["margin"]
    tables = [accuracy(one, *bootstrap_settings(config), margin) for one in answered]
    return accuracy_sections(config["drafter"], answered, tables, margin, config["confidence"])
