"""Re-hash every artifact: ``python -m pipeline.verify [OUTPUTS]`` (``make verify``).

What is damaged is named and set aside; the next run that needs it makes it anew. What killed runs
left half-written is removed. Finished shards stay, and the run that goes on from them checks them.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock

from pipeline.errors import PipelineError, command
from pipeline.hub import SUMS
from pipeline.hub import damaged as damaged_model
from pipeline.paths import OUTPUTS
from pipeline.plan.graph import STAGES
from pipeline.store.artifacts import Artifact, Pending, Store


def main(arguments: list[str]) -> int:
    """Verify the store and return the exit status."""
    with command("python -m pipeline.verify [OUTPUTS]", __doc__, arguments):
        return _verify(Path(arguments[0]) if arguments else OUTPUTS)


def _verify(outputs: Path) -> int:
    root = outputs / "artifacts"
    if not root.is_dir():
        raise PipelineError(
            f"{root} does not exist: nothing was computed there. Another place: "
            "python -m pipeline.verify OUTPUTS"
        )
    paths = (path for stage in STAGES for path in sorted((root / stage).glob("[!.]*")))
    artifacts = [path for path in paths if path.is_dir()]
    damaged, unreadable = list[Path](), list[str]()
    for directory in artifacts:
        try:
            damaged += [directory] if Artifact(directory).damage() else []
        except PipelineError as error:  # not for this user
            unreadable.append(str(error))
            print(error, file=sys.stderr)
    try:
        damaged = Store(root).set_aside(damaged)  # those that nobody mended meanwhile
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"damaged, not set aside: {error.filename}: {error.strerror}", file=sys.stderr)
    places = sorted(path.parent for path in (outputs / "models").glob(f"*/{SUMS}"))
    models = [f"{place}: {name}" for place in places if (name := damaged_model(place))]
    for model in models:
        print(f"{model} is damaged: make it again with python -m tools.smollm2", file=sys.stderr)
    print(
        f"{len(artifacts)} artifacts verified, {len(damaged) + len(unreadable)} damaged; "
        f"{sum(_unfinished(root, stage) for stage in STAGES)} unfinished"
    )
    return 1 if damaged or unreadable or models else 0


def _unfinished(root: Path, stage: str) -> int:
    """Remove half-written files of killed runs of a stage; return how many runs can go on.

    Where another process computes the stage, or outputs are read-only, nothing is removed.
    """
    left = list((root / stage).glob(".*.partial"))
    # a process locks its artifact before it makes the directory; a killed one's lock is free
    locks = (root / ".locks").glob(f"{stage}-*.lock") if left else ()
    with suppress(OSError), ExitStack() as held:
        for lock in locks:
            held.enter_context(FileLock(lock, timeout=0))
        for workspace in left:
            Pending(workspace / "artifact", stage, workspace).drop()
    return sum(workspace.exists() for workspace in left)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
