"""Compiled norms and feed-forward parts: traced whole, once for all layers, the same numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from pipeline.errors import PipelineError
from pipeline.models import compiled
from pipeline.models.load import load_model, random_qwen3
from pipeline.stages.distributions.running import (
    GrowingBatch,
    PaddedBatch,
    StaticBatch,
    VarlenBatch,
)
from tests.pipeline import tiny

SHAPE: dict[str, int] = {
    "vocab_size": 300, "head_dim": 16, "num_key_value_heads": 2, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 10, "num_attention_heads": 4,
}  # fmt: skip
PROMPTS = [[5, 6, 7, 8, 9], [8], [9, 10], [20, 21, 22], [23, 24]]


def steps_of(batch: PaddedBatch) -> Tensor:
    found = [batch.prefill()]
    for step in range(3):
        tokens = torch.arange(30, 30 + len(batch.lengths)) + step
        found.append(batch.step(tokens, step).clone())
    return torch.stack(found)


@torch._dynamo.config.patch(recompile_limit=8)
@torch.inference_mode()
def test_parts_are_traced_whole_and_shared_by_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten layers, prompts and steps. Sizes that are equal, as of five prompts of up to five tokens,
    are shapes of their own for torch, which stops after eight unless told otherwise."""
    torch.manual_seed(0)
    model = random_qwen3(SHAPE, "float32", "float32", torch.device("cpu"), "m")
    batches = [(kind, PROMPTS[:n]) for kind in (GrowingBatch, StaticBatch, VarlenBatch)
               for n in (5, 4, 3, 1)]  # fmt: skip
    wanted = [steps_of(kind(model, prompts, 4)) for kind, prompts in batches]
    monkeypatch.setattr(compiled, "has_triton", lambda: True)
    counted = CompileCounterWithBackend("aot_eager")
    compiled.compile_parts(replace(model, device=torch.device("cuda")), counted)
    frames = []
    for (kind, prompts), logits in zip(batches, wanted, strict=True):
        torch.testing.assert_close(steps_of(kind(model, prompts, 4)), logits, rtol=0, atol=1e-5)
        frames.append(counted.frame_count)
    assert 0 < frames[0] < SHAPE["num_hidden_layers"]
    assert frames[1] == frames[2]
    assert len(set(frames[3:])) == 1  # nothing is traced for other ways to run a batch


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"path": str(tiny.write_model(tmp_path)), "label": "tiny", "device": "cpu"}
    model = load_model(tiny.MODEL, settings | {"threads": 1}, "targets.tiny")
    with pytest.raises(PipelineError, match=r"^device.compile=true: tiny: it is for CUDA .* Give"):
        compiled.compile_parts(model)
    monkeypatch.setattr(compiled, "has_triton", lambda: True)
    other: Any = SimpleNamespace(config=SimpleNamespace(model_type="bloom"))
    with pytest.raises(PipelineError, match=r"type bloom were not tried, only llama, qwen2, qwen"):
        compiled.compile_parts(replace(model, module=other, device=torch.device("cuda")))
