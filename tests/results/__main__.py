"""``python -m tests.results STAGE ...`` accepts what stages with new versions compute.

Without a stage it only says how the results of all of them compare with the committed ones.
"""

import sys
import tempfile
from pathlib import Path

from pipeline.study import STAGES
from tests.results import load, save, verdict
from tests.results.study import FixedStudy


def main(stages):
    """Accept the named stages, or say how all of them stand; return the exit status."""
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        study = FixedStudy(Path(folder))
        for stage in STAGES:
            if stages and stage not in stages:
                continue
            versions, results = study.versions(stage), study.results(stage)
            wrong = verdict(stage, versions, results)
            if stages and load(stage)["versions"] != versions:
                save(stage, versions, results)
                wrong = f"{stage}: accepted as version {versions[stage]}"
            elif stages and wrong:
                refused += 1
            print(wrong or f"{stage}: as committed")
    return refused


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
