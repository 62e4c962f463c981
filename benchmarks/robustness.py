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
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from pipeline import cli, shards, verify
from pipeline.durable import read_sealed
from pipeline.paths import CONF
from pipeline.report import shown
from pipeline.stages import RESUMABLE, VERSIONS
from tests.pipeline import tiny

OPERATIONS = ((os, "fsync"), (Path, "rename"), (Path, "unlink"), (shutil, "rmtree"))
METHODS = "[{drafter:model,rule:greedy,draft_length:2,temperature:0}]"


@dataclass
class Trial:
    """A store of the study, and where its runs write what they say."""

    overrides: list[str]
    outputs: Path
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def log(self) -> Path:
        """What the runs printed."""
        return self.outputs.with_suffix(".log")

    @property
    def computed(self) -> Path:
        """The shards that the last run computed, a line each."""
        return self.outputs.with_suffix(".shards")

    def start(self, stage: str, prepare: Callable[[], object] | None = None) -> int:
        """Bring `stage` up to date in a process of its own; return its id."""
        self.computed.unlink(missing_ok=True)
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            with self.log.open("a") as log, redirect_stdout(log), redirect_stderr(log):
                try:
                    self._note_shards()
                    shown.render = _undrawn
                    if prepare is not None:
                        prepare()
                    run([*self.overrides, f"outputs='{self.outputs}'", f"stage={stage}"])
                    status = 0
                except BaseException:
                    traceback.print_exc()
        finally:
            os._exit(status)

    def _note_shards(self) -> None:
        attempt = shards._attempt

        def noting(plan: Any, shard: Any, *rest: Any) -> Any:
            with self.computed.open("a") as file:
                file.write(f"{plan.file(shard)}\n")
            return attempt(plan, shard, *rest)

        shards._attempt = noting

    def run(self, stage: str, prepare: Callable[[], object] | None = None) -> int:
        """Bring `stage` up to date; return the status, negative when killed."""
        return os.waitstatus_to_exitcode(os.waitpid(self.start(stage, prepare), 0)[1])

    def complete(self, stage: str = "report") -> str:
        """Bring `stage` up to date and return what was printed; it must succeed."""
        begun = self.log.stat().st_size if self.log.exists() else 0
        status = self.run(stage)
        printed = self.log.read_text()[begun:]
        assert status == 0, printed
        return printed

    def verified(self) -> tuple[int, str]:
        """Run ``pipeline.verify``; return its status and what it printed."""
        if not (self.outputs / "artifacts").exists():
            return 0, ""
        said = StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            status = verify.main([str(self.outputs)])
        return status, said.getvalue()

    def artifacts(self) -> dict[str, Path]:
        """The published artifacts by stage and name."""
        found = [
            path for stage in VERSIONS for path in (self.outputs / "artifacts" / stage).glob("*")
        ]
        return {f"{path.parent.name}/{path.name}": path for path in found if path.name[0] != "."}

    def contents(self) -> dict[str, str]:
        """The content digest of every artifact."""
        return {name: read_sealed(path / "record.json")["content"]
                for name, path in self.artifacts().items()}  # fmt: skip

    def finished(self) -> set[str]:
        """The files of finished shards."""
        found = set()
        for path in (self.outputs / "artifacts").glob("*/.*.partial/plan.json"):
            plan = shards.Plan.load(path)
            found |= {
                str(plan.file(s)) for s in plan.shards if s.checksum and plan.file(s).exists()
            }
        return found

    def leftovers(self) -> list[Path]:
        """What should not be there when nothing runs and all is complete."""
        stages = [self.outputs / "artifacts" / stage for stage in VERSIONS]
        places = [*stages, self.outputs / "report"]
        hidden = [path for place in places for path in place.glob(".*")]
        return [*hidden, *self.outputs.rglob("*.tmp")]


def _undrawn(_: object, kind: str) -> bytes:
    """Stand in for the drawing of figures, which takes most of the time and writes nothing."""
    return kind.encode()


def run(overrides: list[str]) -> None:
    """Do what ``python -m pipeline`` does with `overrides`, in this process."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides)
    cli.run(config)


def study(folder: Path) -> list[str]:
    """Write two tiny models and prompts; return the overrides of their study."""
    target = tiny.write_model(folder / "target", seed=0)
    drafter = tiny.write_model(folder / "drafter", seed=1)
    prompts = tiny.write_prompts(folder / "prompts.jsonl", 8)
    return [
        "study=mini", "~targets.mini_large", "~targets.mini_small",
        "+target=local", f"targets.local.path='{target}'", "targets.local.dtype=float32",
        "drafter=local", f"drafter.path='{drafter}'", "drafter.dtype=float32",
        f"prompts.source='{prompts}'", "prompts.count=6", "prompts.min_tokens=3",
        "distributions.steps=6", "distributions.k=20", "criteria=additive", "criteria.t=0.1",
        "run_lengths.eps=[0.1]", "statistics.resamples=20", "decoding.prompts=3",
        "decoding.steps=4", f"decoding.methods={METHODS}", "device.batch=2", "device.threads=1",
    ]  # fmt: skip


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
                if len(plan.pending()) <= 1:
                    os.kill(os.getpid(), signal.SIGKILL)

            shards.Plan.finish = finish  # type: ignore[method-assign]

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
            done = trials(lambda name, base=base: Trial(overrides, base / name),
                          given[trials.__name__], seed)  # fmt: skip
            seconds = time.monotonic() - begun
            print(f"{trials.__name__}: nothing lost, nothing silent in {seconds:.0f} s: "
                  + json.dumps(done), flush=True)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
