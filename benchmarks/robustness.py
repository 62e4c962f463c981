"""Killed runs and damaged files: ``python -m benchmarks.robustness --kills 200 --damages 600``.

A study of tiny random models, all stages and the report, is

- killed just before or after a random file operation, or at a random moment, and resumed until it
  is complete;
- run by four processes at once;
- damaged: bytes of tables, record.json and figures are flipped, cut, added, removed;
- sent SIGINT or SIGTERM at a random moment, from its first import to its last line, as a single run
  and as a sweep (`--signals`).

After each, the outputs are compared with an undisturbed run: nothing published is computed again,
all contents are equal, ``pipeline.verify`` finds all damage, the next run repairs it, and no
temporary files remain. The tests run a few of each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path

import torch
from hydra.core.global_hydra import GlobalHydra

from analysis.report import style
from benchmarks import hostile
from pipeline import cli, verify
from pipeline.core.files import read_json
from pipeline.core.interruption import INTERRUPTED, TERMINATED
from pipeline.core.paths import ASSETS, ROOT
from pipeline.settings.composition import composed
from pipeline.study import STAGES
from tests.pipeline import tiny
from tests.pipeline.toy import die_at, status

PIXEL = b64decode(  # a figure that takes no time to draw
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
METHOD = "{drafter:model,rule:greedy,draft_length:2}"
DEFAULTS = {"kills": 200, "rounds": 20, "damages": 600, "signals": 200, "hostile": 500,
            "seed": 0}  # fmt: skip
SIGNALS = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
REMOVED = {".": 1, "certificates acceptance": 2, "": 9}  # before a command, and how often
COMMANDS = {  # that are sent signals
    "single run": ["stage=acceptance"],
    "sweep": ["-m", "stage=certificates", "criteria.t=0.1,0.2"],
}


def tiny_study(folder: Path) -> list[str]:
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
        "run_lengths.eps=[0.1]", "statistics.resamples=20", "decoding=settings",
        f"+decoding.methods.greedy={METHOD}", "decoding.prompts=3", "decoding.steps=4",
        "device.batch=2", "device.threads=1", "accuracy.tasks=[facts]", "accuracy.items=3",
    ]  # fmt: skip


def run_study(overrides: list[str]) -> None:
    """Run ``python -m pipeline`` with `overrides`, in this process."""
    GlobalHydra.instance().clear()
    cli.run(composed(overrides))


class Trial:
    """A store of the study; each run is a separate process, which may be killed."""

    def __init__(self, overrides: list[str], base: Path, name: str) -> None:
        base.mkdir(exist_ok=True)
        self.overrides = overrides
        self.outputs = base / name
        self.log = self.outputs.with_suffix(".log")  # output of the runs

    def start(self, stage: str, prepare: Callable[[], object] = lambda: None) -> int:
        """Bring `stage` up to date in a new process; return its id."""
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            with self.log.open("a") as log, redirect_stdout(log), redirect_stderr(log):
                try:
                    setattr(style, "render", lambda *_: PIXEL)  # noqa: B010  drawing is slow
                    prepare()
                    run_study([*self.overrides, f"outputs='{self.outputs}'", f"stage={stage}"])
                    code = 0
                except BaseException:
                    traceback.print_exc()
        finally:
            os._exit(code)

    def complete(self, stage: str = "report") -> str:
        """Bring `stage` up to date, check that it succeeded, and return its output."""
        begun = self.log.stat().st_size if self.log.exists() else 0
        code = status(self.start(stage))
        printed = self.log.read_bytes()[begun:].decode()
        assert code == 0, printed
        return printed

    def verified(self) -> tuple[int, str]:
        """Run ``pipeline.verify``; return its status and its output."""
        output = StringIO()
        with redirect_stdout(output), redirect_stderr(output):
            code = verify.main([str(self.outputs)])
        return code, output.getvalue()

    def artifacts(self) -> dict[str, Path]:
        """The published artifacts by stage and name."""
        places = [self.outputs / "artifacts" / stage for stage in STAGES]
        paths = [path for place in places for path in place.glob("[!.]*")]
        return {f"{path.parent.name}/{path.name}": path for path in paths}

    def contents(self) -> dict[str, str]:
        """The content digest of every artifact."""
        found = self.artifacts().items()
        return {name: read_json(path / "record.json")["content"] for name, path in found}

    def expect_whole(self, expected: dict[str, str]) -> None:
        """Check that contents are as expected and no temporary files are left; remove all."""
        assert self.contents() == expected
        places = [self.outputs / "artifacts" / stage for stage in STAGES]
        hidden = [path for place in (*places, self.outputs / "report") for path in place.glob(".*")]
        left = [*hidden, *self.outputs.rglob("*.tmp")]
        assert not left, left
        assert self.verified()[0] == 0
        shutil.rmtree(self.outputs)


def kill(trial: Trial, chance: random.Random, seconds: float) -> bool:
    """Run the study and kill it at a random point; return whether the kill came before its end."""
    if chance.random() < 0.7:
        code = status(trial.start("report", partial(die_at, chance.randint(1, 240))))
    else:
        process = trial.start("report")
        time.sleep(chance.uniform(0, seconds))
        os.kill(process, signal.SIGKILL)
        code = status(process)
    assert code in (0, -signal.SIGKILL), trial.log.read_text()
    return code != 0


def kills(new: Callable[[str], Trial], count: int, seed: int = 0) -> Counter[str]:
    """Kill studies `count` times; each is resumed after every kill until it is complete."""
    chance = random.Random(seed)
    done = Counter[str]()
    whole = new("whole")
    begun = time.monotonic()
    whole.complete()
    seconds = time.monotonic() - begun
    expected = whole.contents()
    while done["kills"] < count:
        trial = new(f"life{done['studies completed']}")
        while done["kills"] < count and kill(trial, chance, seconds):
            done["kills"] += 1
            places = {path: path.stat().st_ino for path in trial.artifacts().values()}
            done["kills of a run that had published something"] += bool(places)
            assert trial.contents().items() <= expected.items()
            if places:
                code, output = trial.verified()
                assert code == 0, output
            if chance.random() < 0.5:  # else the next kill follows
                trial.complete("acceptance")
                assert all(path.stat().st_ino == inode for path, inode in places.items())
        trial.complete()
        trial.expect_whole(expected)
        done["studies completed"] += 1
    return done


def rounds(new: Callable[[str], Trial], count: int, seed: int = 0) -> Counter[str]:
    """Run four processes that need the same artifacts at once, `count` times."""
    chance = random.Random(seed)
    done = Counter[str]()
    whole = new("whole")
    whole.complete()
    expected = whole.contents()
    stages = ["report", "acceptance", "certificates", "decoding"]
    for index in range(count):
        trial = new(f"round{index}")
        processes = [trial.start(stage) for stage in ["report", *chance.choices(stages, k=3)]]
        codes = [status(process) for process in processes]
        printed = trial.log.read_text()
        assert codes == [0] * 4, printed
        assert printed.count(": computing") == len(expected), printed
        trial.expect_whole(expected)
        done["rounds"] += 1
        done["waits for another process"] += printed.count("another process")
    return done


def start_command(trial: Trial, words: list[str]) -> subprocess.Popen[bytes]:
    """Start ``python -m pipeline`` as a shell does; it writes to the log of the trial."""
    options = [word for word in words if word.startswith("-")]
    values = [word for word in words if word not in options]
    with trial.log.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline", *options, *trial.overrides,
             f"outputs='{trial.outputs}'", *values],
            cwd=ROOT, stdout=log, stderr=log,
            preexec_fn=lambda: [signal.signal(number, signal.SIG_DFL) for number in SIGNALS],
        )  # fmt: skip


def ended_by(number: int, code: int, printed: str) -> str:
    """Return how a command ended that was sent a signal; "wrongly" where it should not."""
    if "failed to import the site module" in printed.lower():  # no line of the project has run yet
        return "ended by Python itself while it started"
    bare = "error: " in printed or "Traceback" in printed
    if code == 0 and not bare:
        return "ended with 0, its work done"
    if code == -number and not bare:  # a shell shows it as 130 or 143, too
        return "ended at once, before or after its work"
    told = printed.endswith("the same command goes on from here\n")
    if code == SIGNALS[signal.Signals(number)] and told and not bare:
        return f"ended with {code}"
    return "ended wrongly"


def signals(new: Callable[[str], Trial], count: int, seed: int = 0) -> Counter[str]:
    """Send signals to commands, `count` times, with all, some or none of what they need stored."""
    chance = random.Random(seed)
    done = Counter[str]()
    wrong = list[str]()
    trial = new("signalled")
    expected = dict[str, str]()
    seconds = dict[tuple[str, str], float]()
    for removed in REMOVED:
        for command, words in COMMANDS.items():
            remove(trial, removed)
            begun = time.monotonic()
            assert start_command(trial, words).wait() == 0, trial.log.read_text()
            seconds[command, removed] = time.monotonic() - begun
            expected |= trial.contents()
    while done["signals"] < count:
        removed = chance.choices(list(REMOVED), list(REMOVED.values()))[0]
        remove(trial, removed)
        command = chance.choice(list(COMMANDS))
        number = chance.choice(list(SIGNALS))
        places = {path: path.stat().st_ino for path in trial.artifacts().values()}
        process = start_command(trial, COMMANDS[command])
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, seconds[command, removed]))
        sent = process.poll() is None
        process.send_signal(number)
        code = process.wait()
        printed = trial.log.read_text()
        assert all(path.stat().st_ino == inode for path, inode in places.items())
        assert trial.contents().items() <= expected.items()
        if places:
            assert trial.verified()[0] == 0
        if sent:
            how = ended_by(number, code, printed)
            done["signals"] += 1
            done[f"{command}: {how}"] += 1
            if how == "ended wrongly":
                wrong.append(f"{command}, signal {number}, status {code}:\n{printed[-3000:]}")
        else:
            assert code == 0, printed
    assert not wrong, f"{len(wrong)} of {count} ended wrongly:\n\n" + "\n\n".join(wrong)
    for words in COMMANDS.values():
        assert start_command(trial, words).wait() == 0, trial.log.read_text()
    trial.expect_whole(expected)
    return done


def remove(trial: Trial, names: str) -> None:
    """Remove what a store has below its artifacts."""
    for name in names.split():
        shutil.rmtree(trial.outputs / "artifacts" / name, ignore_errors=True)


def damage(path: Path, chance: random.Random) -> str:
    """Damage a file in a random way; return the kind of damage."""
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    changed = {
        "bit flipped": bytes(flipped),
        "cut": content[: chance.randrange(len(content))],
        "emptied": b"",
        "longer": content + chance.randbytes(chance.randint(1, 9)),
    }
    kind = chance.choice(["bit flipped", *changed, "removed"])
    path.unlink() if kind == "removed" else path.write_bytes(changed[kind])
    return kind


def damages(new: Callable[[str], Trial], count: int, seed: int = 0) -> Counter[str]:
    """Damage files of a complete study, `count` times; each is found and mended."""
    chance = random.Random(seed)
    done = Counter[str]()
    whole = new("whole")
    whole.complete("accuracy")  # first, as the report includes it if it is stored
    whole.complete()
    expected = whole.contents()
    for _ in range(count):
        name = chance.choice(sorted(whole.artifacts()))
        directory = whole.artifacts()[name]
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        file = directory / "record.json" if chance.random() < 0.4 else chance.choice(files)
        kind = damage(file, chance)
        if chance.random() < 0.5:
            code, output = whole.verified()
            assert code == 1, f"{file} {kind}: verify found nothing"
            assert str(directory) in output
            whole.complete(name.split("/")[0])
        else:
            printed = whole.complete(name.split("/")[0])
            assert f"damaged: {directory}" in printed, f"{file} {kind}: {printed}"
        assert whole.contents() == expected, f"{file} {kind}: made anew with other content"
        code, output = whole.verified()
        assert code == 0, output
        [aside] = (whole.outputs / "artifacts/damaged").iterdir()
        shutil.rmtree(aside)
        if name.startswith(("decoding/", "accuracy/")):
            whole.complete()  # a report of earlier timings is made again, whatever became of it
        done[f"{'records' if file.name == 'record.json' else 'other files'} {kind}"] += 1
    return done


def hostile_study(base: Path) -> list[str]:
    """Compute a study in a folder; return its overrides, with {here} for the folder."""
    base.mkdir(parents=True)
    shutil.copytree(ASSETS / "tasks", base / "tasks")
    overrides = [*tiny_study(base), f"accuracy.tasks=['{base}/tasks/facts.yaml']"]
    setattr(style, "render", lambda *_: PIXEL)  # noqa: B010
    for stage in ("accuracy", "run_lengths", "report"):
        run_study([*overrides, f"outputs='{base}/whole'", f"stage={stage}"])
    hostile.prepare(base)
    return [word.replace(str(base), "{here}") for word in overrides]


def main(arguments: list[str]) -> None:
    """Run all trials and print a summary; the first failure ends with its traceback."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in DEFAULTS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    counts = vars(parser.parse_args(arguments))
    with tempfile.TemporaryDirectory() as folder:
        overrides = tiny_study(Path(folder))
        torch.set_num_threads(1)
        for stage in ("decoding", "acceptance"):  # compiled and imported once, for all forks
            run_study([*overrides, f"outputs='{folder}/warm'", f"stage={stage}"])
        for trials in (kills, rounds, damages, signals):
            new = partial(Trial, overrides, Path(folder) / trials.__name__)
            begun = time.monotonic()
            done = trials(new, counts[trials.__name__], counts["seed"])
            print(
                f"{trials.__name__}: nothing lost, nothing silent in "
                f"{time.monotonic() - begun:.0f} s: {json.dumps(done)}",
                flush=True,
            )
        if counts["hostile"]:
            base = Path(folder) / "hostile" / "base"
            begun = time.monotonic()
            hostile_trials = hostile.hostile(
                base, hostile_study(base), counts["hostile"], counts["seed"]
            )
            print(
                f"hostile: every command ended well in {time.monotonic() - begun:.0f} s: "
                f"{json.dumps(hostile_trials)}",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
