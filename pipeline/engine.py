"""Which draft length an engine should have: ``python -m pipeline.engine BASE... SPEC...``.

BASE is a run of a server without drafts, each SPEC one of the same server with drafts. A run is a
file of answers that ``pipeline.ask`` saved, or that an OpenAI-compatible server gave, or a page of
/metrics; a directory stands for the runs in it. Prints acceptance by position, tokens per pass,
what a step costs, the speed with its interval, and the recommended draft length. For a single file
it prints the counts.

With a BASE for each of several loads, runs are compared by load: one table, the draft length for
each load, and a figure below outputs/engine. what_if.acceptance=A and what_if.concurrent=N predict
the speed at another acceptance rate or load, at the costs that were measured.

With the study that was asked (``study=mini target=mini_large drafter=mini``, for prompt look-up
``drafter=none decoding.lookup_match=earliest``) it also checks each SPEC, and ends with status 1
where a check fails. texts: answers with and without drafts are equal, but for near-ties of logits.
calls: what was accepted, call by call, is what the study's drafter predicts along the same answers.
certified: no certified token was rejected. tokens: those per pass, predicted along the answers
*without* drafts. decoding.draft_length says how many tokens a draft has where a file does not tell.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.statistics.bootstrap import Resampling
from pipeline.core.commands import command
from pipeline.core.errors import PipelineError
from pipeline.core.files import slug, write_whole
from pipeline.core.store import relative
from pipeline.engines.printed_text import counted
from pipeline.engines.speed.by_load import load_rows, load_table, rows_between
from pipeline.engines.speed.comparison import Speed
from pipeline.engines.speed.loads import Load, compare_by_load
from pipeline.engines.speed.recommendation import recommendation
from pipeline.engines.speed.run_table import engine_figures, missing_counts, run_table, source_table
from pipeline.engines.speed.runs import Run, read_run, run_files
from pipeline.engines.speed.schedule import schedule, what_if
from pipeline.settings.composition import composed, files_and_overrides, settings_of

USAGE = "python -m pipeline.engine BASE... SPEC... [OVERRIDES]"
OF_A_STUDY = ("study=", "target=", "drafter=")


def main(arguments: Sequence[str]) -> None:
    """Compare the runs that the command line names; SystemExit with 1 where a check fails."""
    with command(USAGE, __doc__, arguments):
        files, overrides = files_and_overrides(arguments)
        settings = settings_of(composed(overrides))
        checked = any(word.startswith(OF_A_STUDY) for word in overrides)
        supposed = settings.what_if.acceptance is not None or settings.what_if.concurrent
        if not files:
            raise PipelineError(f"no file was given, and not BASE and SPEC: {USAGE}")
        runs = _read(files, settings.decoding.draft_length)
        if len(runs) == 1:
            if checked or supposed:
                what = "a study to check with" if checked else "what_if"
                raise PipelineError(f"{what} was given, and not BASE and SPEC: {USAGE}")
            hint = "for the speed give the same server without drafts as well: BASE SPEC..."
            print("\n".join([*_table(runs), *_unknown(runs), hint]))
            return
        loads, left_out = compare_by_load(runs, Resampling(**vars(settings.statistics)))
        print("\n".join(_of_one_load(loads[0], runs) if len(loads) == 1 else _by_load(loads, runs)))
        print("\n".join(left_out), end="\n" if left_out else "")
        if len(loads) > 1:
            _write(loads, Path(settings.outputs) / "engine")
        if supposed:
            print("\n".join(what_if(loads, settings.what_if)))
        results = [_checked(load.base, load.runs, overrides) for load in loads if checked]
        if not all(results):
            raise SystemExit(1)


def _read(files: Sequence[str], length: int | None) -> list[Run]:
    """Read runs; a directory stands for those in it, of which those without drafts come first."""
    runs = []
    for path in map(Path, files):
        if path.is_dir():
            inside = [read_run(file, length) for file in run_files(path)]
            runs += sorted(inside, key=lambda run: run.has_drafter is not False)
        else:
            runs.append(read_run(path, length))
    return runs


def _unknown(runs: Sequence[Run]) -> list[str]:
    """Return a line for what a run does not tell, or what of it was left out."""
    lines = missing_counts(runs)
    for run in runs:
        if run.counts.excluded:
            lines.append(f"{run.path.name}: left out: {counted(run.counts.excluded)}")
    return lines


def _table(runs: Sequence[Run], speeds: Sequence[Speed] = ()) -> list[str]:
    """Return the table of runs, and the same counts by engine and by source of the prompts."""
    return [*run_table(runs, speeds), *engine_figures(runs), *source_table(runs)]


def _of_one_load(load: Load, runs: Sequence[Run]) -> list[str]:
    """Return what is printed of runs at one load."""
    advice = recommendation(load.base, load.runs, load.speeds)
    return [*_table(load.runs, load.speeds), *load.notes, *_unknown(runs), *advice]


def _by_load(loads: Sequence[Load], runs: Sequence[Run]) -> list[str]:
    """Return what is printed of runs at several loads."""
    notes = [f"load {load.requests}: {note}" for load in loads for note in load.notes]
    drafted = [run for load in loads for run in load.runs]
    table = [*load_table(load_rows(loads)), *engine_figures(drafted), *source_table(drafted)]
    return [*table, *notes, *_unknown(runs), *schedule(loads)]


def _write(loads: Sequence[Load], folder: Path) -> None:
    """Write the table of loads and its figure, and print their names."""
    from analysis.report.speed_by_load_figure import speed_by_load_figure
    from analysis.report.style import render
    from analysis.report.table import csv_text

    rows = load_rows(loads)
    table = pd.DataFrame([row.columns() for row in rows])
    drawn = pd.DataFrame([row.columns() for row in [*rows, *rows_between(loads)]])
    name = f"{slug(loads[0].base.path.name.partition('.')[0])}_speed_by_load"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{name}.csv", csv_text(table, digits=None).encode())
    figure = speed_by_load_figure(drawn.dropna(subset=["load", "draft_length", "speed"]))
    for kind in ("pdf", "png"):
        write_whole(folder / f"{name}.{kind}", render(figure, kind))
    print(f"speed by load: {relative(folder)}/{name}.csv, .pdf, .png")


def _checked(base: Run, runs: Sequence[Run], overrides: Sequence[str]) -> bool:
    """Print the checks of each run with drafts; return whether all passed."""
    from pipeline.engine_checks import StudyChecker
    from pipeline.study import Study

    study = Study("stage=drafts", *overrides)
    models = StudyChecker(study)
    passed = True
    drafter = "prompt look-up" if study.config.drafter is None else study.config.drafter.label
    target = study.config.targets[study.targets[0]].label
    for run in runs:
        checks = models.checks(base, run)
        served = f"{run.path.name}, {run.counts.engine}, {target}"
        print(f"\n{served}, drafts of {run.length} by {drafter}:")
        for check in checks:
            print(f"  {'pass' if check.passed else 'FAIL'}  {check.name:<10} {check.text}")
            passed &= check.passed
    return passed


if __name__ == "__main__":
    main(sys.argv[1:])
