"""Interrupted, damaged and unwritable: real stages on tiny models against undisturbed runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks import robustness
from pipeline.errors import PipelineError
from pipeline.execution import runner, shards
from pipeline.execution.shard_plan import Plan, Shard
from pipeline.paths import ROOT
from pipeline.stage import Task
from pipeline.store import Artifact, Pending, Store
from pipeline.study import STAGES, Study
from tests.pipeline.stopping import interrupt

LONG = ["accuracy", "decoding", "distributions", "drafts"]
FULL = Path("/dev/full")


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return robustness.tiny_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def nodes(overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    outputs = tmp_path_factory.mktemp("outputs")
    return {
        stage: found[0] for stage, found in Study(*overrides, f"outputs='{outputs}'").nodes.items()
    }


@pytest.fixture(scope="module")
def whole(nodes: dict[str, Task], tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Everything but the report, undisturbed."""
    store = Store(tmp_path_factory.mktemp("whole"))
    ends = ("acceptance", "run_lengths", "decoding", "accuracy")
    runner.ensure([nodes[stage] for stage in ends], store)
    return store


def copied(whole: Store, root: Path, node: Task) -> Store:
    """A store with what `node` is made from."""
    for above in with_upstream(node.upstream_nodes).values():
        directory = found(whole, above).directory
        shutil.copytree(directory, root / above.stage / directory.name)
    return Store(root)


def found(store: Store, node: Task) -> Artifact:
    artifact = store.find(node)
    assert artifact is not None
    return artifact


def attempted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that are computed from now on."""
    attempt, names = shards.attempt, list[str]()

    def noting(shard: Shard, path: Path, *rest: Any) -> Any:
        names.append(shard.name)
        computed = attempt(shard, path, *rest)
        assert not path.with_suffix(".shard").exists()  # written beside its place
        return computed

    monkeypatch.setattr(shards, "attempt", noting)
    return names


@pytest.mark.parametrize("stage", LONG)
def test_finished_shards_are_kept_and_damaged_ones_are_not(
    stage: str, whole: Store, nodes: dict[str, Task], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    node = nodes[stage]
    store = copied(whole, tmp_path, node)
    plan = interrupt(node, store, monkeypatch)
    assert len(plan.unfinished()) == 1
    shutil.copytree(store.workspace(node), tmp_path / "kept")
    first, second, _ = plan.shards
    names = attempted(monkeypatch)

    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-1])

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    beside = plan.beside(plan.shards[2])
    changes: dict[str, tuple[Callable[[], object], list[str]]] = {
        "nothing": (lambda: None, ["0002"]),
        "half-written": (lambda: beside.write_bytes(b"PAR1"), ["0002"]),
        "flipped": (lambda: flip(plan.file(first)), ["0000", "0002"]),
        "cut": (lambda: cut(plan.file(second)), ["0001", "0002"]),
        "gone": (lambda: plan.file(first).unlink(), ["0000", "0002"]),
        "plan flipped": (lambda: flip(plan.path), ["0000", "0001", "0002"]),
    }
    for kind, (change, computed) in changes.items():
        change()
        capsys.readouterr()
        runner.ensure([node], store)
        assert names == computed, kind
        told = "computed again" in capsys.readouterr().out
        assert told == (kind in {"flipped", "cut"} or "plan" in kind), kind
        assert found(store, node).content == found(whole, node).content
        assert [path.name[0] for path in (tmp_path / stage).iterdir() if path.name[0] == "."] == []
        shutil.rmtree(found(store, node).directory)
        shutil.copytree(tmp_path / "kept", store.workspace(node))
        names.clear()


def rebuilt(store: Store, node: Task) -> None:
    """Publish `node` again with other content, as another machine would."""
    pending = store.pending(node)
    artifact = found(store, node)
    pending.facts = artifact.record.facts
    table = artifact.read()
    at = table.column_names.index(
        "token_ids" if node.stage in ("prompts", "accuracy") else "token_id"
    )
    values = table.column(at).to_pylist()
    changed = [value[::-1] if isinstance(value, list) else (value + 7) % 290 for value in values]
    field = table.schema.field(at)
    pending.write("data", table.set_column(at, field, pa.array(changed, field.type)))
    store.publish(node, pending)


@pytest.mark.parametrize("stage", sorted(set(LONG) - {"accuracy"}))  # which has no upstream
def test_shards_of_another_upstream_are_discarded(
    stage: str, whole: Store, nodes: dict[str, Task], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    node = nodes[stage]
    store = copied(whole, tmp_path / "resumed", node)
    assert len(interrupt(node, store, monkeypatch).unfinished()) == 1
    rebuilt(store, node.upstream_nodes[-1])
    fresh = Store(tmp_path / "fresh")
    shutil.copytree(store.root, fresh.root, ignore=shutil.ignore_patterns(".*"))
    capsys.readouterr()
    resumed = runner.ensure([node], store)[0]
    assert "plan.json is of an interrupted run on other inputs" in capsys.readouterr().out
    assert resumed.content == runner.ensure([node], fresh)[0].content
    assert resumed.content != found(whole, node).content


@pytest.mark.thorough
@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("stage", STAGES)
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    stage: str, whole: Store, nodes: dict[str, Task], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Every stage on a device that is always full, once in its files and, for the long ones, once
    in their shards; then there is room again."""
    node = nodes[stage]
    store = copied(whole, tmp_path, node)

    def plant(places: list[Path]) -> None:
        for place in places:
            place.symlink_to(FULL)

    made = Store.pending

    def full_artifact(*arguments: Any) -> Pending:
        pending = made(*arguments)
        plant([pending.directory / "tables.html" if stage == "report" else
               pending.directory / "data.parquet"])  # fmt: skip
        return pending

    opened = Plan.open

    def full_plan(*arguments: Any, **options: Any) -> Plan:
        plan = opened(*arguments, **options)
        plant([plan.beside(shard) for shard in plan.unfinished()[1:]])
        return plan

    patches: list[tuple[Any, str, Any]] = [(Store, "pending", full_artifact)]
    if stage in LONG:
        patches.insert(0, (Plan, "open", full_plan))
    for owner, name, patched in patches:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, patched)
            with pytest.raises(PipelineError, match=r": can't write below .*No space left") as told:
                runner.ensure([node], store)
        assert "\n" not in str(told.value)
        assert store.find(node) is None
        left = [path for path in (tmp_path / stage).rglob("*") if path.is_file()]
        assert {path.parent.name for path in left} <= {"shards", store.workspace(node).name}
        assert bool(left) == (stage in LONG)
    artifact = runner.ensure([node], store)[0]
    assert not artifact.damage()
    assert list((tmp_path / stage).iterdir()) == [artifact.directory]
    if stage != "report":
        assert artifact.content == found(whole, node).content


