"""Lists what nothing refers to, and removes it: ``python -m pipeline.gc [--delete]`` (``make gc``).

A command refers to the artifacts that it asked for when it was last run, and to all they are made
from; so does each point of a sweep. With a new version of a stage, or other prompts or weights
under the same paths, the same command refers to new artifacts, and the old ones become free. Free
are also unfinished artifacts that no command refers to, and all that was damaged and set aside.
`--forget TEXT` lets go of the commands that contain TEXT.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError
from pipeline.execution.runner import shown
from pipeline.paths import OUTPUTS
from pipeline.plan.graph import VERSIONS, Node, with_upstream
from pipeline.store.artifacts import QUARANTINE, Store
from pipeline.store.durable import read_sealed, write_sealed

COMMANDS = ".commands"  # beside the stages: what each command refers to


def refer(command: str, nodes: Iterable[Node], store: Store) -> None:
    """Note that `command` refers to `nodes` and to all they are made from."""
    key = hashlib.sha256(command.encode()).hexdigest()[:12]
    folder = store.root / COMMANDS
    with store.moving():  # nothing is collected now
        folder.mkdir(exist_ok=True)
        note = {"command": command, "fingerprints": sorted(with_upstream(nodes))}
        write_sealed(folder / f"{key}.json", note)


def references(root: Path) -> dict[Path, dict[str, Any]]:
    """Return the note of every command, by file.

    Raises:
        PipelineError: one can't be read, so that what it refers to is not known.
    """
    found = {}
    for path in sorted((root / COMMANDS).glob("*.json")):
        try:
            found[path] = read_sealed(path)
        except ValueError as error:
            raise PipelineError(
                f"{path} {error}: what its command refers to is not known. Run your studies "
                f"again, and let go of this one: --forget {path.stem}"
            ) from error
    return found


def free(root: Path, kept: set[str]) -> Iterator[Path]:
    """Yield the directories that none of the hashes `kept` names, and what was set aside."""
    for stage in VERSIONS:
        for path in sorted((root / stage).glob("*")):
            if path.is_dir() and path.name.removesuffix(".partial")[-12:] not in kept:
                yield path
    yield from sorted((root / QUARANTINE).glob("*/*"))


def size(path: Path) -> int:
    """Return the bytes of all files below `path`."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def collect_garbage(root: Path, forget: str | None, delete: bool) -> None:
    """List what is free, and remove it when `delete` is set.

    Raises:
        PipelineError: as in `references`.
    """
    with Store(root).moving():  # no command begins to refer to something meanwhile
        if forget:
            let_go(root, forget)
        kept = set()
        for path, note in references(root).items():
            kept |= {name[:12] for name in note["fingerprints"]}
            when = datetime.fromtimestamp(path.stat().st_mtime)
            print(f"kept for: {note['command']} (last run {when:%Y-%m-%d})")
        total, found = 0, list(free(root, kept))
        for path in found:
            total += (held := size(path))
            print(f"{'removed' if delete else 'free'}: {held / 1e6:8.1f} MB  {shown(path)}")
            if delete:
                shutil.rmtree(path)
    print(
        f"{len(found)} directories, {total / 1e6:.1f} MB"
        + (" removed" if delete else " that nothing refers to: --delete removes them")
    )


def let_go(root: Path, text: str) -> None:
    """Forget the commands that contain `text`, and the note of that name."""
    for path in sorted((root / COMMANDS).glob("*.json")):
        try:
            command = read_sealed(path)["command"]
        except ValueError:
            command = ""
        if text in command or text == path.stem:
            path.unlink()
            print(f"forgotten: {command or path.stem}")


def main(arguments: list[str]) -> None:
    """Collect, or say why not."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.gc", description=__doc__)
    parser.add_argument("outputs", nargs="?", type=Path, default=OUTPUTS)
    parser.add_argument("--delete", action="store_true", help="remove what is listed as free")
    parser.add_argument("--forget", metavar="TEXT", help="let go of the commands that contain TEXT")
    given = parser.parse_args(arguments)
    root = given.outputs / "artifacts"
    if not root.is_dir():
        parser.error(f"{root} does not exist: nothing was computed there")
    try:
        collect_garbage(root, given.forget, given.delete)
    except PipelineError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
