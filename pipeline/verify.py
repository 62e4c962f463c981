"""Re-hash every artifact: ``python -m pipeline.verify [OUTPUTS]`` (``make verify``).

What is damaged is named and set aside; the next run that needs it makes it anew. What killed runs
left half-written is removed. Finished shards stay, and the run that goes on from them checks them.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock

from pipeline.errors import DamagedError, PipelineError, command
from pipeline.hub import SUMS
from pipeline.hub import damaged as damaged_model
from pipeline.paths import OUTPUTS
from pipeline.store import Store, drop_unfinished
from pipeline.study import STAGES


def main(arguments: list[str]) -> int:
    """Verify the store and return the exit status."""
    with command("python -m pipeline.verify [OUTPUTS]", __doc__, arguments):
        return _verify(Path(arguments[0]) if arguments else OUTPUTS)


def _verify(outputs: Path) -> int:
    store = Store(outputs / "artifacts")
    if not store.root.is_dir():
        raise PipelineError(
            f"{store.root} does not exist: nothing was computed there. Another place: "
            "python -m pipeline.verify OUTPUTS"
        )
    count = damaged = 0
    for artifact in store.all(STAGES.values()):
        count += 1
        try:
            artifact.check()
        except DamagedError as damage:
            damaged += _set_aside(store, damage)
        except PipelineError as error:  # not for this user
            damaged += 1
            print(error, file=sys.stderr)
    places = sorted(path.parent for path in (outputs / "models").glob(f"*/{SUMS}"))
    models = [f"{place}: {name}" for place in places if (name := damaged_model(place))]
    for model in models:
        print(f"{model} is damaged: make it again with python -m tools.smollm2", file=sys.stderr)
    unfinished = sum(_unfinished(store.root, stage) for stage in STAGES)
    print(f"{count} artifacts verified, {damaged} damaged; {unfinished} unfinished")
    return 1 if damaged or models else 0


def _set_aside(store: Store, damage: DamagedError) -> bool:
    """Set a damaged artifact aside; return whether it is still damaged: a run may mend it."""
    try:
        return store.set_aside(damage.directory)
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"damaged, not set aside: {damage.reason} ({error.strerror})", file=sys.stderr)
        return True


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
        for work in left:
            drop_unfinished(work)
    return sum(work.exists() for work in left)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
