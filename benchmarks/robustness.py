"""Does anything get lost? ``python -m benchmarks.robustness --kills 200 --damages 600``.

A study of tiny random models, all stages and the report, is

- killed just before or after an operation on files (sync, rename, removal), any one of them, or
  at any moment, and gone on with until it is complete;
- asked for by four processes at once;
- damaged: bytes of tables, records, figures, shards and plans are flipped, cut, added, removed.

After each, everything is held against an undisturbed run: nothing published or finished is
computed again, no content differs, ``pipeline.verify`` finds all damage, the next run mends it by
itself, and nothing is left over. The tests run a few of each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.trial import Trial, run, study
from pipeline.execution import shards
from pipeline.plan.graph import RESUMABLE, VERSIONS

OPERATIONS = ((os, "fsync"), (Path, "rename"), (Path, "unlink"), (shutil, "rmtree"))


def dying(at: int, after: bool) -> Callable[[], None]:
    """Return what makes a process kill itself at its operation number `at` on files."""

    def prepare() -> None:
        count = 0

        def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
            def operation(*arguments: Any, **options: Any) -> Any:
                nonlocal count
                count += 1
                if count == at and not after:
                    os.kill(os.getpid(), signal.SIGKILL)
                result = real(*arguments, **options)
                if count == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            return operation

        for owner, name in OPERATIONS:
            setattr(owner, name, wrap(getattr(owner, name)))

    return prepare


def kill(trial: Trial, chance: random.Random, seconds: float) -> bool:
    """Run the study and kill it somewhere; return whether it was killed before it was done."""
    if chance.random() < 0.7:
        status = trial.run("report", dying(chance.randint(1, 120), chance.random() < 0.5))
    else:
        process = trial.start("report")
        time.sleep(chance.uniform(0, seconds))
        os.kill(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status in (0, -signal.SIGKILL), trial.log.read_text()
    return status != 0


def kills(new: Callable[[str], Trial], count: int, seed: int = 0) -> Counter[str]:
    """Kill studies `count` times; each goes on from kill to kill until it is complete."""
    chance, done = random.Random(seed), Counter[str]()
    whole = new("whole")
    begun = time.monotonic()
    whole.complete()
    seconds, wanted = time.monotonic() - begun, whole.contents()
    life = 0
    while done["kills"] < count:
        trial = new(f"life{life}")
        life += 1
        while done["kills"] < count and kill(trial, chance, seconds):
            done["kills"] += 1
            done["kills of a run that had published something"] += bool(trial.artifacts())
            status, said = trial.verified()
            assert status == 0, said
            assert trial.contents().items() <= wanted.items()
            places = {path: path.stat().st_ino for path in trial.artifacts().values()}
            kept = trial.finished()
            done["finished shards found after a kill"] += len(kept)
            if chance.random() < 0.5:  # else goes on under the next kill
                trial.complete("acceptance")
                again = (
                    set(trial.computed.read_text().split("\n"))
                    if trial.computed.exists()
                    else set()
                )
                assert not kept & again, "a finished shard was computed again"
                assert all(path.stat().st_ino == inode for path, inode in places.items())
        trial.complete()
        assert trial.contents() == wanted
        assert not trial.leftovers(), trial.leftovers()
        assert trial.verified()[0] == 0
        done["studies completed"] += 1
        shutil.rmtree(trial.outputs)
    return done


def rounds(new: Callable[[str], Trial], count: int, seed: int = 0) -> Counter[str]:
    """Let four processes ask for the same artifacts at once, `count` times."""
    chance, done = random.Random(seed), Counter[str]()
    whole = new("whole")
    whole.complete()
    wanted = whole.contents()
    for at in range(count):
        trial = new(f"round{at}")
        asked = [
            "report",
            *chance.choices(["report", "acceptance", "certificates", "decoding"], k=3),
        ]
        for process in [trial.start(stage) for stage in asked]:
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            assert status == 0, trial.log.read_text()
        printed = trial.log.read_text()
        assert printed.count(": computing") == len(wanted), printed
        assert trial.contents() == wanted
        assert not trial.leftovers(), trial.leftovers()
        assert trial.verified()[0] == 0
        done["rounds"] += 1
        done["waits for another process"] += printed.count("another process")
        shutil.rmtree(trial.outputs)
    return done


def damage(path: Path, chance: random.Random) -> str:
    """Damage a file in some way that changes it; return which."""
    content = path.read_bytes()
    kinds: dict[str, Callable[[], bytes | None]] = {
        "bit flipped": lambda: _flipped(content, chance),
        "cut": lambda: content[: chance.randrange(len(content))],
        "emptied": lambda: b"",
        "zeros": lambda: content[: len(content) // 2] + bytes(len(content) - len(content) // 2),
        "noise": lambda: chance.randbytes(len(content)),
        "longer": lambda: content + chance.randbytes(chance.randint(1, 9)),
        "removed": lambda: None,
    }
    kind = chance.choice(["bit flipped", "bit flipped", *kinds])
    changed = kinds[kind]()
    if changed is None:
        path.unlink()
    else:
        assert changed != content
        path.write_bytes(changed)
    return kind


def _flipped(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def damages(new: Callable[[str], Trial], count: int, seed: int = 0) -> Counter[str]:
    """Damage files of a complete study and of an interrupted one, `count` times."""
    chance, done = random.Random(seed), Counter[str]()
    whole, cut = new("whole"), new("interrupted")
    whole.complete()
    whole.complete("accuracy")  # no part of a report, and resumed as the others
    wanted = whole.contents()
    stopped = interrupted(cut)
    for _ in range(count):
        if chance.random() < 0.25:
            damaged_shard(cut, stopped, wanted, chance, done)
        else:
            damaged_artifact(whole, wanted, chance, done)
    return done


def interrupted(trial: Trial) -> dict[str, Path]:
    """Stop every long stage after its first shards; return copies of the outputs by stage."""
    found = {}
    for stage in sorted(RESUMABLE, key=list(VERSIONS).index):

        def stopping() -> None:
            real = shards.Plan.finish

            def finish(plan: Any, *rest: Any) -> None:
                real(plan, *rest)
                if len(plan.unfinished()) <= 1:
                    os.kill(os.getpid(), signal.SIGKILL)

            shards.Plan.finish = finish  # type: ignore[assignment, method-assign]

        trial.run(stage, stopping)
        found[stage] = trial.outputs.with_name(f"interrupted in {stage}")
        shutil.copytree(trial.outputs, found[stage])
        trial.complete(stage)
    return found


def damaged_shard(
    trial: Trial,
    stopped: dict[str, Path],
    wanted: dict[str, str],
    chance: random.Random,
    done: Counter[str],
) -> None:
    """Damage a shard or a plan; the run that goes on must end as if nothing had been."""
    stage = chance.choice(list(stopped))
    shutil.rmtree(trial.outputs, ignore_errors=True)
    shutil.copytree(stopped[stage], trial.outputs)
    [partial] = (trial.outputs / "artifacts" / stage).glob(".*.partial")
    files = [partial / "plan.json", *sorted((partial / "shards").iterdir())]
    kind = damage(chance.choice(files), chance)
    if kind != "removed":  # what is not there is computed again
        assert trial.verified()[0] == 1
    printed = trial.complete(stage)
    assert kind == "removed" or "computed again" in printed, printed
    assert trial.contents().items() <= wanted.items()
    assert trial.verified()[0] == 0
    done[f"shards and plans {kind}"] += 1


def damaged_artifact(
    trial: Trial, wanted: dict[str, str], chance: random.Random, done: Counter[str]
) -> None:
    """Damage a file of an artifact, which verify or the run that asks for it must find."""
    name = chance.choice(sorted(trial.artifacts()))
    directory = trial.artifacts()[name]
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    file = directory / "record.json" if chance.random() < 0.4 else chance.choice(files)
    kind = damage(file, chance)
    if chance.random() < 0.5:
        status, said = trial.verified()
        assert status == 1, f"{file} {kind}: verify found nothing"
        assert str(directory) in said
        trial.complete(name.split("/")[0])
    else:
        printed = trial.complete(name.split("/")[0])
        assert f"damaged: {directory}" in printed, f"{file} {kind}: {printed}"
    assert trial.contents() == wanted
    status, said = trial.verified()
    assert status == 0, said
    [aside] = (trial.outputs / "artifacts/quarantine").glob("*/*")
    shutil.rmtree(aside)
    done[f"{'records' if file.name == 'record.json' else 'other files'} {kind}"] += 1


def main(arguments: list[str]) -> None:
    """Run all trials and say what was found; the first that fails ends with its traceback."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("kills", 200), ("rounds", 20), ("damages", 600), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = vars(parser.parse_args(arguments))
    seed = given.pop("seed")
    with tempfile.TemporaryDirectory() as folder:
        overrides = study(Path(folder))
        torch.set_num_threads(1)
        run([*overrides, f"outputs='{folder}/warm'", "stage=decoding"])  # compiled and imported
        run([*overrides, f"outputs='{folder}/warm'", "stage=acceptance"])  # once, for all forks
        for trials in (kills, rounds, damages):
            base = Path(folder) / trials.__name__
            base.mkdir()
            begun = time.monotonic()
            done = trials(partial(trial, overrides, base), given[trials.__name__], seed)
            print(
                f"{trials.__name__}: nothing lost, nothing silent in "
                f"{time.monotonic() - begun:.0f} s: {json.dumps(done)}",
                flush=True,
            )


def trial(overrides: list[str], base: Path, name: str) -> Trial:
    """Return the trial `name` below `base`."""
    return Trial(overrides, base / name)


if __name__ == "__main__":
    main(sys.argv[1:])
