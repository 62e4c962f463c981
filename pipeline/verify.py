"""Re-hash every artifact: ``python -m pipeline.verify [OUTPUTS]`` (``make verify``).

What is damaged is named and set aside; the next run that needs it makes it anew. What a killed run
left is counted: the next run of the same command goes on from it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.core.errors import DamagedError, PipelineError, command
from pipeline.core.paths import OUTPUTS
from pipeline.core.store import Store
from pipeline.inputs.hub import SUMS
from pipeline.inputs.hub import damaged as damaged_model
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
    count = damaged = 0
    for artifact in store.all(STAGES.values()):
        count += 1
        try:
            artifact.check()
        except DamagedError as damage:
            damaged += _set_aside(store, damage)
    for place in sorted(path.parent for path in (outputs / "models").glob(f"*/{SUMS}")):
        if name := damaged_model(place):
            damaged += 1
            again = "make it again with python -m tools.smollm2"
            print(f"{place}: {name} is damaged: {again}", file=sys.stderr)
    partial = sum(1 for stage in STAGES for _ in (store.root / stage).glob(".*.partial"))
    print(f"{count} artifacts verified, {damaged} damaged; {partial} unfinished")
    return int(damaged > 0)


def _set_aside(store: Store, damage: DamagedError) -> bool:
    """Set a damaged artifact aside; return whether it is still damaged: a run may mend it."""
    try:
        return store.set_aside(damage.directory)
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"damaged, not set aside: {damage.reason} ({error.strerror})", file=sys.stderr)
        return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
