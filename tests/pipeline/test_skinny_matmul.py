"""Products with few rows, and models with them: transformers' numbers within float32 rounding."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from analysis.trees.topology import Topology
from pipeline.decoding.shapes import verification_pass
from pipeline.models import skinny_matmul
from pipeline.models.load import LanguageModel, load_model, skeleton
from pipeline.models.passes import Batch, Texts
from pipeline.models.skinny_matmul import MOST_ROWS, SkinnyLinear, upper_halves, use_skinny_matmul
from tests.pipeline import tiny


@pytest.fixture(autouse=True)
def any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever processor runs the tests."""
    monkeypatch.setattr(skinny_matmul, "FEWEST_TOKENS", 1)


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
    fast = SkinnyLinear(plain)
    for n in range(MOST_ROWS + 2):
        x = torch.randn(n, shape[1])
        exact = plain.double()(x.double())
        plain.float()
        # a sum of k products of numbers near 1 and 1/sqrt(k): 20 units of the last place are ample
        torch.testing.assert_close(fast(x).double(), exact, rtol=0, atol=2e-6)


@pytest.mark.thorough
def test_threads_of_python_share_the_threads_of_numba() -> None:
    """In numba's own layer, where two at once end the process."""
    script = (
        "import threading, torch\n"
        "from torch import nn\n"
        "from pipeline.models import skinny_matmul\n"
        "skinny_matmul.FEWEST_TOKENS = 1\n"
        "torch.set_num_threads(2)\n"
        "fast = skinny_matmul.SkinnyLinear(nn.Linear(512, 4096).requires_grad_(False))\n"
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


def test_halves_and_threads_give_the_same_bits() -> None:
    plain = linear(1001, 300, bias=True)
    plain.weight.copy_(plain.weight.bfloat16())
    x, before = torch.randn(MOST_ROWS, 300), torch.get_num_threads()
    found = []
    for halves in (False, True):
        fast = SkinnyLinear(plain, halves)
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append([fast(x[:n]) for n in range(1, MOST_ROWS + 1)])
    torch.set_num_threads(before)
    for first, *others in zip(*found, strict=True):
        assert all(other.equal(first) for other in others)
    fast._read[:] = 0  # what few rows are multiplied with, and nothing else
    assert fast(x).equal(plain.bias.expand(MOST_ROWS, -1))


@pytest.mark.parametrize(
    ("number", "kept"),  # 2^-133 is the least number of bfloat16 above 0
    [(-0.0, True), (float("inf"), True), (2.0**-133, True), (2.0**-134, False),
     (1 + 2.0**-7, True), (1 + 2.0**-8, False), (1 + 2.0**-23, False)],
)  # fmt: skip
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
    fast = SkinnyLinear(plain)
    wide = torch.randn(2, 3, 12)
    for x in (wide[:, :, ::2], wide[:1, :, 6:], wide[0, 0, :6], wide[:, :0, :6], torch.ones(1, 6)):
        found = fast(x)
        assert found.shape == (*x.shape[:-1], 10)
        torch.testing.assert_close(found, plain(x), rtol=0, atol=2e-6)


@pytest.mark.parametrize("n", [3, 4, MOST_ROWS, MOST_ROWS + 1])
def test_other_numbers_are_left_to_torch(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skinny_matmul, "FEWEST_TOKENS", 4)
    seen: list[int] = []
    monkeypatch.setattr(
        skinny_matmul, "multiply", lambda weight, x, out, threads: seen.append(len(x))
    )
    SkinnyLinear(linear(5, 4))(torch.ones(n, 4))
    assert seen == ([n] if 4 <= n <= MOST_ROWS else [])


def test_huge_and_missing_numbers_are_not_hidden(threads: int) -> None:
    fast = SkinnyLinear(linear(5, 4))
    x = torch.tensor([[torch.nan, 0, 0, 0], [torch.inf, 1, 1, 1], [3e38] * 4, [0.0] * 4])
    found = fast(x)
    assert found[0].isnan().all()
    assert not found[1].isfinite().any()
    assert found[3].equal(torch.zeros(5))


@pytest.mark.parametrize(
    ("change", "used"),
    [({}, True), ({"least": 480}, True), ({"least": 481}, False),  # a small model
     ({"dtype": torch.bfloat16}, False), ({"device": "meta"}, False), ({"machine": "arm64"}, False),
     ({"trained": True}, False)],
)  # fmt: skip
def test_where_they_are_used(
    change: dict[str, Any], used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"dtype": torch.float32, "device": "cpu", "machine": "x86_64", "trained": False}
    dtype, device, machine, trained, least = (given | {"least": 0} | change).values()
    monkeypatch.setattr(skinny_matmul, "LEAST_BYTES", least)
    monkeypatch.setattr(skinny_matmul.platform, "machine", lambda: machine)
    maps = [linear(10, 6).to(device, dtype).requires_grad_(trained) for _ in range(2)]
    model = nn.Sequential(*maps)
    use_skinny_matmul(model)
    assert type(model[0]) is (SkinnyLinear if used else nn.Linear)


@pytest.mark.thorough
def test_torch_keeps_the_threads_it_was_given() -> None:
    """Numba would give it all processors, on import or at the first product of several threads."""
    code = (
        "import numpy as np, torch; from pipeline.models import skinny_matmul\n"
        "at_import = torch.get_num_threads()\n"
        "torch.set_num_threads(2)\n"
        "one = np.ones((4, 4), np.float32)\n"
        "skinny_matmul.multiply(one, one, one.copy(), 2)\n"
        "print(at_import, torch.get_num_threads())"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "3"}
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["1", "2"]


CLOSE = {"rtol": 0.0, "atol": 1e-4}  # of logits of about 10


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skinny_matmul, "LEAST_BYTES", 0)
    monkeypatch.setattr(skinny_matmul.platform, "machine", lambda: "x86_64")


