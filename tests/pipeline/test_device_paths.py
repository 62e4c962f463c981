"""What a GPU runs and a CPU can check: how prompts are cut, the head's product, the bound."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.execution import stopwatch
from pipeline.execution.shard_plan import at_most
from pipeline.models import devices, language_model, logit_statistics
from pipeline.models.devices import set_up
from pipeline.models.load import LanguageModel, load_model
from pipeline.stages.distributions.compute import needed
from tests.pipeline import tiny


@pytest.mark.parametrize(
    ("prompts", "sizes"), [(0, []), (3, [3]), (4, [4]), (5, [4, 1]), (8, [4, 4])]
)
def test_cuts_of_a_fixed_size(prompts: int, sizes: list[int]) -> None:
    assert at_most(4)([9] * prompts) == sizes


@pytest.mark.parametrize("shape", [(3, 16), (2, 5, 16)])
def test_a_narrow_weight_gives_the_logits_of_its_wide_copy(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(16, 40, bias=False).bfloat16()
    hidden = torch.randn(shape).bfloat16()
    wide = language_model.Head(linear, torch.float32)
    assert wide.weight.dtype == torch.float32
    monkeypatch.setattr(language_model, "sums_wide", lambda *_: True)
    narrow = language_model.Head(linear, torch.float32)
    assert narrow.weight.data_ptr() == linear.weight.data_ptr()  # no copy
    assert torch.equal(narrow(hidden), wide(hidden))
    exact = hidden.double() @ linear.weight.double().T
    torch.testing.assert_close(narrow(hidden).double(), exact, rtol=1e-6, atol=1e-6)
    biased = language_model.Head(nn.Linear(16, 40).bfloat16(), torch.float32)
    assert biased.weight.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_statistics_that_are_asked_for_are_those_of_all(dtype: torch.dtype) -> None:
    z = torch.randn((9, 50), generator=torch.Generator().manual_seed(0)).mul(4).to(dtype)
    z[2] = z[2].round()
    z[3, 5:] = -torch.inf
    before = z.clone()
    names = ("entropy", "log_tail", "top_surprisal")
    for k in (1, 4):
        ids = logit_statistics.top_k(z, k)[1]
        all_ = logit_statistics.logit_statistics(z, k)
        for asked in itertools.chain.from_iterable(
            itertools.combinations(names, count) for count in range(4)
        ):
            found = logit_statistics.chosen_statistics(z, ids, asked)
            wanted = [getattr(all_, name) for name in asked]
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert z.equal(before)


def test_the_largest_logit_is_the_first_of_equal_ones() -> None:
    z = torch.tensor([[1.0, 3.0, 3.0], [2.0, -torch.inf, 2.0]])
    for rows in (z, z.double(), z.bfloat16(), z[:, :2], z.T.contiguous().T):
        found = logit_statistics.argmax(rows)
        assert found.tolist() == [1, 0]
        assert logit_statistics.top_k(rows, 1)[1][:, 0].equal(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_largest_logits_are_found_without_reading(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    z = torch.randn((40, 30), generator=torch.Generator().manual_seed(0)).to(dtype)
    z[10:20] = z[10:20].round()  # ties
    z[20:30, 4:] = -torch.inf
    z[30:35] = -torch.inf
    z[35:] = 0.0
    wanted = {k: logit_statistics.top_k(z, k) for k in (1, 2, 5, 29, 30)}
    monkeypatch.setattr(devices, "waits", lambda _: True)
    for k, (values, ids) in wanted.items():
        found = logit_statistics.top_k_unread(z, k)
        assert found[0].equal(values)
        assert found[1].equal(ids)
    z[0, 3] = z[1] = torch.nan  # an id that there is: another would stop a GPU
    for k in wanted:
        assert logit_statistics.top_k_unread(z, k)[1].max() < 30


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_read_is_what_was_there(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "waits", lambda _: packed)
    given = [
        torch.tensor(1.5, dtype=torch.float64),
        torch.tensor([True, False, True]),
        torch.arange(6).view(2, 3).T,
        torch.empty((0, 4)),
        torch.from_numpy(np.array([], dtype=np.int64)),
        torch.tensor([float("nan"), 1e-40]),
    ]
    for found, wanted in zip(devices.read(*given), given, strict=True):
        np.testing.assert_array_equal(found, wanted.numpy())
        assert found.dtype == wanted.numpy().dtype
    assert devices.read() == []


def loaded(folder: Path) -> LanguageModel:
    settings = {"path": str(tiny.write_model(folder)), "label": "tiny", "device": "cpu"}
    return load_model(tiny.MODEL, settings | {"threads": None, "revision": None}, "targets.tiny")


def steps_by_hand(prompts: tuple[int, ...], answers: tuple[int, ...]) -> dict[str, int]:
    read = seen = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        for step in range(1, answer):  # the first token comes from the prompt
            read += 1
            seen += prompt + step
    return {"forwards": max(answers) - 1, "forward_tokens": read, "kv_tokens": seen}


@pytest.mark.parametrize(
    ("prompts", "answers"), [((5,), (1,)), ((5, 9), (1, 2)), ((3, 7, 2), (4, 1, 9))]
)
def test_what_decoding_needs_is_counted(prompts: tuple[int, ...], answers: tuple[int, ...]) -> None:
    assert needed(prompts, answers) == steps_by_hand(prompts, answers)


def test_the_bound_is_the_longer_of_two_times(tmp_path: Path) -> None:
    model = loaded(tmp_path)
    shard = {"seconds": {"prefill": 1.0, "decode": 3.0, "statistics": 1.0}, "rows": 20}
    shard |= {"forwards": 10, "forward_tokens": 15, "kv_tokens": 400}
    read = 10 * model.weight_bytes() + 400 * model.cache_bytes()
    done = model.operations(15, 400)
    for peaks, bound in (((read, 10 * done), 1.0), ((10 * read, done / 2), 2.0)):
        found = stopwatch.throughput([shard], model, peaks)
        assert found["bound_seconds"] == pytest.approx(bound)
        assert found["fraction_of_bound"] == pytest.approx(bound / 4, abs=1e-4)
    assert "bound_seconds" not in stopwatch.throughput([shard], model, None)


def test_operations_by_hand(tmp_path: Path) -> None:
    model = loaded(tmp_path)
    config = model.module.config
    width = config.num_attention_heads * config.head_dim
    weights = sum(parameter.numel() for parameter in set(model.module.parameters()))
    assert model.operations(1, 0) == 2 * weights  # the head is the embedding
    assert model.operations(0, 3) == 3 * config.num_hidden_layers * 2 * (2 * width)


def test_cuda_allocates_segments_that_grow_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "PYTORCH_CUDA_ALLOC_CONF"
    monkeypatch.delenv(name, raising=False)
    set_up(torch.device("cpu"), None)
    assert name not in os.environ
    set_up(torch.device("cuda"), None)
    assert os.environ[name] == "expandable_segments:True"
    monkeypatch.setenv(name, "backend:native")
    set_up(torch.device("cuda"), None)
    assert os.environ[name] == "backend:native"
