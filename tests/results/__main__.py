"""``python -m tests.results STAGE ...`` accepts what stages with new versions compute.

Without a stage it only says how the results of all of them compare with the committed ones.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pipeline.plan.graph import VERSIONS
from tests.results import differences, load, moved, save, verdict
from tests.results.study import FixedStudy


def main(stages: list[str]) -> int:
    """Accept the named stages, or say how all of them stand; return the exit status."""
    unknown = sorted(set(stages) - set(VERSIONS))
    if unknown:
        raise SystemExit(f"no stage {', '.join(unknown)}; stages: {', '.join(VERSIONS)}")
    with tempfile.TemporaryDirectory() as folder:
        study = FixedStudy(Path(folder))
        if stages:
            accepted = [accept(study, stage) for stage in VERSIONS if stage in stages]
            return int(not all(accepted))
        acceptable = [stage for stage in VERSIONS if show(study, stage)]
    if acceptable:
        print(f"to accept: python -m tests.results {' '.join(acceptable)}")
    return 0


def accept(study: FixedStudy, stage: str) -> bool:
    """Write what a stage computes, unless it is refused; return whether it was written."""
    versions, results = study.versions(stage), study.results(stage)
    reason = refusal(stage, versions, results)
    if reason is None:
        save(stage, versions, results)
    print(reason or f"{stage}: accepted as version {versions[stage]}")
    return reason is None


def show(study: FixedStudy, stage: str) -> bool:
    """Print how a stage stands; return whether there is something that can be accepted."""
    versions, results = study.versions(stage), study.results(stage)
    print(verdict(stage, versions, results) or f"{stage}: as committed")
    return refusal(stage, versions, results) is None


def refusal(stage: str, versions: dict[str, int], results: object) -> str | None:
    """Return why results can't be accepted, None if they can."""
    committed = load(stage)
    if committed is None:
        if versions[stage] == 1:
            return None
        return (
            f"{stage}: refused: tests/results/{stage}.json is missing and this is not the stage's "
            "first version: restore the file"
        )
    try:
        changed = moved(stage, committed["versions"], versions)
    except ValueError as error:
        return f"{stage}: refused: {error}"
    if changed:
        return None
    if not differences(stage, committed["results"], results):
        return f"{stage}: refused: nothing changed, neither results nor versions"
    return f"{stage}: refused: {verdict(stage, versions, results)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
