"""Writes tables, figures and one page that shows them.

Files: ``index.html``, the page; ``tables.html``, all tables and figures, with links to the others;
``tables/*.csv`` and ``.tex``,
``figures/*.pdf``, ``.png`` and ``.csv``, the numbers drawn. They hold no date and no path.
``timings/`` holds what depends on the clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from analysis.acceptance.judgement import Judgement
from analysis.acceptance.summary import margins
from analysis.decoding.answers import accuracy
from analysis.decoding.speed import speed
from analysis.report.measured import Results, Target
from analysis.report.published import TABLE2
from analysis.report.records import Section, worded
from analysis.report.render import files, names
from analysis.report.sections.acceptance import acceptance_section
from analysis.report.sections.accuracy import accuracy_sections
from analysis.report.sections.bounds import bounds_table, determined_table
from analysis.report.sections.certificates import (
    compared_level,
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
from analysis.report.sections.published import published_section
from analysis.rules import StrictGreedy
from pipeline.decoding.decoded import read_answered, read_decoded, thetas
from pipeline.shards import progress_bar
from pipeline.stage import Artifact, Inputs, Out, Task
from pipeline.stages.report import setups
from pipeline.stages.report.inputs import comparisons, read_results, read_target
from pipeline.stages.report.page import MARGIN, page_files
from pipeline.stages.report.sources import Measured, ReportSpec, Sources, by_target, report_spec


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Write the report of a study."""
    spec = report_spec(task)
    measured = measure(spec, by_target(task, inputs))
    out.facts["targets"] = [target.label for target in measured.targets]
    if not set(TABLE2) <= set(spec.rules):
        print("The paper's tables lack rules: criteria=[paper,NAME] has them, too", flush=True)
    sections = [*sections_of(measured)]
    published = published_section(measured.results)
    sections += [] if published is None else [published]  # which comes last
    shown = [(section, item) for section in sections for item in section.shown]
    made: dict[str, bytes] = {}
    with progress_bar(len(shown), "table or figure", f"report {spec.study}") as bar:
        for section, item in shown:
            rendered = files(item, spec.note or "")
            made |= {f"{section.place}{path}": content for path, content in rendered}
            bar.update()
    made |= page_files(measured, sections, task.label)
    for name, content_of in made.items():
        path = out.directory / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content_of)
    items = [item for section in sections if not section.timed for item in section.shown]
    out.facts |= {
        kind: [item.name for item in items if names(item)[0].startswith(kind)]
        for kind in ("tables", "figures")
    }


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
    return Measured(spec, sources, targets=targets, results=results, decoded=decoded, speeds=speeds)


def sections_of(measured: Measured) -> Iterator[Section]:
    """Yield the sections of a report, in their order."""
    spec, sources, results = measured.spec, measured.sources, measured.results
    targets, decoded, speeds = measured.targets, measured.decoded, measured.speeds
    yield certificates_section(targets, results, sources)
    if results.drafter:
        sampled = results.facts["sampled"] is not None
        greedy = StrictGreedy().label
        by_margin = {
            target.label: drafted_margins(target, target.judged[greedy])
            for target in targets
            if greedy in target.judged
        }
        yield acceptance_section(results, [] if sampled else [not_sampled(sources[0])], by_margin)
    if decoded:
        made = [source.decoding for source in sources if source.decoding is not None]
        title = f"How it decodes with {spec.drafter}"
        extent = setups.extent(decoded, made)
        yield decoding_section(title, decoded, spec.statistics, results, paragraphs=extent)
        says = [*setups.machines(decoded, made), *setups.warning(decoded, speeds)]
        yield speed_section(title, decoded, speeds, says)
    answered = [source.accuracy.artifact for source in sources if source.accuracy is not None]
    if answered:
        yield from answer_sections(spec, answered)


def drafted_margins(target: Target, judged: Judgement) -> pd.DataFrame:
    """Return `margins` of a rule's judgement; where nothing is rejected, R - KL is +inf."""
    assert target.draft is not None
    endless = np.isinf(judged.lower)
    slack = np.where(endless, 0.0, judged.lower) - target.draft["kl"].to_numpy()
    return margins(np.where(endless, np.inf, slack), judged.accepted)


def not_sampled(sources: Sources) -> str:
    """Return why stochastic verification is left out: how the answers were decoded instead."""
    temperature = sources.distributions.task.settings["temperature"]
    return str(worded("left_out", temperature=temperature)["sampling"])


def certificates_section(
    targets: Sequence[Target], results: Results, sources: Sequence[Sources]
) -> Section:
    """Return the section on the certificates, with all that it shows in the paper's order."""
    panels = {target.label: target.certificates for target in targets}
    bootstraps = {target.label: target.bootstrap for target in targets}
    compared = {
        target.label: comparisons(target, source)
        for target, source in zip(targets, sources, strict=True)
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
        table7(results),
        determined_table(panels),
        bounds_table(compared, compared_level(results["runs"]["eps"])),
        *runs[2:],
    ]
    return Section("Certificates", shown)


def answer_sections(spec: ReportSpec, made: Sequence[Artifact]) -> list[Section]:
    """Return the sections on answers to tasks, from the artifacts of stage accuracy."""
    pairs = zip(spec.targets, made, strict=True)
    answered = [read_answered(label, artifact) for label, artifact in pairs]
    statistics, margin = spec.statistics, MARGIN if spec.margin is None else spec.margin
    tables = [accuracy(answers, *statistics, margin) for answers in answered]
    return accuracy_sections(spec.drafter or "", answered, tables, margin, statistics.confidence)
