"""Re-hash every artifact: ``python -m pipeline.verify [OUTPUTS]`` (``make verify``).

What is damaged is named and set aside; the next run that needs it makes it anew.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pipeline.console import command
from pipeline.errors import PipelineError
from pipeline.execution.shard_plan import PLAN, Plan
from pipeline.gguf_models.source import damaged_models
from pipeline.paths import OUTPUTS
from pipeline.plan.graph import STAGES
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.durable import file_digest

PARTIAL = ".partial"


def damaged_shards(partial: Path) -> list[str]:
    """Return what is damaged of the shards that an interrupted run left.

    The run that goes on discards them and computes them again.
    """
    try:
        plan = Plan.load(partial / PLAN)
    except FileNotFoundError:
        return []  # nothing is taken from this directory
    except ValueError as error:
        return [f"{partial / PLAN} {error}"]
    return [
        f"{plan.file(shard)} differs from its checksum in {PLAN}"
        for shard in plan.shards
        if shard.checksum is not None
        and plan.file(shard).is_file()
        and file_digest(plan.file(shard)) != shard.checksum
    ]


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
    directories = [path for stage in STAGES for path in sorted((root / stage).glob("*"))]
    artifacts = [path for path in directories if not path.name.startswith(".")]
    damaged, failed = [], 0
    for directory in artifacts:
        try:
            problems = Artifact(directory).damage()
            if problems and directory.is_dir():  # replaced meanwhile, perhaps
                problems = Artifact(directory).damage()
        except PipelineError as error:  # not readable for this user
            problems, failed = [str(error)], failed + 1
        else:
            damaged += [directory] if problems else []
        for problem in problems:
            print(problem, file=sys.stderr)
    try:
        Store(root).set_aside(damaged)
    except OSError as error:
        print(f"not set aside: {error.filename}: {error.strerror}", file=sys.stderr)
    models = damaged_models(outputs / "models")
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
    return 1 if damaged or failed or shards or models else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
