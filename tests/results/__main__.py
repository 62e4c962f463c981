"""``python -m tests.results STAGE ...`` accepts what stages with new versions compute.

Without a stage it only says how the results of all of them compare with the committed ones.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pipeline.stages import VERSIONS
from tests.results import differences, load, moved, save, verdict
from tests.results.study import FixedStudy


def main(stages: list[str]) -> int:
    """Accept the named stages, or show the state of all; return the exit status."""
    unknown = sorted(set(stages) - set(VERSIONS))
    if unknown:
        raise SystemExit(f"no stage {', '.join(unknown)}; stages: {', '.join(VERSIONS)}")
    refused = False
    with tempfile.TemporaryDirectory() as folder:
        study = FixedStudy(Path(folder))
        for stage in VERSIONS:
            if not stages or stage in stages:
                versions, results = study.versions(stage), study.results(stage)
                reason = refusal(stage, versions, results) if stages else None
                if not stages:
                    print(verdict(stage, versions, results) or f"{stage}: as committed")
                elif reason is not None:
                    print(reason)
                    refused = True
                else:
                    save(stage, versions, results)
                    print(f"{stage}: accepted as version {versions[stage]}")
    return int(refused)


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
