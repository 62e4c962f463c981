"""Shards computed by workers that Ray starts: the same artifacts, whoever computes and dies."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.schema import Execution
from pipeline import ray_workers
from pipeline.errors import TERMINATED, PipelineError
from pipeline.models.spec import ModelSpec
from pipeline.paths import ROOT
from pipeline.ray_workers import allocate, connect
from pipeline.shards import Shard, compute_shards, opened
from pipeline.stage import Artifact, Out, Task
from pipeline.stages import distributions
from pipeline.study import STAGES
from pipeline.workers import Here
from tests import methods
from tests.pipeline import many
from tests.pipeline.tiny import (
    RUNTIME,
    built,
    decoding_node,
    drafts_of,
    dump_node,
    prompts_node,
    used,
    write_model,
    write_prompts,
)

PROMPTS = [*"abcdefghijk"]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Ray on this machine, as if it had two processors."""
    ray = pytest.importorskip("ray")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield ray
    ray.shutdown()


def toy_task(workers: int = 0, **toy: Any) -> Task:
    """A task of toys: in this process, or of some workers of Ray's."""
    model = used("", label="toy")
    model = on_ray(model, workers) if workers else model
    runtime = replace(RUNTIME, models=(model,), extra=toy)
    return Task(distributions.STAGE, "toy", {}, {}, runtime)


def on_ray(model: ModelSpec, workers: int | None) -> ModelSpec:
    return replace(model, execution=Execution(engine="ray", workers=workers))


def computed(task: Task, folder: Path) -> tuple[list[Shard], Out]:
    folder.mkdir()
    out = Out(task.stage, folder / "artifact", folder / "shards")
    return compute_shards(task, {}, out, PROMPTS, many.open_toy), out


def contents(shards: list[Shard]) -> list[tuple[list[str], bytes]]:
    return [(shard.names, shard.content()) for shard in shards]


@pytest.mark.parametrize(("workers", "fits", "dying"), [(1, 1, []), (2, 2, ["g"])])
def test_shards_are_those_of_this_process_whoever_computes_and_dies(
    ray: Any, tmp_path: Path, workers: int, fits: int, dying: list[str]
) -> None:
    """Six shards that take different times: those of two prompts are halved, or one kills its
    worker, and both workers have one at the same time."""
    here, inline = computed(toy_task(fits=fits), tmp_path / "here")
    deaths = tmp_path / "dies"
    deaths.mkdir()
    for name in dying:
        (deaths / name).touch()
    (tmp_path / "meet").mkdir()
    asks = {"fits": fits, "dies": str(deaths), "meet": str(tmp_path / "meet"), "count": workers}
    there, out = computed(toy_task(workers, **asks), tmp_path / "there")
    assert contents(there) == contents(here)
    assert {shard.path.name for shard in there} == {shard.path.name for shard in here}
    assert [name for shard in there for name in shard.names] == PROMPTS
    assert [len(shard.names) for shard in there] == ([1] * 11 if fits == 1 else [2] * 5 + [1])
    times = [shard.measured["at"] for shard in there]
    assert times == sorted(times) or workers > 1  # halves too, the longer prompts first
    assert not list(deaths.iterdir())
    facts = out.facts
    assert (facts["engine"], facts["workers"], facts["threads"]) == ("ray", workers, [1])
    assert inline.facts["engine"] == "inline"


