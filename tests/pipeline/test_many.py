"""Shards computed by workers that Ray starts: the same artifacts, whoever computes and dies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.schema import Execution
from pipeline.errors import PipelineError
from pipeline.execution import workers
from pipeline.execution.shard_plan import Plan, at_most
from pipeline.execution.workers import Here, RayWorkers, connect, open_workers, share_out
from pipeline.plan.specs import DraftsSpec, ModelSpec
from pipeline.stage import Task
from pipeline.stages.distributions import compute as distributions
from pipeline.store import Artifact
from tests import methods
from tests.pipeline import many
from tests.pipeline.tiny import (
    built,
    decoding_node,
    dump_node,
    dump_spec,
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


def toy_node(**toy: Any) -> Task:
    spec = many.ToySpec(**vars(dump_spec(used("", label="toy"))), toy=toy)
    return Node("distributions", "toy", spec)


def on_ray(model: ModelSpec, workers: int | None) -> ModelSpec:
    return replace(model, execution=Execution(engine="ray", workers=workers))


def crew(node: Task, workers: int | None) -> RayWorkers:
    run = on_ray(node.spec.model, workers)
    return RayWorkers(many.open_toy, node, {}, run)


def contents(plan: Plan) -> dict[str, str]:
    return {shard.name: plan.file(shard).read_text() for shard in plan.shards}


def toy_plan(folder: Path) -> Plan:
    folder.mkdir()
    return Plan.open(Pending(folder, "prompts"), dict.fromkeys(PROMPTS, 1), at_most(2))


@pytest.mark.parametrize(("workers", "fits", "dying"), [(1, 1, []), (2, 2, ["0003"])])
def test_shards_are_those_of_this_process_whoever_computes_and_dies(
    ray: Any, tmp_path: Path, workers: int, fits: int, dying: list[str]
) -> None:
    """Six shards that take different times: those of two prompts are halved, or one kills its
    worker, and both workers have one at the same time."""
    here = toy_plan(tmp_path / "here")
    Here(many.Toy(toy_node(fits=fits))).compute_unfinished(here, steps=1, label="toy")
    deaths = tmp_path / "dies"
    deaths.mkdir()
    for name in dying:
        (deaths / name).touch()
    there = toy_plan(tmp_path / "there")
    (tmp_path / "meet").mkdir()
    asks = {"fits": fits, "dies": str(deaths), "meet": str(tmp_path / "meet"), "count": workers}
    with crew(toy_node(**asks), workers) as asked:
        assert asked.cut([1] * len(PROMPTS)) == [2, 2, 2, 2, 2, 1]
        asked.compute_unfinished(there, steps=1, label="toy")
        facts = asked.facts(there)
    assert contents(there) == contents(here)
    assert {s.name: s.checksum for s in there.shards} == {s.name: s.checksum for s in here.shards}
    assert ("0000a" in contents(there)) == (fits == 1)
    computed = [shard.measured["at"] for shard in there.shards]
    assert computed == sorted(computed) or workers > 1  # halves too, the longer prompts first
    assert not list(deaths.iterdir())
    assert (facts["engine"], facts["workers"], facts["threads"]) == ("ray", workers, [1])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("toy", "message"),
    [
        ({"always": ["0002"]}, "toy: 2 workers died one after the other, the last over batch 000"),
        ({"broken": True}, "the toy can't be loaded"),
        ({"fits": 0}, "toy: prompt [a-d] alone does not fit into the memory"),
    ],
)
def test_what_no_worker_can_do_ends_the_run(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(workers, "DEATHS", 2)
    plan = toy_plan(tmp_path / "run")
    with pytest.raises(PipelineError, match=message), crew(toy_node(**toy), 1) as asked:
        asked.compute_unfinished(plan, steps=1, label="toy")


def pair_nodes(tmp_path: Path, dump: Task) -> list[Task]:
    """Drafts and decoding of two tiny models."""
    drafter = write_model(tmp_path / "drafter", seed=1)
    target = dump.spec.model
    drafts = used(drafter, "drafter", label="drafter")
    prompts = dump.upstream["prompts"]
    built = methods.build(
        [{"drafter": "model", "rule": "additive", "t": 0.1, "draft_length": 3, "temperature": 0}]
    )
    return [
        Node(
            "drafts",
            "tiny",
            DraftsSpec(target, drafts, 1.0),
            {"prompts": prompts, "distributions": (dump,)},
        ),
        replace(decoding_node(target, drafts, methods=tuple(built)), upstream={"prompts": prompts}),
    ]


@pytest.mark.thorough
def test_stages_write_the_same_bytes_with_workers_one_of_which_dies(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "model")
    dump = dump_node(model, prompts_node(model, write_prompts(tmp_path / "rows.jsonl", 6)), batch=2)
    here: dict[str, Artifact] = {"distributions": built(dump, tmp_path / "here")}
    (tmp_path / "dies").mkdir()
    (tmp_path / "dies" / "0001").touch()
    monkeypatch.setattr(distributions, "DistributionsWorker", many.open_mortal_decoder)
    workers_of = {"model": on_ray(dump.spec.model, 2)}
    mortal = many.MortalSpec(**(vars(dump.spec) | workers_of), dies=str(tmp_path / "dies"))
    found = built(replace(dump, spec=mortal), tmp_path / "there")
    assert not list((tmp_path / "dies").iterdir())
    assert found.content == here["distributions"].content
    assert (found.record.facts["engine"], found.record.facts["shards"]) == ("ray", 3)
    for node in pair_nodes(tmp_path, dump):
        spec = replace(node.spec, target=on_ray(node.spec.target, 1))
        there = built(replace(node, spec=spec), tmp_path / "there")
        inline = built(node, tmp_path / "here")
        assert there.content == inline.content
        assert (there.record.facts["engine"], inline.record.facts["engine"]) == (
            "ray", "inline",
        )  # fmt: skip


def test_engine_inline_computes_here() -> None:
    with open_workers(many.open_toy, toy_node(), {}) as workers:
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
        ({"CPU": 16, "GPU": 4}, 1, "cuda:1", 1, "device.name=cuda:1 is not allowed with execution"),
    ],
)
def test_processors_and_gpus_are_shared_out_or_refused(
    there: dict[str, float], workers: int | None, device: str, threads: int | None, share: Any
) -> None:
    toy = used("", device=device)
    target = replace(toy, device=toy.device.model_copy(update={"threads": threads}))
    run = on_ray(target, workers)
    if isinstance(share, tuple):
        assert share_out(there, run) == share
    else:
        with pytest.raises(PipelineError, match=share):
            share_out(there, run)


def test_without_ray_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PipelineError, match=r'^execution.engine=ray needs Ray: pip .*"\.\[ray\]"'):
        connect()
