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
from pipeline.engines.runs import Run, compare, read_run, recommendation, screen, untold
from pipeline.settings.composition import composed, files_and_overrides, settings_of

USAGE = "python -m pipeline.engine BASE SPEC... [OVERRIDES]"
OF_A_STUDY = ("study=", "target=", "drafter=")


def main(arguments: Sequence[str]) -> None:
    """Compare the runs that the command line names; SystemExit with 1 where a check fails."""
    with command(USAGE, __doc__, arguments):
        files, overrides = files_and_overrides(arguments)
        settings = settings_of(composed(overrides))
        checked = any(word.startswith(OF_A_STUDY) for word in overrides)
        if len(files) < 1 + checked:
            what = "a study to check with" if files else "no file"
            raise PipelineError(f"{what} was given, and not BASE and SPEC: {USAGE}")
        runs = [read_run(Path(file), settings.decoding.draft_length) for file in files]
        lines = screen(runs)
        if len(runs) > 1:
            resampling = Resampling(**vars(settings.statistics))
            speeds, notes = compare(runs[0], runs[1:], resampling)
            lines = [*screen(runs[1:], speeds), *notes]
        lines += untold(runs)
        lines += [
            f"{run.path.name}: left out: {counted(run.counts.excluded)}"
            for run in runs
            if run.counts.excluded
        ]
        if len(runs) > 1:
            lines += recommendation(runs[0], runs[1:], speeds)
        else:
            lines.append("for the speed give the same server without drafts as well: BASE SPEC...")
        print("\n".join(lines))
        if checked and not _checked(runs[0], runs[1:], overrides):
            raise SystemExit(1)


def _checked(base: Run, runs: Sequence[Run], overrides: Sequence[str]) -> bool:
    from pipeline.engines.check import CheckedStudy
    from pipeline.study import Study

    study = Study("stage=drafts", *overrides)
    models, passed = CheckedStudy(study), True
    drafter = "prompt look-up" if study.config.drafter is None else study.config.drafter.label
    target = study.config.targets[study.targets[0]].label
    for run in runs:
        checks = models.checks(base, run)
        print(
            f"\n{run.path.name}, {run.counts.engine}, {target}, drafts of {run.length} by "
            f"{drafter}:"
        )
        for check in checks:
            print(f"  {'pass' if check.passed else 'FAIL'}  {check.name:<10} {check.text}")
            passed &= check.passed
    return passed


if __name__ == "__main__":
    main(sys.argv[1:])
