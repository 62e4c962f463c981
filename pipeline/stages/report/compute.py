"""Writes tables, figures and one page that shows them.

Files: ``index.html``, the page; ``tables/*.csv`` and ``.tex``; ``figures/*.pdf`` and ``.png``. They
hold no date and no path. ``timings/`` holds what depends on the clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.decoding.answers import accuracy
from analysis.decoding.speed import speed
from analysis.report.acceptance import acceptance_table, depth_table, margin_figure, rules_figure
from analysis.report.accuracy import accuracy_sections
from analysis.report.bounds_table import bounds_table, compared_level
from analysis.report.decoding import decoding_table
from analysis.report.mars import ratios_figure, thresholds_figure
from analysis.report.paper_figures import figure1, survival_figure
from analysis.report.paper_tables import run_length_table, table1, table2, table3, table4, table7
from analysis.report.parts import parts_table
from analysis.report.published import TABLE2
from analysis.report.published_table import published_section
from analysis.report.speed import comparison_table, speed_table
from analysis.report.table import Section, Table
from analysis.report.trees import trees
from analysis.rules import StrictGreedy
from pipeline.decoding.decoded import read_answered, read_decoded, thetas
from pipeline.shards import progress_bar
from pipeline.stage import Inputs, Out, Task
from pipeline.stages.report import setups
from pipeline.stages.report.inputs import comparisons, margins_of, read_results, read_target
from pipeline.stages.report.page import page_files
from pipeline.stages.report.sources import Measured, ReportSpec, Sources, by_target, report_spec

MARGIN = 0.05  # where the study was not asked for another: the loss of accuracy that matters


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Write the report of a study."""
    spec = report_spec(task)
    measured = measure(spec, by_target(task, inputs))
    out.facts["targets"] = [target.label for target in measured.targets]
    if not set(TABLE2) <= set(spec.rules):
        print("The paper's tables lack rules: criteria=[paper,NAME] has them, too", flush=True)
    sections = [section for section in sections_of(measured) if section.items]
    items = [(section, item) for section in sections for item in section.items]
    files: dict[str, bytes] = {}
    with progress_bar(len(items), "table or figure", f"report {spec.study}") as bar:
        for section, item in items:
            files |= {f"{section.place}{path}": text for path, text in item.files().items()}
            bar.update()
    files |= page_files(measured, sections, task.label, files)
    for name, content_of in files.items():
        path = out.directory / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content_of)
    untimed = [item for section, item in items if not section.timed]
    out.facts["tables"] = [item.name for item in untimed if isinstance(item, Table)]
    out.facts["figures"] = [item.name for item in untimed if not isinstance(item, Table)]


def measure(spec: ReportSpec, sources: Sequence[Sources]) -> Measured:
    """Compute the statistics of all targets, and read the decoded answers."""
    targets = [read_target(spec, source) for source in sources]
    results = read_results(spec, targets, sources)
    decoded = [
        read_decoded(source.label, spec.drafter or "", source.decoding.artifact)
        for source in sources
        if source.decoding is not None
    ]
    speeds = [speed(run, *spec.statistics).assign(theta=thetas(run)) for run in decoded]
    answered = [
        read_answered(source.label, source.accuracy.artifact)
        for source in sources
        if source.accuracy is not None
    ]
    margin = MARGIN if spec.margin is None else spec.margin
    tables = [accuracy(answers, *spec.statistics, margin) for answers in answered]
    return Measured(
        *(spec, sources, targets, results, decoded, speeds, answered, tables), margin=margin
    )


def sections_of(measured: Measured) -> Iterator[Section]:
    """Yield the sections of a report, in their order."""
    spec, sources, results = measured.spec, measured.sources, measured.results
    yield certificates_section(measured)
    if results.drafter:
        by_margin, greedy = margins_of(measured.targets), StrictGreedy().title
        yield Section(
            f"Will {results.drafter} be accepted?",
            [
                margin_figure(by_margin, greedy),
                rules_figure(results),
                acceptance_table(results),
                parts_table(results),
                depth_table(results),
            ],
        )
    decoded, speeds = measured.decoded, measured.speeds
    if decoded:
        made = [source.decoding for source in sources if source.decoding is not None]
        title = f"How it decodes with {spec.drafter}"
        table, figure = trees(decoded, spec.statistics)
        shown = [decoding_table(decoded, spec.statistics), table, figure, ratios_figure(decoded)]
        yield Section(title, shown, setups.extent(decoded, made))
        targets = [pair.target for pair in decoded]
        shown = [
            comparison_table(decoded, speeds),
            speed_table(decoded, speeds),
            thresholds_figure(targets, speeds, "agreement"),
        ]
        yield Section(f"{title}: speed", shown, timed=True)
    if measured.answered:
        scored = measured.answered, measured.accuracies, measured.margin
        yield from accuracy_sections(spec.drafter or "", *scored, spec.statistics.confidence)
    published = published_section(results)
    if published is not None:
        yield published


def certificates_section(measured: Measured) -> Section:
    """Return the section on the certificates, with all that it shows in the paper's order."""
    results, targets = measured.results, measured.targets
    panels = {target.label: target.certificates for target in targets}
    bootstraps = {target.label: target.bootstrap for target in targets}
    compared = {
        target.label: comparisons(target, source)
        for target, source in zip(targets, measured.sources, strict=True)
    }
    runs = [run_length_table(results, at) for at in range(len(targets))]
    drawn = [survival_figure(number, panels, bootstraps) for number in (2, 3, 4, 5)]
    items = [
        table1(results),
        figure1({target.label: target.top[1] for target in targets}),
        table2(results),
        drawn[0],
        table3(results),
        *drawn[1:3],
        table4(results),
        drawn[3],
        *runs,
        table7(results),
        bounds_table(compared, compared_level(results["runs"]["eps"])),
        None if results.drafter else parts_table(results),
    ]
    return Section("Certificates", items)
