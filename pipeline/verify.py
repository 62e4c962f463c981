"""Re-hash every artifact: ``python -m pipeline.verify [OUTPUTS]`` (``make verify``).

What is damaged is named and set aside; the next run that needs it makes it anew.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import command
from pipeline.errors import PipelineError
from pipeline.gguf_models.source import damaged_models
from pipeline.paths import OUTPUTS
from pipeline.plan.graph import VERSIONS
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.durable import file_digest, read_sealed

PARTIAL = ".partial"


def damaged_shards(partial: Path) -> list[str]:
    """Return what is damaged of the shards that an interrupted run left.

    The run that goes on discards them and computes them again.
    """
    path = partial / "plan.json"
    try:
        plan = read_sealed(path)
    except FileNotFoundError:
        return []  # nothing is taken from this directory
    except ValueError as error:
        return [f"{path} {error}"]
    files = {
        partial / "shards" / f"{shard['name']}{plan['suffix']}": shard["checksum"]
        for shard in plan["shards"]
    }
    return [
        f"{file} differs from its checksum in plan.json"
        for file, checksum in files.items()
        if file.is_file() and checksum is not None and file_digest(file) != checksum
    ]


def damaged_copies(folder: Path, reports: Sequence[Artifact]) -> list[str]:
    """Return what is wrong with the copies of `reports` in `folder`, one directory a study.

    A copy is whole if every file of one report is in it as recorded. Of a damaged one the files
    are named that differ from the report it is nearest to.
    """
    problems = []
    for place in sorted(path for path in folder.glob("[!.]*") if path.is_dir()):
        different = [
            [name for name, digest in files.items() if not _is(place / name, digest)]
            for files in (report.record["files"] for report in reports)
        ]
        nearest = min(different, key=len, default=[])
        problems += [f"{place / name} differs from its report in artifacts/" for name in nearest]
    return problems


def _is(path: Path, digest: str) -> bool:
    return path.is_file() and file_digest(path) == digest


def main(arguments: list[str]) -> int:
    """Verify the store and return the exit status."""
    with command("python -m pipeline.verify [OUTPUTS]", __doc__, arguments):
        return _verify(arguments)


def _verify(arguments: list[str]) -> int:
    root = (Path(arguments[0]) if arguments else OUTPUTS) / "artifacts"
    if not root.is_dir():
        raise SystemExit(
            f"error: {root} does not exist: nothing was computed there. Another place: "
            "python -m pipeline.verify OUTPUTS"
        )
    directories = [path for stage in VERSIONS for path in sorted((root / stage).glob("*"))]
    artifacts = [Artifact(path) for path in directories if not path.name.startswith(".")]
    damaged, reports, failed = [], [], 0
    for artifact in artifacts:
        try:
            problems = artifact.damage()
            if problems and artifact.directory.is_dir():  # replaced meanwhile, perhaps
                problems = Artifact(artifact.directory).damage()
        except PipelineError as error:  # not readable for this user
            problems, failed = [str(error)], failed + 1
        else:
            damaged += [artifact.directory] if problems else []
            reports += (
                [artifact] if not problems and artifact.directory.parent.name == "report" else []
            )
        for problem in problems:
            print(problem, file=sys.stderr)
    copies = damaged_copies(root.parent / "report", reports)
    for problem in copies:
        print(f"{problem}: the next run of the study copies it again", file=sys.stderr)
    try:
        Store(root).set_aside(damaged)
    except OSError as error:
        print(f"not set aside: {error.filename}: {error.strerror}", file=sys.stderr)
    models = damaged_models(root.parent / "models")
    for place, why in models.items():
        print(f"{place} {why}: removed, the next use converts it again", file=sys.stderr)
        shutil.rmtree(place, ignore_errors=True)
    partials = [path for path in directories if path.name.endswith(PARTIAL)]
    shards = [problem for partial in partials for problem in damaged_shards(partial)]
    for problem in shards:
        print(f"{problem}: the run that goes on discards it", file=sys.stderr)
    print(
        f"{len(artifacts)} artifacts verified, {len(damaged) + failed} damaged; "
        f"{len(partials)} unfinished, {len(shards)} of their shards and plans damaged"
    )
    return 1 if damaged or failed or shards or models or copies else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