def read_only(outputs: Path) -> list[str]:
    """The beginning of a command that sees `outputs` read-only, whoever runs it."""
    if os.geteuid() != 0:
        for path in [outputs, *outputs.rglob("*")]:
            path.chmod(path.stat().st_mode & ~0o222)
        return []
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" "$0" && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, str(outputs)]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"]).returncode:
        pytest.skip("can't make a directory read-only for root here")
    return command


@pytest.mark.thorough
def test_kills_rounds_and_damages(overrides: list[str], whole: Store, tmp_path: Path) -> None:
    """A few of what ``python -m benchmarks.robustness`` does many of."""
    assert whole  # what forks share is compiled and imported
    kills, rounds, damages = (
        partial(robustness.Trial, overrides, tmp_path / name)  # each has a whole study of its own
        for name in ("kills", "rounds", "damages")
    )
    assert robustness.kills(kills, 10)["kills"] == 10
    assert robustness.rounds(rounds, 1)["rounds"] == 1
    assert sum(robustness.damages(damages, 4).values()) == 4


@pytest.mark.thorough
def test_read_only_outputs_with_a_full_cache_serve(overrides: list[str], tmp_path: Path) -> None:
    outputs = tmp_path / "outputs [1] ü"
    command = [sys.executable, "-m", "pipeline", *overrides, f"outputs='{outputs}'"]
    for stage in ("decoding", "certificates"):
        robustness.run_study([*command[3:], f"stage={stage}"])
    for stage in ("decoding", "certificates"):
        done = subprocess.run(
            [*read_only(outputs), *command, f"stage={stage}"],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "cached" in done.stdout
    missing = subprocess.run(
        [*read_only(outputs), *command, "stage=acceptance"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert missing.returncode == 1
    assert missing.stderr.startswith("error: ")
    assert missing.stderr.count("\n") == 1
