"""Capturing steps, on a device that is made up: what is tried, and what a failure leaves."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.execution import graphs
from pipeline.models import fixed_passes
from pipeline.models.load import load_model
from pipeline.stages.distributions.decode import begin
from tests.pipeline import tiny

LOGITS = torch.tensor([[1.0, 2.0]])


class Cuda:
    """What `graphs` asks of torch.cuda; `replayed` is what a replay leaves in the result."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.main = self.current = self.stream("cuda:0")
        self.made: list[Any] = []
        self.error: Exception | None = None
        self.off = 0.0
        self.replays = 0
        self.captures = 0
        for name in ("Stream", "CUDAGraph", "stream", "graph", "set_stream", "current_stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, f"_{name}"))
        monkeypatch.setattr(graphs, "_failed", [])
        graphs.side_stream.cache_clear()

    def stream(self, device: str) -> Any:
        stream = type("Stream", (), {"wait_stream": lambda self, other: None})()
        stream.device = torch.device(device)
        return stream

    def _Stream(self, device: torch.device) -> Any:  # noqa: N802
        self.made.append(self.stream(str(device)))
        return self.made[-1]

    def _CUDAGraph(self) -> Any:  # noqa: N802
        def replay() -> None:
            self.replays += 1
            self.result += self.off

        return type("Graph", (), {"replay": staticmethod(replay)})

    def _current_stream(self) -> Any:
        return self.current

    def _set_stream(self, stream: Any) -> None:
        self.current = stream

    @contextmanager
    def _stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def _graph(self, graph: Any, capture_error_mode: str) -> Iterator[None]:
        self.captures += 1
        self.current = self.stream("cuda:0")  # left current by a capture that fails
        if self.error is not None:
            raise self.error
        yield
        self.current = self.main

    def run(self) -> torch.Tensor:
        self.result = LOGITS.clone()
        return self.result


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    yield Cuda(monkeypatch)
    graphs.side_stream.cache_clear()


def test_a_step_is_captured_and_replayed_on_streams_made_once(cuda: Cuda) -> None:
    for round_ in range(3):
        replay = graphs.captured(cuda.run, "m")
        assert replay is not None
        assert cuda.replays == 2 * round_ + 1  # the comparison
        assert replay().equal(LOGITS)
        assert graphs.side_stream(torch.device("cuda:0"), "copy") is cuda.made[-1]
    assert len(cuda.made) == 2


@pytest.mark.parametrize("error", [RuntimeError("operation not permitted"), None])
def test_after_a_failure_nothing_is_captured(cuda: Cuda, error: Exception | None) -> None:
    """It can't be captured, or its replay gives something else."""
    cuda.error, cuda.off = error, 0.0 if error else 0.1
    with pytest.warns(UserWarning, match="^m: decoding goes on without a CUDA graph, slower: "):
        assert graphs.captured(cuda.run, "m") is None
    assert cuda.current is cuda.main
    cuda.error, cuda.off = None, 0.0
    assert graphs.captured(cuda.run, "m") is None
    assert cuda.captures == 1


def test_without_memory_the_shard_is_halved_and_capturing_goes_on(cuda: Cuda) -> None:
    cuda.error = RuntimeError("CUDA error: out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        graphs.captured(cuda.run, "m")
    assert cuda.current is cuda.main
    cuda.error = None
    assert graphs.captured(cuda.run, "m") is not None


@pytest.mark.parametrize("works", [True, False])
@torch.inference_mode()
def test_a_batch_replays_what_was_captured(
    works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass is captured once, its steps are replayed or run; the batch goes when it is let go: a
    cycle would keep its key-value cache beside the next one's."""
    tried = []

    def captured(run: Callable[[], torch.Tensor], label: str) -> Any:
        tried.append(label)
        return (lambda: run().fill_(7)) if works else None

    monkeypatch.setattr(fixed_passes, "captures", lambda _: True)
    monkeypatch.setattr(fixed_passes, "captured", captured)
    settings = {"path": str(tiny.write_model(tmp_path)), "label": "a", "device": "cpu"}
    model = load_model(tiny.MODEL, settings | {"threads": 1}, "targets.a")
    batch, _ = begin(model, [[5, 6, 7], [8]], 6, True)
    for _ in range(3):
        assert bool((batch.extend(torch.tensor([[9], [20]])) == 7).all()) is works
    assert batch.graph is works
    assert tried == ["a"]
    gc.disable()
    gone = weakref.ref(batch)
    del batch
    assert gone() is None
    gc.enable()
