"""Re-hash every artifact: ``python -m pipeline.verify [OUTPUTS]`` (``make verify``)."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.artifacts import NOT_CONTENT, RECORD, Artifact, content_digest
from pipeline.errors import PipelineError
from pipeline.fingerprint import file_digest
from pipeline.paths import OUTPUTS


def problems(artifact: Artifact) -> list[str]:
    """Return what is wrong with an artifact, an empty list when nothing is."""
    try:
        recorded = artifact.record["files"]
        content = artifact.record["content"]
    except (PipelineError, KeyError) as error:
        return [str(error)]
    found = []
    for name, digest in recorded.items():
        path = artifact.directory / name
        if not path.is_file():
            found.append(f"{path} is missing")
        elif file_digest(path) != digest:
            found.append(f"{path} differs from its checksum in {RECORD}")
    present = {
        path.relative_to(artifact.directory).as_posix()
        for path in artifact.directory.rglob("*")
        if path.is_file()
    }
    unknown = sorted(present - set(recorded) - {RECORD} - NOT_CONTENT)
    found += [f"{artifact.directory / name} is not in {RECORD}" for name in unknown]
    if content_digest(recorded) != content:
        found.append(f"{artifact.directory / RECORD} contradicts itself")
    return found


def main(arguments: list[str]) -> int:
    """Verify the store and return the exit status."""
    root = (Path(arguments[0]) if arguments else OUTPUTS) / "artifacts"
    if not root.is_dir():
        raise SystemExit(
            f"error: {root} does not exist: nothing was computed there. Another place: "
            "python -m pipeline.verify OUTPUTS"
        )
    directories = sorted(
        path.parent for path in root.glob(f"*/*/{RECORD}") if not path.parent.name.startswith(".")
    )
    damaged = 0
    for directory in directories:
        found = problems(Artifact(directory))
        damaged += bool(found)
        for problem in found:
            print(problem, file=sys.stderr)
        if found:
            print(f"  -> delete {directory} and run the same command again", file=sys.stderr)
    unrecorded = sorted(
        path
        for path in root.glob("*/*")
        if path.is_dir() and not path.name.startswith(".") and not (path / RECORD).exists()
    )
    for path in unrecorded:
        print(
            f"{path} has no {RECORD}\n  -> delete it and run the same command again",
            file=sys.stderr,
        )
    print(f"{len(directories)} artifacts verified, {damaged + len(unrecorded)} damaged")
    return 1 if damaged or unrecorded else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
