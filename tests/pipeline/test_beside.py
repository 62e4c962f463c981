"""Targets side by side: who computes what, and what becomes of another process's errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import PipelineError
from pipeline.execution import beside
from pipeline.loader import Study
from pipeline.plan.stage import Node
from pipeline.store.artifacts import Store


def asked(
    monkeypatch: pytest.MonkeyPatch, place: Path, stage: str, at_once: int, processors: int = 8
) -> list[list[str]]:
    """What is computed before, here and in other processes, as stage and label."""
    calls: list[list[str]] = []

    def noted(nodes: Sequence[Node], *_: Any, **__: Any) -> None:
        calls.append(sorted({f"{node.stage} {node.label}" for node in nodes}))

    class Noted:
        def __init__(self, *given: Any) -> None:
            noted(*given)

        def join(self) -> None: ...

        def end(self) -> None: ...

    monkeypatch.setattr(beside.os, "cpu_count", lambda: processors)
    monkeypatch.setattr(beside.runner, "ensure", noted)
    monkeypatch.setattr(beside, "_Other", Noted)
    study = Study("study=mini", "criteria=greedy", f"outputs={place}")
    store = Store(place / "artifacts")
    beside.ensure_targets(study.nodes, study.nodes[stage], 2, at_once, store)
    return calls


def test_each_process_has_all_of_its_targets_and_nothing_of_two(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, other, here = asked(monkeypatch, tmp_path, "report", 2)
    assert before == ["prompts mini"]
    stages = ("acceptance", "certificates", "decoding", "distributions", "drafts", "run_lengths")
    for found, label in ((here, "large"), (other, "small")):
        labels = {name.split()[0]: name.split()[1] for name in found}
        assert tuple(labels) == stages
        assert all(label in one for name, one in labels.items() if name != "certificates")
    assert "report 1 to run" in capsys.readouterr().out


@pytest.mark.parametrize(("at_once", "processors"), [(1, 8), (2, 1)])
def test_one_at_a_time_needs_no_other_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at_once: int, processors: int
) -> None:
    assert asked(monkeypatch, tmp_path, "report", at_once, processors) == []


def test_what_two_targets_share_alone_is_left_to_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert asked(monkeypatch, tmp_path, "prompts", 2) == []


def test_another_process_says_what_was_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PipelineError("targets.x: no such model")

    said: list[Any] = []
    monkeypatch.setattr(beside.runner, "ensure", refuse)
    monkeypatch.setattr(beside.signal, "signal", lambda *_: None)
    sender: Any = type("Sender", (), {"send": staticmethod(said.append)})
    beside._run(sender, [], Store(tmp_path))
    assert said == ["targets.x: no such model"]


def test_another_process_ends_well_or_is_named(tmp_path: Path) -> None:
    process = beside._Other([], Store(tmp_path))
    process.join()
    process.end()
    process = beside._Other([], Store(tmp_path))
    process.end()
    with pytest.raises(PipelineError, match=r"of other targets ended with status -15"):
        process.join()
