"""Writes the files of a report, section by section.

The page is ``index.html``; beside it are ``tables/*.csv`` and ``.tex``, and ``figures/*.pdf`` and
``.png``. They contain no date and no path. ``timings/`` has all that depends on measured times.
"""

from __future__ import annotations

from collections.abc import Iterator

from analysis.decoding.tree_runs import tree_runs
from analysis.report.acceptance_tables import acceptance_by_source, acceptance_table, depth_table
from analysis.report.accuracy_tables import accuracy_sections
from analysis.report.bounds_table import bounds_table, compared_level
from analysis.report.decoding_tables import comparison_table, decoding_table, speed_table
from analysis.report.drafter_figures import margin_figure, rules_figure
from analysis.report.gap_and_half_table import gap_and_half_table
from analysis.report.mars_figures import ratios_figure, thresholds_figure
from analysis.report.paper_figures import figure1, survival_figure
from analysis.report.paper_tables import run_length_table, table1, table2, table3, table4, table7
from analysis.report.published import TABLE2
from analysis.report.published_table import published_section
from analysis.report.speed_by_length_figure import speed_by_length_figure
from analysis.report.table import Section, Table
from analysis.report.tree_figure import trees_figure
from analysis.report.tree_tables import trees_table
from analysis.rules import StrictGreedy
from pipeline.core.shards import progress_bar
from pipeline.core.stage import Inputs, Out, Task
from pipeline.stages.report.inputs import Content, comparisons, margins_of, read_content
from pipeline.stages.report.page import page_files
from pipeline.stages.report.setup_text import extent, timed_machines


def write_sections(task: Task, inputs: Inputs, out: Out) -> None:
    """Write all files of a report."""
    content = read_content(task, inputs)
    out.metadata["targets"] = [target.label for target in content.targets]
    out.metadata["machines"] = timed_machines(content.sources)
    if not set(TABLE2) <= set(content.results.certified_rules):
        print("The paper's tables lack rules: criteria=[paper,NAME] has them, too", flush=True)
    sections = [section for section in sections_of(content) if any(section.items)]
    items = [(section, item) for section in sections for item in section.items if item is not None]
    files: dict[str, bytes] = {}
    label = f"report {task.settings['study']}"
    with progress_bar(len(items), "table or figure", label) as bar:
        for section, item in items:
            if isinstance(item, Table):
                made = item.files()
            else:
                made = item.files(task.settings["figure_titles"])
            files |= {f"{section.place}{path}": text for path, text in made.items()}
            bar.update()
    files |= page_files(content, sections, files)
    for name, text in files.items():
        path = out.directory / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(text)
    untimed = [item for section, item in items if not section.timed]
    out.metadata["tables"] = [item.name for item in untimed if isinstance(item, Table)]
    out.metadata["figures"] = [item.name for item in untimed if not isinstance(item, Table)]


def sections_of(content: Content) -> Iterator[Section]:
    """Yield the sections of a report in order."""
    results = content.results
    yield certificates_section(content)
    if results.drafter:
        yield Section(
            f"Will {results.drafter} be accepted?",
            [
                margin_figure(margins_of(content.targets), StrictGreedy().title),
                rules_figure(results),
                acceptance_table(results),
                acceptance_by_source(results),
                gap_and_half_table(results),
                depth_table(results),
            ],
        )
    if content.decoded:
        yield from decoding_sections(content)
    if content.answered:
        yield from accuracy_sections(
            results.drafter,
            content.answered,
            content.accuracies,
            tolerated_loss=content.task.settings["margin"],
            confidence=content.task.runtime.statistics.confidence,
        )
    published = published_section(results, content.targets)
    if published is not None:
        yield published


def decoding_sections(content: Content) -> list[Section]:
    """Return the section on decoding, and the one on its speed."""
    decoded = content.decoded
    speeds = content.speeds
    tree_tables = [tree_runs(pair, *content.task.runtime.statistics) for pair in decoded]
    title = f"How it decodes with {content.results.drafter}"
    untimed = [
        decoding_table(decoded, content.accepted),
        trees_table(decoded, tree_tables),
        trees_figure(decoded, tree_tables),
        ratios_figure(decoded),
    ]
    timed = [
        speed_by_length_figure(decoded, speeds, content.predicted),
        comparison_table(decoded, speeds),
        speed_table(decoded, speeds),
        thresholds_figure([pair.target for pair in decoded], speeds, "agreement"),
    ]
    return [
        Section(title, untimed, extent(decoded, content.sources)),
        Section(f"{title}: speed", timed, timed=True),
    ]


def certificates_section(content: Content) -> Section:
    """Return the section on certificates; tables and figures are in the paper's order."""
    results = content.results
    targets = content.targets
    intervals = content.task.settings["table_intervals"]
    pairs = zip(targets, content.sources, strict=True)
    compared = {target.label: comparisons(target, source) for target, source in pairs}
    items = [
        table1(results),
        figure1({target.label: target.top[1] for target in targets}),
        table2(results, intervals),
        survival_figure(2, targets),
        table3(results),
        survival_figure(3, targets),
        survival_figure(4, targets),
        table4(results),
        survival_figure(5, targets),
        *(run_length_table(results, at) for at in range(len(targets))),
        table7(results, intervals),
        bounds_table(compared, compared_level(results["run_lengths"]["eps"])),
        None if results.drafter else gap_and_half_table(results),
    ]
    return Section("Certificates", items)
