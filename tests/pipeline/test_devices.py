"""Devices and threads, and statistics of logits that are asked for one by one."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest
import torch

from pipeline.models import logit_statistics
from pipeline.models.devices import set_up
from pipeline.paths import ROOT
from pipeline.shards import unfinished


@pytest.mark.parametrize(
    ("prompts", "sizes"), [(0, []), (3, [3]), (4, [4]), (5, [4, 1]), (8, [4, 4])]
)
def test_cuts_of_a_fixed_size(prompts: int, sizes: list[int]) -> None:
    assert [len(batch) for batch in unfinished(["p"] * prompts, set(), 4)] == sizes


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
            wanted = [all_[name] for name in asked]
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert z.equal(before)


def test_the_largest_logit_is_the_first_of_equal_ones() -> None:
    z = torch.tensor([[1.0, 3.0, 3.0], [2.0, -torch.inf, 2.0]])
    for rows in (z, z.double(), z.bfloat16(), z[:, :2], z.T.contiguous().T):
        found = logit_statistics.argmax(rows)
        assert found.tolist() == [1, 0]
        assert logit_statistics.top_k(rows, 1)[1][:, 0].equal(found)


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


@pytest.mark.parametrize(
    ("given", "spins"),
    [
        ({}, "2000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, None),
    ],
)  # fmt: skip
def test_spin_count_is_set_before_torch_is_imported(
    given: dict[str, str], spins: str | None
) -> None:
    script = (
        "import os, sys, pipeline\nprint(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    )
    own = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    environment = {name: value for name, value in os.environ.items() if name not in own} | given
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment,
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.split() == [str(spins), "False"]
