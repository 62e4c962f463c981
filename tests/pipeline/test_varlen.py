"""Attention over true lengths: its twin, what torch's kernel is asked, and batches that use it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from pipeline.errors import PipelineError
from pipeline.models import varlen
from pipeline.models.language_model import LanguageModel
from pipeline.models.load import load_model
from pipeline.stages.distributions import running
from pipeline.stages.distributions.running import GrowingBatch, VarlenBatch, running_batch
from pipeline.store.artifacts import Artifact
from tests.pipeline import tiny

CPU = torch.device("cpu")
PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], [8], [9, 10], [20, 21, 22, 23, 24]]
SHAPE = {"heads": 6, "groups": 2, "width": 8, "dtype": torch.float32, "device": CPU}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("model"))


def load(folder: Path, **changes: str) -> LanguageModel:
    settings = {"path": str(folder), "label": "tiny", "device": "cpu", "threads": 1}
    return load_model(tiny.MODEL | changes, settings, "targets.tiny")


def kernel(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor,
    max_q: int, max_k: int, *, scale: float, enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """What torch's documentation says of varlen_attn, a sequence and a head at a time."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert seqused_k is not None
    assert seqused_k.dtype == torch.int32
    assert seqused_k.is_contiguous()
    assert key.stride(-1) == value.stride(-1) == query.stride(-1) == 1
    assert enable_gqa
    assert int(cu_seq_q.diff().max()) <= max_q
    assert int(cu_seq_k.diff().max()) <= max_k
    out, shared = torch.empty_like(query), query.shape[1] // key.shape[1]
    for row, used in enumerate(seqused_k.tolist()):
        asked = slice(*cu_seq_q[row : row + 2].tolist())
        kept = slice(int(cu_seq_k[row]), int(cu_seq_k[row]) + used)
        for head in range(query.shape[1]):
            scores = query[asked, head] @ key[kept, head // shared].T * scale
            out[asked, head] = scores.softmax(-1) @ value[kept, head // shared]
    return out


def one_short(*args: Any, seqused_k: Tensor, **kwargs: Any) -> Tensor:
    return kernel(*args, seqused_k=seqused_k - 1, **kwargs)


def test_the_twin_is_what_torchs_kernel_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots as `SlotLayer` has them, of which what is not in use is far off."""
    torch.manual_seed(0)
    query = torch.randn(4, 6, 8)
    keys, values = torch.randn(4, 20, 2, 8), torch.randn(4, 20, 2, 8)
    used = torch.tensor([1, 20, 7, 13], dtype=torch.int32)
    for row, length in enumerate(used.tolist()):
        keys[row, length:] = values[row, length:] = 1e4
    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    wanted = varlen.by_mask(query, keys, values, used, 0.3)
    found = varlen.by_kernel(query, keys, values, used, 0.3)
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6)
    torch.testing.assert_close(wanted[0, 3:], values[0, :1, 1].expand(3, 8))  # of one key


def out_of_order(*_: Any, **__: Any) -> Tensor:
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.\nmore")


@pytest.mark.parametrize(("works", "why"), [
    (kernel, None), (one_short, "gives something else"), (out_of_order, "only supports Ampere"),
])  # fmt: skip
def test_the_kernel_is_tried_before_it_is_used(
    works: Any, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    varlen.kernel_refusal.cache_clear()
    monkeypatch.setattr(varlen, "varlen_attn", works)
    found = varlen.kernel_refusal(**SHAPE)
    varlen.kernel_refusal.cache_clear()
    assert found is None if why is None else found is not None and why in found


def fake_module(model_type: str, attention: str, dtype: torch.dtype) -> Any:
    config = SimpleNamespace(model_type=model_type, _attn_implementation=attention, head_dim=8,
                             num_attention_heads=6, num_key_value_heads=2)  # fmt: skip
    return SimpleNamespace(config=config, dtype=dtype)


@pytest.mark.parametrize(("model_type", "attention", "dtype", "kernel_there", "why"), [
    ("qwen3", "sdpa", torch.bfloat16, True, None),
    ("qwen3", "eager", torch.bfloat16, True, "attention: eager"),
    ("gemma2", "sdpa", torch.bfloat16, True, "type gemma2 were not tried"),
    ("qwen3", "sdpa", torch.float32, True, "takes bfloat16 and float16"),
    ("qwen3", "sdpa", torch.bfloat16, False, "no varlen attention that takes lengths"),
])  # fmt: skip
def test_refusals_on_cuda(
    model_type: str, attention: str, dtype: torch.dtype, kernel_there: bool, why: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(varlen, "kernel_refusal", lambda *_: None)
    monkeypatch.setattr(varlen, "varlen_attn", kernel if kernel_there else lambda query: query)
    found = varlen.refusal(fake_module(model_type, attention, dtype), torch.device("cuda"))
    assert found is None if why is None else found is not None and why in found


def test_the_pinned_torch_has_what_is_asked_for() -> None:
    """A CPU gets as far as the kernel, so the names of the arguments are right."""
    varlen.kernel_refusal.cache_clear()
    found = varlen.kernel_refusal(**SHAPE)
    varlen.kernel_refusal.cache_clear()
    assert found is not None
    assert "_flash_attention_forward" in found


@pytest.mark.parametrize(("varlen_why", "static_why", "auto"), [
    (None, None, "varlen"), ("no", None, "static"), ("no", "no", "dynamic"),
])  # fmt: skip
def test_what_auto_takes_on_cuda(varlen_why: Any, static_why: Any, auto: str) -> None:
    model: Any = SimpleNamespace(
        device=torch.device("cuda"), label="m",
        varlen_refusal=lambda: varlen_why, static_refusal=lambda: static_why,
    )  # fmt: skip
    kinds = {"varlen": VarlenBatch, "static": running.StaticBatch, "dynamic": GrowingBatch}
    assert running_batch("auto", model) is kinds[auto]
    assert running_batch("dynamic", model) is GrowingBatch
    if varlen_why:
        with pytest.raises(PipelineError, match=r"device.cache=varlen: m can't decode so: no. Giv"):
            running_batch("varlen", model)
    model.device = CPU
    assert running_batch("auto", model) is GrowingBatch


def steps_of(batch: running.PaddedBatch, count: int) -> Tensor:
    """Logits (B, count, V) when every sequence goes on with made-up tokens."""
    tokens = torch.arange(30, 30 + len(batch.lengths))
    found = [batch.prefill()]
    found += [batch.step(tokens + step, step).clone() for step in range(count - 1)]
    return torch.stack(found, 1)


@pytest.mark.parametrize(("changes", "tolerance"), [
    ({}, 1e-5), ({"dtype": "bfloat16"}, 0.25),
])  # fmt: skip
@torch.inference_mode()
def test_logits_are_those_of_each_prompt_alone(
    folder: Path, changes: dict[str, str], tolerance: float
) -> None:
    """Prompts of 12, 1, 2 and 5 tokens; a batch of one; tolerances as in test_distributions."""
    model = load(folder, **changes)
    padded = VarlenBatch(model, PROMPTS, 9)
    found = steps_of(padded, 9)
    for layer in padded.cache.layers:  # the kernel takes slots one after the other: not a copy
        assert layer.keys.transpose(1, 2).is_contiguous()
        assert layer.values.transpose(1, 2).is_contiguous()
    before = model.module.config._attn_implementation
    for row, prompt in enumerate(PROMPTS):
        batch = GrowingBatch(model, [prompt], 9)
        wanted = [batch.prefill()]
        wanted += [batch.step(torch.tensor([30 + row + step]), step) for step in range(8)]
        np.testing.assert_allclose(
            found[row].float(), torch.cat(wanted).float(), rtol=0, atol=tolerance
        )
    assert model.module.config._attn_implementation == before  # the other batches' attention
    alone = steps_of(VarlenBatch(model, PROMPTS[:1], 9), 9)[0]
    np.testing.assert_allclose(alone.float(), found[0].float(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("off", [-1, 1])
@torch.inference_mode()
def test_a_length_that_is_off_by_one_shows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, off: int
) -> None:
    model = load(folder)
    right = steps_of(VarlenBatch(model, PROMPTS, 9), 4)
    by_mask = varlen.by_mask
    monkeypatch.setattr(varlen, "by_mask", lambda q, k, v, used, s: by_mask(q, k, v, used + off, s))
    wrong = steps_of(VarlenBatch(model, PROMPTS, 9), 4)
    assert torch.equal(right[:, 0], wrong[:, 0])  # the prompts are read as ever
    assert bool(((right - wrong).abs().amax(-1)[:, 1:] > 1e-2).all())


def dump(model: Path, root: Path, cache: str, **changes: Any) -> tuple[Artifact, pd.DataFrame]:
    source = tiny.write_prompts(root / "prompts.jsonl", 6)
    node = tiny.dump_node(model, tiny.prompts_node(model, source), cache=cache, **changes)
    artifact = tiny.built(node, root / cache)
    return artifact, artifact.read().to_pandas()


def test_artifacts_are_those_of_growing_steps(tmp_path: Path) -> None:
    """Answers that end on the way, sampled; shards of four prompts and two."""
    model = tiny.write_model(tmp_path / "model")
    config = model / "generation_config.json"
    ends = json.dumps(list(range(2, 14)))
    config.write_text(config.read_text().replace('"eos_token_id": 2', f'"eos_token_id": {ends}'))
    sampled = {"temperature": 1.5, "steps": 40}
    (grown, wanted), (made, found) = (
        dump(model, tmp_path, cache, **sampled) for cache in ("dynamic", "varlen")
    )
    for artifact, used in ((grown, False), (made, True)):
        assert artifact.record["facts"]["varlen_attention"] is used
        assert artifact.record["facts"]["static_shapes"] is used
        assert artifact.record["facts"]["cuda_graph"] is False
    lengths = wanted.groupby("prompt_id").size()
    assert lengths.min() <= 24 < lengths.max()
    assert found["token_id"].tolist() == wanted["token_id"].tolist()
    assert found["prompt_id"].tolist() == wanted["prompt_id"].tolist()
    for name in ("top_logits", "logsumexp", "entropy"):
        one, other = (np.stack(table[name].to_list()) for table in (found, wanted))
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)
