"""Shards computed by workers that Ray starts: the same artifacts, whoever computes and dies."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from conf.schema import Execution
from pipeline.core import workers as worker_module
from pipeline.core.errors import PipelineError
from pipeline.core.interruption import TERMINATED
from pipeline.core.paths import ROOT
from pipeline.core.shards import compute_shards
from pipeline.core.stage import Out, Runtime, Task
from pipeline.core.workers import allocate
from pipeline.stages import distributions
from tests import methods
from tests.pipeline import tiny

PROMPTS = [*"abcdefghijk"]


@dataclass(frozen=True, kw_only=True)
class ToyRuntime(Runtime):
    toy: dict


class Toy:
    """Writes the items of a shard; what else it does its task says."""

    def __init__(self, task, _):
        self._asked = task.runtime.toy

    def batch(self):
        return 2

    def compute(self, names, progress):
        for name in names:  # die once for a file of an item's name
            if "dies" in self._asked and (self._asked["dies"] / name).exists():
                (self._asked["dies"] / name).unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        if names[0] == "e" and "always" in self._asked:
            (Path(self._asked["always"]) / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if len(names) > self._asked.get("fits", 2):
            raise MemoryError
        progress(len(names))
        measured = {"threads": torch.get_num_threads(), "process": os.getpid()}
        return measured, [pa.table({"name": [name]}) for name in names]

    def metadata(self, measured):
        return {name: {one[name] for one in measured} for name in ("threads", "process")}


@pytest.fixture(scope="module")
def ray():
    """Ray on this machine, as if it had two processors."""
    ray = pytest.importorskip("ray")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    ray.init(address="local", num_cpus=2, include_dashboard=False, **quiet)
    yield ray
    ray.shutdown()


def on_ray(model, workers):
    return replace(model, execution=Execution(engine="ray", workers=workers))


def computed(folder, workers=0, **toy):
    """The shards of toys: by this process, or by some workers of Ray's."""
    model = tiny.used("", label="toy")
    models = (on_ray(model, workers) if workers else model,)
    task = Task(
        distributions.STAGE,
        "toy",
        {},
        {},
        ToyRuntime(**vars(tiny.RUNTIME) | {"models": models}, toy=toy),
    )
    folder.mkdir()
    out = Out(task.stage, folder / "artifact", folder / "shards")
    return compute_shards(task, {}, out, PROMPTS, Toy), out


@pytest.mark.thorough
@pytest.mark.parametrize(("workers", "fits", "dying"), [(1, 1, []), (2, 2, ["g"])])
def test_shards_are_those_of_this_process_whoever_computes_and_dies(
    ray, tmp_path, workers, fits, dying
):
    """Six shards: those of two prompts are halved, or one kills its worker."""
    here, inline = computed(tmp_path / "here", fits=fits)
    (tmp_path / "dies").mkdir()
    for name in dying:
        (tmp_path / "dies" / name).touch()
    there, out = computed(tmp_path / "there", workers, fits=fits, dies=tmp_path / "dies")
    for one, other in zip(there, here, strict=True):
        assert one.names == other.names
        with one.open() as left, other.open() as right:
            assert left.read() == right.read()
        assert one.path.name == other.path.name
    assert [name for shard in there for name in shard.names] == PROMPTS
    assert [len(shard.names) for shard in there] == ([1] * 11 if fits == 1 else [2] * 5 + [1])
    assert not list((tmp_path / "dies").iterdir())
    facts = out.metadata
    assert (facts["engine"], facts["workers"], facts["threads"]) == ("ray", workers, {1})
    assert len(facts["process"]) >= workers  # each has the first batch that nobody had
    assert inline.metadata["engine"] == "inline"


@pytest.mark.thorough
def test_what_no_worker_can_do_ends_the_run_and_finished_shards_stay(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_module, "DEATHS", 2)
    (tmp_path / "dead").mkdir()
    with pytest.raises(PipelineError, match="toy: 2 workers died one after the other"):
        computed(tmp_path / "run", 1, always=tmp_path / "dead")
    assert len(list((tmp_path / "dead").iterdir())) == 2
    assert len(list((tmp_path / "run/shards").glob("*.shard"))) == 2  # a b, c d
    with pytest.raises(PipelineError, match=r"toy: [a-d] alone does not fit into the memory"):
        computed(tmp_path / "again", 1, fits=0)


@pytest.mark.thorough
def test_stages_write_the_same_bytes_with_workers(ray, tmp_path):
    model, drafter = (tiny.write_model(tmp_path / f"{seed}", seed) for seed in (0, 1))
    prompts = tiny.prompts_node(model, tiny.write_prompts(tmp_path / "rows.jsonl", 6))
    dump = tiny.dump_node(model, prompts, batch=2)
    (target,), other = dump.runtime.models, tiny.used(drafter, "drafter", label="drafter")
    ways = methods.build(
        [{"drafter": "model", "rule": "additive", "t": 0.1, "draft_length": 3, "temperature": 0}]
    )
    decoding = replace(tiny.decoding_node(target, other, methods=ways), inputs={"prompts": prompts})
    drafts = tiny.drafts_of(target, other, {"prompts": prompts, "distributions": dump})
    for task in (dump, drafts, decoding):
        models = (on_ray(target, 2), *task.runtime.models[1:])
        runtime = replace(task.runtime, models=models)
        there = tiny.built(replace(task, runtime=runtime), tmp_path / "there")
        inline = tiny.built(task, tmp_path / "here")
        assert there.content == inline.content
        assert (there.metadata["engine"], inline.metadata["engine"]) == ("ray", "inline")


@pytest.mark.thorough
def test_sigterm_ends_a_command_that_waits_for_ray_as_any_other():
    pytest.importorskip("ray")
    script = (
        "import os, threading, time\n"
        "from pipeline.core.commands import run_as_command\n"
        "from pipeline.core.workers import connect\n"
        "with run_as_command():\n"
        " ray = connect()\n"
        " threading.Timer(5, os.kill, (os.getpid(), 15)).start()\n"
        " ray.get(ray.remote(lambda: time.sleep(60)).remote())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (TERMINATED, "")
    assert done.stderr == "terminated: the same command goes on from here\n"


@pytest.mark.parametrize(
    ("there", "workers", "device", "threads", "share"),
    [
        ({"CPU": 2}, None, "auto", 1, (2, 1, 0)),
        ({"CPU": 16, "GPU": 4}, None, "auto", None, (4, 4, 1)),
        ({"CPU": 16, "GPU": 4}, 2, "cpu", None, (2, 8, 0)),
        ({"CPU": 2}, 3, "auto", 1, "workers=3 .* finds 2 processors"),
        ({"CPU": 16, "GPU": 4}, 5, "auto", 1, "workers=5 .* and 4 GPUs"),
        ({"CPU": 16, "GPU": 4}, 1, "cuda:1", 1, "device.name=cuda:1"),
    ],
)
def test_processors_and_gpus_are_shared_out_or_refused(there, workers, device, threads, share):
    toy = tiny.used("", device=device)
    run = on_ray(replace(toy, device=toy.device.model_copy(update={"threads": threads})), workers)
    if isinstance(share, tuple):
        assert allocate(there, run) == share
    else:
        with pytest.raises(PipelineError, match=share):
            allocate(there, run)