def load(folder: Path, **changes: str) -> LanguageModel:
    return load_model(tiny.used(folder, **changes))


@pytest.mark.usefixtures("any_size")
@torch.inference_mode()
def test_cached_passes_over_few_tokens(tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model = load(folder)
    assert sum(isinstance(inner, SkinnyLinear) for inner in model.module.modules()) == 2 * 7 + 1
    assert model.module.config._attn_implementation == skinny_matmul.NAME
    tied = model.module.get_output_embeddings().weight is model.module.get_input_embeddings().weight
    assert tied
    assert model.memory_bytes() == sum(t.nbytes for t in (*plain.parameters(), *plain.buffers()))
    for n in (1, 2, 4, 5, 16, 17):
        text = torch.arange(20 + n)[None] * 7 % tiny.VOCABULARY
        wanted = plain(input_ids=text, use_cache=False).logits[:, 20:]
        texts = Texts(model, 20 + n)
        texts.read(text[:, :20])
        torch.testing.assert_close(texts.extend(text[:, 20:]), wanted, **CLOSE)


@pytest.mark.usefixtures("any_size")
@torch.inference_mode()
def test_a_tree_and_its_branches(tmp_path: Path) -> None:
    model = load(tiny.write_model(tmp_path))
    texts = Texts(model, 16)
    texts.read(torch.arange(9)[None])
    branches = verification_pass(Topology((-1, -1)), model.device, model.module.dtype)
    found = texts.extend(torch.tensor([[30, 40, 50]]), branches)[0]
    for at, branch in enumerate(([30], [30, 40], [30, 50])):
        text = torch.tensor([*range(9), *branch])
        wanted = model.module(input_ids=text[None], use_cache=False).logits[0, -1]
        torch.testing.assert_close(found[at], wanted, **CLOSE)


@pytest.mark.usefixtures("any_size")
@torch.inference_mode()
def test_padded_batches(tmp_path: Path) -> None:
    """The prompts of 3, 1 and 2 tokens are read by a pass of 9 padded queries."""
    folder = tiny.write_model(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model, prompts = load(folder), [[5, 6, 7], [8], [9, 10]]
    model.check_trees()
    batch = Batch.make(prompts, [[11], [12], [13]], model.device)
    texts = Texts(model, batch.ids.shape[1], padding=batch.padding)
    found = [texts.read(batch.ids[:, :-1])[:, -1], texts.extend(batch.ids[:, -1:])[:, -1]]
    for row, prompt in enumerate(prompts):
        text = torch.tensor([[*prompt, 11 + row]])
        wanted = plain(input_ids=text, use_cache=False).logits[0, -2:]
        torch.testing.assert_close(torch.stack([f[row] for f in found]), wanted, **CLOSE)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("batch", "n"), [(1, 1), (1, 2), (1, 16), (1, 17), (3, 5), (2, 9)])
def test_attention(batch: int, n: int, added: bool) -> None:
    """That of transformers, of 6 heads in 2 groups, with keys in a longer buffer."""
    torch.manual_seed(n)
    layer = torch.nn.Module()
    layer.num_key_value_groups = 3
    query = torch.randn(batch, n, 6, 8).transpose(1, 2)
    key, value = (torch.randn(batch, 2, 40, 8)[:, :, : 20 + n] for _ in range(2))
    mask = torch.ones(batch, 1, n, 20 + n, dtype=torch.bool).tril(20)
    mask[-1, :, :, :3] = False
    if added:
        mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    found, none = skinny_matmul.attend(layer, query, key, value, mask, scaling=0.3)
    wanted = sdpa_attention_forward(layer, query, key, value, mask, scaling=0.3)[0]
    assert none is None
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6)


def test_rows_of_padding_that_see_nothing_are_finite() -> None:
    mask = torch.zeros(1, 1, 2, 4, dtype=torch.bool)
    states = torch.ones(1, 1, 4, 8)
    found = skinny_matmul.attend(nn.Module(), states[:, :, :2], states, states, mask, scaling=1.0)
    assert found[0].isfinite().all()


@pytest.mark.usefixtures("any_size")
def test_what_is_not_for_them(tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path)
    eager = load(folder, attention="eager")
    assert eager.module.config._attn_implementation == "eager"
    half = load(folder, dtype="bfloat16")  # the head alone is in float32
    assert half.module.config._attn_implementation == "sdpa"
    assert [type(m) for m in half.module.modules()].count(SkinnyLinear) == 1
    bare = skeleton(tiny.used(folder))
    assert not any(isinstance(inner, SkinnyLinear) for inner in bare.module.modules())
