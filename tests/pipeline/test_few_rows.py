"""Products with few rows: those of float64 within float32 rounding, on any number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from pipeline.models import few_rows
from pipeline.models.few_rows import MOST_ROWS, FewRows, upper_halves, use_few_rows


@pytest.fixture(autouse=True)
def any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever processor runs the tests."""
    monkeypatch.setattr(few_rows, "FEWEST_TOKENS", 1)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def linear(m: int, k: int, bias: bool = False) -> nn.Linear:
    torch.manual_seed(m * k)
    return nn.Linear(k, m, bias).requires_grad_(False)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (63, 5), (64, 64), (65, 17), (129, 576)])
@pytest.mark.parametrize("bias", [False, True])
def test_products(threads: int, shape: tuple[int, int], bias: bool) -> None:
    plain = linear(*shape, bias)
    fast = FewRows(plain)
    for n in range(MOST_ROWS + 2):
        x = torch.randn(n, shape[1])
        exact = plain.double()(x.double())
        plain.float()
        # a sum of k products of numbers near 1 and 1/sqrt(k): 20 units of the last place are ample
        torch.testing.assert_close(fast(x).double(), exact, rtol=0, atol=2e-6)


def test_another_dtype_is_refused_as_by_torch() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        for made in (linear(3, 5), FewRows(linear(3, 5))):
            with pytest.raises(RuntimeError, match="same dtype"):
                made(torch.randn(2, 5).to(dtype))


@pytest.mark.parametrize("halves", [False, True])
def test_a_changed_weight_is_read_again(halves: bool) -> None:
    plain = linear(65, 17)
    plain.weight.copy_(plain.weight.bfloat16())
    fast, x = FewRows(plain, halves), torch.randn(2, 17)
    before = fast(x)
    plain.weight.mul_(2)
    assert fast(x).equal(2 * before)
    plain.weight.data = torch.ones(65, 17)
    torch.testing.assert_close(fast(x), x.sum(1, keepdim=True).expand(2, 65))


