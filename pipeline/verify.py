"""Re-hash all artifacts: ``python -m pipeline.verify [outputs=DIRECTORY]`` (``make verify``).

A damaged artifact is named and set aside; the next run that needs it makes it anew. A damaged model
that was converted is named; a run refuses it until ``python -m tools.smollm2`` makes it again. What
can't be read is named. What a killed run left is counted: the next run of the same command goes on
from it. What no run will go on with is removed.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from pipeline.core.commands import command
from pipeline.core.errors import DamagedError, PipelineError, one_line
from pipeline.core.paths import OUTPUTS
from pipeline.core.store import Store
from pipeline.inputs.integrity import SUMS
from pipeline.inputs.integrity import damaged as damaged_model
from pipeline.settings.composition import OVERRIDE, composed, settings_of
from pipeline.study import STAGES

USAGE = "python -m pipeline.verify [outputs=DIRECTORY]"
# what a check finds
WHOLE = "whole"
DAMAGED = "damaged"
UNREADABLE = "unreadable"


def main(arguments: list[str]) -> int:
    """Verify the outputs and return the exit status."""
    with command(USAGE, __doc__, arguments):
        return _verify(_outputs(arguments))


def _outputs(arguments: list[str]) -> Path:
    """Return the directory that the arguments name: outputs=DIRECTORY, or DIRECTORY alone."""
    named = [word for word in arguments if word.startswith("outputs=")]
    rest = [word for word in arguments if word not in named]
    keys = [word for word in rest if OVERRIDE.match(word) and not Path(word).is_dir()]
    given = [*named, *(word for word in rest if word not in keys)]
    if superfluous := keys + given[1:]:
        raise PipelineError(f"{' '.join(superfluous)}: not taken; usage: {USAGE}")
    if named:
        return Path(settings_of(composed(named)).outputs)
    return Path(*given) if given else OUTPUTS


def _verify(outputs: Path) -> int:
    store = Store(outputs / "artifacts")
    if not store.root.is_dir():
        raise PipelineError(f"{store.root} does not exist: give outputs=DIRECTORY, another one")
    artifacts = _check_artifacts(store)
    models = _check_models(outputs / "models")
    left = [store.remove_abandoned(stage) for stage in STAGES.values()]
    checked = [_counted(artifacts, "artifacts")]
    if models:
        checked.append(_counted(models, "models"))
    print(f"{'; '.join(checked)}; {sum(map(len, left))} unfinished")
    found = artifacts + models
    return int(found[WHOLE] < found.total())


def _check_artifacts(store: Store) -> Counter[str]:
    """Check every artifact, set damaged ones aside, and count what was found."""
    found = Counter[str]()
    for artifact in store.all(STAGES.values()):
        try:
            artifact.check()
            found[WHOLE] += 1
        except DamagedError as damage:
            found[DAMAGED if _set_aside(store, damage) else WHOLE] += 1
        except (PipelineError, OSError) as error:
            found[UNREADABLE] += 1
            print(one_line(error), file=sys.stderr)
    return found


def _check_models(folder: Path) -> Counter[str]:
    """Check every converted model, name damaged ones, and count what was found."""
    found = Counter[str]()
    for place in sorted(path.parent for path in folder.glob(f"*/{SUMS}")):
        try:
            name = damaged_model(place)
        except OSError as error:
            found[UNREADABLE] += 1
            print(one_line(error), file=sys.stderr)
            continue
        found[DAMAGED if name else WHOLE] += 1
        if name:
            again = "make it again with python -m tools.smollm2"
            print(f"{place}: {name} is damaged: {again}", file=sys.stderr)
    return found


def _counted(found: Counter[str], what: str) -> str:
    """Return what was found in words: 3 artifacts verified, 1 damaged, 1 unreadable."""
    unreadable = f", {found[UNREADABLE]} unreadable" if found[UNREADABLE] else ""
    return f"{found[WHOLE]} {what} verified, {found[DAMAGED]} damaged{unreadable}"


def _set_aside(store: Store, damage: DamagedError) -> bool:
    """Set a damaged artifact aside; return whether it is still damaged: a run may mend it."""
    try:
        return store.set_aside(damage)
    except PipelineError as error:
        print(one_line(error), file=sys.stderr)
        return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
