"""Re-hash every artifact: ``python -m pipeline.verify [OUTPUTS]`` (``make verify``).

What is damaged is named and set aside; the next run that needs it makes it anew. What can't be read
is named. What a killed run left is counted: the next run of the same command goes on from it. What
no run will go on with is removed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.core.commands import command
from pipeline.core.errors import DamagedError, PipelineError, one_line
from pipeline.core.paths import OUTPUTS
from pipeline.core.store import Store
from pipeline.inputs.integrity import SUMS
from pipeline.inputs.integrity import damaged as damaged_model
from pipeline.study import STAGES


def main(arguments: list[str]) -> int:
    """Verify the store and return the exit status."""
    with command("python -m pipeline.verify [OUTPUTS]", __doc__, arguments):
        return _verify(Path(arguments[0]) if arguments else OUTPUTS)


def _verify(outputs: Path) -> int:
    store = Store(outputs / "artifacts")
    if not store.root.is_dir():
        raise PipelineError(
            f"{store.root} does not exist: give another, python -m pipeline.verify OUTPUTS"
        )
    count = damaged = unreadable = 0
    for artifact in store.all(STAGES.values()):
        count += 1
        try:
            artifact.check()
        except DamagedError as damage:
            damaged += _set_aside(store, damage)
        except (PipelineError, OSError) as error:
            unreadable += 1
            print(one_line(error), file=sys.stderr)
    for place in sorted(path.parent for path in (outputs / "models").glob(f"*/{SUMS}")):
        try:
            name = damaged_model(place)
        except OSError as error:
            unreadable += 1
            print(one_line(error), file=sys.stderr)
            continue
        if name:
            damaged += 1
            again = "make it again with python -m tools.smollm2"
            print(f"{place}: {name} is damaged: {again}", file=sys.stderr)
    unfinished = sum(len(store.unfinished(stage)) for stage in STAGES.values())
    denied = f", {unreadable} unreadable" if unreadable else ""
    print(f"{count} artifacts verified, {damaged} damaged{denied}; {unfinished} unfinished")
    return int(damaged + unreadable > 0)


def _set_aside(store: Store, damage: DamagedError) -> bool:
    """Set a damaged artifact aside; return whether it is still damaged: a run may mend it."""
    try:
        return store.set_aside(damage)
    except PipelineError as error:
        print(one_line(error), file=sys.stderr)
        return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