@pytest.mark.thorough
def test_threads_of_python_share_the_threads_of_numba() -> None:
    """In numba's own layer, where two at once end the process."""
    script = (
        "import threading, torch\n"
        "from torch import nn\n"
        "from pipeline.models import few_rows\n"
        "few_rows.FEWEST_TOKENS = 1\n"
        "torch.set_num_threads(2)\n"
        "fast = few_rows.FewRows(nn.Linear(512, 4096).requires_grad_(False))\n"
        "x = torch.randn(2, 512)\n"
        "wanted, wrong = fast(x), []\n"
        "def work():\n"
        "    wrong.extend(i for i in range(300) if not fast(x).equal(wanted))\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "[thread.start() for thread in threads], [thread.join() for thread in threads]\n"
        "print(len(wrong))"
    )
    environment = os.environ | {"NUMBA_THREADING_LAYER": "workqueue", "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("n", range(MOST_ROWS + 2))
def test_halves_give_the_same_bits(threads: int, n: int) -> None:
    plain = linear(65, 17, bias=True)
    plain.weight.copy_(plain.weight.bfloat16())
    fast = FewRows(plain, halves=True)
    assert upper_halves(plain.weight) is not None
    x = torch.randn(n, 17)
    assert fast(x).equal(FewRows(plain)(x))
    reads = fast._read.copy()
    fast._read[:] = 0  # what few rows are multiplied with, and nothing else
    if 1 <= n <= MOST_ROWS:
        assert fast(x).equal(plain.bias.expand(n, -1))
    fast._read[:] = reads
    assert fast(x).equal(FewRows(plain)(x))


@pytest.mark.parametrize(
    ("number", "kept"),
    [
        (1.0, True),
        (-0.0, True),
        (float("inf"), True),
        (2.0**-133, True),  # the least number of bfloat16 above 0
        (2.0**-134, False),
        (1 + 2.0**-7, True),
        (1 + 2.0**-8, False),
        (1 + 2.0**-23, False),
    ],
)
def test_halves_are_kept_where_they_are_all(number: float, kept: bool) -> None:
    plain = linear(3, 2)
    plain.weight.fill_(1.5)
    plain.weight[2, 1] = number
    found = upper_halves(plain.weight)
    assert (found is not None) == kept
    if found is not None:
        wide = torch.from_numpy(found.astype("int32") << 16).view(torch.float32)
        assert wide.equal(plain.weight)


def test_shapes_and_strides() -> None:
    plain = linear(10, 6)
    fast = FewRows(plain)
    wide = torch.randn(2, 3, 12)
    for x in (wide[:, :, ::2], wide[:1, :, 6:], wide[0, 0, :6], wide[:, :0, :6], torch.ones(1, 6)):
        found = fast(x)
        assert found.shape == (*x.shape[:-1], 10)
        torch.testing.assert_close(found, plain(x), rtol=0, atol=2e-6)


def test_bits_do_not_depend_on_threads() -> None:
    fast = FewRows(linear(1001, 300))
    x = torch.randn(MOST_ROWS, 300)
    before = torch.get_num_threads()
    found = {}
    for count in (1, 2):
        torch.set_num_threads(count)
        found[count] = [fast(x[:n]) for n in range(1, MOST_ROWS + 1)]
    torch.set_num_threads(before)
    for one, two in zip(found[1], found[2], strict=True):
        assert one.equal(two)


@pytest.mark.parametrize("n", [3, 4, MOST_ROWS, MOST_ROWS + 1])
def test_other_numbers_are_left_to_torch(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "FEWEST_TOKENS", 4)
    seen: list[int] = []
    monkeypatch.setattr(few_rows, "multiply", lambda weight, x, out, threads: seen.append(len(x)))
    FewRows(linear(5, 4))(torch.ones(n, 4))
    assert seen == ([n] if 4 <= n <= MOST_ROWS else [])


def test_huge_and_missing_numbers_are_not_hidden(threads: int) -> None:
    fast = FewRows(linear(5, 4))
    x = torch.tensor([[torch.nan, 0, 0, 0], [torch.inf, 1, 1, 1], [3e38] * 4, [0.0] * 4])
    found = fast(x)
    assert found[0].isnan().all()
    assert not found[1].isfinite().any()
    assert found[3].equal(torch.zeros(5))


@pytest.mark.parametrize(
    ("dtype", "device", "machine", "trained", "least", "used"),
    [
        (torch.float32, "cpu", "x86_64", False, 0, True),
        (torch.float32, "cpu", "x86_64", False, 2 * 10 * 6 * 4, True),
        (torch.float32, "cpu", "x86_64", False, 2 * 10 * 6 * 4 + 1, False),  # a small model
        (torch.bfloat16, "cpu", "x86_64", False, 0, False),
        (torch.float64, "cpu", "x86_64", False, 0, False),
        (torch.float32, "meta", "x86_64", False, 0, False),
        (torch.float32, "cpu", "arm64", False, 0, False),
        (torch.float32, "cpu", "x86_64", True, 0, False),
    ],
)
def test_where_they_are_used(
    dtype: torch.dtype,
    device: str,
    machine: str,
    trained: bool,
    least: int,
    used: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(few_rows, "LEAST_BYTES", least)
    monkeypatch.setattr(few_rows.platform, "machine", lambda: machine)
    maps = [linear(10, 6).to(device, dtype).requires_grad_(trained) for _ in range(2)]
    model = nn.Sequential(*maps)
    use_few_rows(model)
    assert type(model[0]) is (FewRows if used else nn.Linear)


@pytest.mark.thorough
def test_torch_keeps_the_threads_it_was_given() -> None:
    """Numba would give it all processors, on import or at the first product of several threads."""
    code = (
        "import numpy as np, torch; from pipeline.models import few_rows\n"
        "at_import = torch.get_num_threads()\n"
        "torch.set_num_threads(2)\n"
        "one = np.ones((4, 4), np.float32)\n"
        "few_rows.multiply(one, one, one.copy(), 2)\n"
        "print(at_import, torch.get_num_threads())"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "3"}
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["1", "2"]