@pytest.mark.thorough
def test_what_kills_every_worker_ends_the_run_and_finished_shards_stay(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_workers, "DEATHS", 2)
    (tmp_path / "dead").mkdir()
    task = toy_task(1, always={"e": str(tmp_path / "dead")})
    with pytest.raises(PipelineError, match="toy: 2 workers died one after the other"):
        computed(task, tmp_path / "run")
    assert len(list((tmp_path / "dead").iterdir())) == 2
    assert len(list((tmp_path / "run/shards").glob("*.shard"))) == 2  # a b, c d


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("toy", "message"),
    [
        ({"broken": True}, "the toy can't be loaded"),
        ({"fits": 0}, "toy: [a-d] alone does not fit into the memory"),
    ],
)
def test_what_no_worker_can_do_ends_the_run(
    ray: Any, tmp_path: Path, toy: dict[str, Any], message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        computed(toy_task(1, **toy), tmp_path / "run")


def pair_tasks(tmp_path: Path, dump: Task) -> list[Task]:
    """Drafts and decoding of two tiny models."""
    drafter = write_model(tmp_path / "drafter", seed=1)
    (target,), prompts = dump.runtime.models, dump.inputs["prompts"]
    drafter_spec = used(drafter, "drafter", label="drafter")
    built = methods.build(
        [{"drafter": "model", "rule": "additive", "t": 0.1, "draft_length": 3, "temperature": 0}]
    )
    above = {"prompts": prompts, "distributions": dump}
    decoding = decoding_node(target, drafter_spec, methods=built)
    return [drafts_of(target, drafter_spec, above), replace(decoding, inputs={"prompts": prompts})]


@pytest.mark.thorough
def test_stages_write_the_same_bytes_with_workers_one_of_which_dies(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "model")
    dump = dump_node(model, prompts_node(model, write_prompts(tmp_path / "rows.jsonl", 6)), batch=2)
    here: Artifact = built(dump, tmp_path / "here")
    (tmp_path / "dies").mkdir()
    (tmp_path / "dies" / "id2").touch()
    monkeypatch.setattr(distributions, "DistributionsWorker", many.open_mortal_decoder)
    models = (on_ray(dump.runtime.models[0], 2),)
    mortal = replace(dump.runtime, models=models, extra={"dies": str(tmp_path / "dies")})
    found = built(replace(dump, runtime=mortal), tmp_path / "there")
    assert not list((tmp_path / "dies").iterdir())
    assert found.content == here.content
    assert (found.facts["engine"], found.facts["shards"]) == ("ray", 3)
    for task in pair_tasks(tmp_path, dump):
        target, drafter = task.runtime.models
        runtime = replace(task.runtime, models=(on_ray(target, 1), drafter))
        there = built(replace(task, runtime=runtime), tmp_path / "there")
        inline = built(task, tmp_path / "here")
        assert there.content == inline.content
        assert (there.facts["engine"], inline.facts["engine"]) == ("ray", "inline")


@pytest.mark.thorough
def test_sigterm_ends_a_command_that_waits_for_ray_as_any_other() -> None:
    pytest.importorskip("ray")
    script = (
        "import os, threading, time\n"
        "from pipeline.errors import terminal\n"
        "from pipeline.ray_workers import connect\n"
        "with terminal():\n"
        " ray = connect()\n"
        " threading.Timer(5, os.kill, (os.getpid(), 15)).start()\n"
        " ray.get(ray.remote(lambda: time.sleep(60)).remote())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (TERMINATED, "")
    assert done.stderr == "terminated: the same command goes on from here\n"


def test_every_stage_goes_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(STAGES)) == STAGES


def test_engine_inline_computes_here() -> None:
    with opened(toy_task(), {}, many.open_toy) as workers:
        assert isinstance(workers, Here)


@pytest.mark.parametrize(
    ("there", "workers", "device", "threads", "share"),
    [
        ({"CPU": 2}, None, "auto", None, (1, 2, 0)),
        ({"CPU": 2}, None, "auto", 1, (2, 1, 0)),
        ({"CPU": 8}, 3, "cpu", None, (3, 2, 0)),
        ({"CPU": 2}, 2, "auto", 1, (2, 1, 0)),
        ({"CPU": 16, "GPU": 4}, None, "auto", None, (4, 4, 1)),
        ({"CPU": 16, "GPU": 4}, 4, "cuda", 2, (4, 2, 1)),
        ({"CPU": 16, "GPU": 4}, 2, "cpu", None, (2, 8, 0)),
        ({"CPU": 2}, 3, "auto", 1, r"workers=3 with 1 threads each .* finds 2 processors and 0"),
        ({"CPU": 2}, 3, "auto", None, r"execution.workers=3 .* Ray finds 2"),
        ({"CPU": 16, "GPU": 4}, 5, "auto", 1, "workers=5 .* and 4 GPUs"),
        ({"CPU": 16}, 1, "cuda", 1, "device.name=cuda: Ray finds .* and 0 GPUs"),
        (
            {"CPU": 16, "GPU": 4},
            1,
            "cuda:1",
            1,
            r"device.name=cuda:1: Ray finds .* gives every worker its own",
        ),
    ],
)
def test_processors_and_gpus_are_shared_out_or_refused(
    there: dict[str, float], workers: int | None, device: str, threads: int | None, share: Any
) -> None:
    toy = used("", device=device)
    target = replace(toy, device=toy.device.model_copy(update={"threads": threads}))
    run = on_ray(target, workers)
    if isinstance(share, tuple):
        assert allocate(there, run) == share
    else:
        with pytest.raises(PipelineError, match=share):
            allocate(there, run)


def test_without_ray_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PipelineError, match=r'^execution.engine=ray needs Ray: pip .*"\.\[ray\]"'):
        connect()
