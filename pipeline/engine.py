"""Which draft length an engine should have: ``python -m pipeline.engine BASE SPEC...``.

BASE is a run of a server without drafts, each SPEC one of the same server with drafts. A run is a
file of answers that ``pipeline.ask`` saved, or that an OpenAI-compatible server gave, or a page of
/metrics. Prints acceptance by position, tokens of a pass, what a step costs, the speed with its
interval, and the recommended draft length. Of a single file: what it counts.

With the study that was asked (``study=mini target=mini_large drafter=mini``, for prompt look-up
``drafter=none decoding.lookup_match=earliest``) it also checks each SPEC, and ends with status 1
where a check fails. texts: answers with and without drafts are equal, but for near-ties of logits.
calls: what was accepted, call by call, is what the study's drafter predicts along the same answers.
certified: no certified token was rejected. tokens: those of a pass, predicted along the answers
*without* drafts. decoding.draft_length says how many tokens a draft has where a file does not tell.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.statistics.bootstrap import Resampling
from pipeline.config import composed, files_and_overrides, settings_of
from pipeline.errors import PipelineError, command

WORDS = {True: "pass", False: "FAIL", None: "    "}
OF_A_STUDY = ("study=", "target=", "drafter=")


def main(arguments: Sequence[str]) -> None:
    """Compare the runs that the command line names.

    Raises:
        SystemExit: with status 1 where a check fails.
    """
    usage = "python -m pipeline.engine BASE SPEC... [OVERRIDES]"
    with command(usage, __doc__, arguments):
        files, overrides = files_and_overrides(arguments)
        settings = settings_of(composed(overrides))
        checked = any(word.startswith(OF_A_STUDY) for word in overrides)
        if len(files) < 1 + checked:
            what = "a study to check with" if files else "no file"
            raise PipelineError(f"{what} was given, and not BASE and SPEC: {usage}")
        given, chosen = settings.decoding.draft_length, settings.statistics
        statistics = Resampling(chosen.resamples, chosen.confidence, chosen.seed)
        paths = [Path(file) for file in files]
        _compared(paths, given, statistics)
        if checked and not _checked(paths, overrides):
            raise SystemExit(1)


def _compared(paths: Sequence[Path], length: int | None, statistics: Resampling) -> None:
    """Print the table and the recommendation."""
    from pipeline.engines.runs import compare, read_engine_run, recommendation, screen

    runs = [read_engine_run(path, length) for path in paths]
    if len(runs) == 1:
        print("\n".join(screen(None, runs, None)))
        print("for the speed give the same server without drafts as well: BASE SPEC...")
        return
    found = compare(runs[0], runs[1:], statistics)
    print("\n".join([*screen(runs[0], runs[1:], found), *recommendation(runs[1:], found)]))


def _checked(paths: Sequence[Path], overrides: Sequence[str]) -> bool:
    """Print the checks of each run with drafts; return whether all pass."""
    from pipeline.engines.check import CheckedRuns, lines_of
    from pipeline.study import Study

    study = Study("stage=drafts", *overrides)
    drafter, passed = study.config.drafter, True
    for path in paths[1:]:
        runs = CheckedRuns(study, path, paths[0])
        print(
            f"\n{path.name}, {runs.counts.engine}, {study.config.targets[study.targets[0]].label}, "
            f"drafts of {runs.length} by "
            f"{'prompt look-up' if drafter is None else drafter.label}:"
        )
        for line in lines_of(runs):
            print(f"  {WORDS[line.passed]}  {line.name:<10} {line.text}")
            passed &= line.passed is not False
    return passed


if __name__ == "__main__":
    main(sys.argv[1:])
