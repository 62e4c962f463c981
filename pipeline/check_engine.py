"""Checks that an engine decodes as predicted: ``python -m pipeline.check_engine DRAFTED [ALONE]``.

Files are answers that ``pipeline.ask`` saved, all to the same prompts: of a server with drafts, of
the same without, and, to tell noise apart, of another one without (CONTROL). Overrides name the
study, one target, and the engine's drafter: ``study=mini target=mini_large drafter=mini``, or for
prompt look-up ``drafter=none decoding.lookup_match=earliest``. decoding.draft_length says how many
tokens a draft has where the answers do not tell (llama.cpp's). Prints one screen, and ends with
status 1 where a check fails, or has nothing to compare:

texts: answers with and without drafts are equal, except at near-ties of logits. calls: what was
accepted, call by call, is what the study's drafter predicts along the same answers. certified: no
token that is certified was rejected. tokens: those of a pass, predicted along the answers *without*
drafts. Rates by place and the speed by the engine's clock stand beside.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.config import files_and_overrides
from pipeline.engines.check import CheckedRuns, lines_of
from pipeline.errors import PipelineError, command
from pipeline.study import Study

WORDS = {True: "pass", False: "FAIL", None: "    "}


def main(arguments: Sequence[str]) -> None:
    """Check the runs that the command line names.

    Raises:
        SystemExit: with status 1 where a check fails.
    """
    usage = "python -m pipeline.check_engine DRAFTED [ALONE [CONTROL]] [OVERRIDES]"
    with command(usage, __doc__, arguments):
        files, overrides = files_and_overrides(arguments)
        paths = [Path(file) for file in files]
        if not 1 <= len(paths) <= 3:
            raise PipelineError(
                f"{len(paths)} files were given: give the answers of a server with drafts, and "
                "those of one without: python -m pipeline.check_engine DRAFTED [ALONE [CONTROL]]"
            )
        drafted, alone, control = [*paths, None, None][:3]
        assert drafted is not None
        study = Study("stage=drafts", *overrides)
        runs = CheckedRuns(study, drafted, alone)
        lines = lines_of(runs, control)
        drafter = study.config.drafter
        print(
            f"\n{runs.counts.engine}, {study.config.targets[study.targets[0]].label}, drafts of "
            f"{runs.length} by {'prompt look-up' if drafter is None else drafter.label}:"
        )
        for line in lines:
            print(f"  {WORDS[line.passed]}  {line.name:<10} {line.text}")
        if any(line.passed is False for line in lines):
            raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
