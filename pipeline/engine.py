"""Which draft length an engine should have: ``python -m pipeline.engine BASE SPEC...``.

BASE is a run of a server without drafts, each SPEC one of the same server with drafts. A run is a
file of answers that ``pipeline.ask`` saved, or that an OpenAI-compatible server gave, or a page of
/metrics. Prints acceptance by position, tokens per pass, what a step costs, the speed with its
interval, and the recommended draft length. For a single file it prints the counts.

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

from analysis.statistics.bootstrap import Resampling
from pipeline.core.errors import PipelineError
from pipeline.core.terminal import command
from pipeline.engines.answers import counted
from pipeline.engines.comparison import compare
from pipeline.engines.recommendation import recommendation
from pipeline.engines.runs import Run, read_run
from pipeline.engines.screen import screen, untold
from pipeline.settings.composition import composed, files_and_overrides, settings_of

USAGE = "python -m pipeline.engine BASE SPEC... [OVERRIDES]"
OF_A_STUDY = ("study=", "target=", "drafter=")


def main(arguments: Sequence[str]) -> None:
    """Compare the runs that the command line names; SystemExit with 1 where a check fails."""
    with command(USAGE, __doc__, arguments):
        files, overrides = files_and_overrides(arguments)
        settings = settings_of(composed(overrides))
        checked = any(word.startswith(OF_A_STUDY) for word in overrides)
        if not files:
            raise PipelineError(f"no file was given, and not BASE and SPEC: {USAGE}")
        if checked and len(files) == 1:
            raise PipelineError(f"a study to check with was given, and not BASE and SPEC: {USAGE}")
        runs = [read_run(Path(file), settings.decoding.draft_length) for file in files]
        print("\n".join(_lines(runs, Resampling(**vars(settings.statistics)))))
        if checked and not _checked(runs[0], runs[1:], overrides):
            raise SystemExit(1)


def _lines(runs: Sequence[Run], statistics: Resampling) -> list[str]:
    """Return what is printed of runs, of which the first is BASE, or of a single one."""
    unknown = untold(runs)
    for run in runs:
        if run.counts.excluded:
            unknown.append(f"{run.path.name}: left out: {counted(run.counts.excluded)}")
    if len(runs) == 1:
        hint = "for the speed give the same server without drafts as well: BASE SPEC..."
        return [*screen(runs), *unknown, hint]
    base, *others = runs
    speeds, notes = compare(base, others, statistics)
    advice = recommendation(base, others, speeds)
    return [*screen(others, speeds), *notes, *unknown, *advice]


def _checked(base: Run, runs: Sequence[Run], overrides: Sequence[str]) -> bool:
    """Print the checks of each run with drafts; return whether all passed."""
    from pipeline.engines.check import CheckedStudy
    from pipeline.study import Study

    study = Study("stage=drafts", *overrides)
    models = CheckedStudy(study)
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
