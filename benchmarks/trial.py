"""A study of tiny random models, each run of it in a process of its own that may be killed."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from analysis.report import figure
from pipeline import cli, verify
from pipeline.execution import shards
from pipeline.paths import CONF
from pipeline.plan.graph import VERSIONS
from pipeline.store.durable import read_sealed
from tests.pipeline import tiny

METHODS = "[{drafter:model,rule:greedy,draft_length:2,temperature:0}]"


@dataclass
class Trial:
    """A store of the study, and where its runs write what they say."""

    overrides: list[str]
    outputs: Path

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
                    setattr(figure, "render", _undrawn)  # noqa: B010  drawing writes nothing
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

        shards._attempt = noting  # type: ignore[assignment]

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
        "accuracy.tasks=[facts]", "accuracy.items=3", f"accuracy.methods={METHODS}",
    ]  # fmt: skip
