"""Models with the products for few tokens: logits and answers of transformers' plain passes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from analysis.trees.topology import Topology
from pipeline.decoding.choices import Greedy
from pipeline.decoding.drafters import ModelDrafter, Nothing
from pipeline.decoding.loop import decode
from pipeline.decoding.shapes import verification_pass
from pipeline.decoding.verifiers import Match
from pipeline.models import few_rows
from pipeline.models.few_rows import FewRows
from pipeline.models.forced import Batch
from pipeline.models.load import LanguageModel, load_model, skeleton
from pipeline.models.passes import Text, Texts
from pipeline.paths import ROOT
from tests.pipeline import tiny

CLOSE = {"rtol": 0.0, "atol": 1e-4}  # of logits of about 10


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "LEAST_BYTES", 0)
    monkeypatch.setattr(few_rows.platform, "machine", lambda: "x86_64")


def load(folder: Path, **changes: str) -> LanguageModel:
    settings = {"path": str(folder), "revision": None, "label": "t", "device": "cpu", "threads": 1}
    return load_model(tiny.MODEL | changes, settings, "k")


@torch.inference_mode()
def test_cached_passes_over_few_tokens(tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model = load(folder)
    assert sum(isinstance(inner, FewRows) for inner in model.module.modules()) == 2 * 7 + 1
    assert model.module.config._attn_implementation == few_rows.NAME
    tied = model.module.get_output_embeddings().weight is model.module.get_input_embeddings().weight
    assert tied
    assert model.memory_bytes() == sum(t.nbytes for t in (*plain.parameters(), *plain.buffers()))
    for n in (1, 2, 4, 5, 16, 17):
        text = torch.arange(20 + n) * 7 % tiny.VOCABULARY
        wanted = plain(input_ids=text[None], use_cache=False).logits[0, 20:]
        sequence = Text(model, len(text))
        sequence.read(text[:20])
        torch.testing.assert_close(sequence.extend(text[20:]), wanted, **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("n", [2, 3, 16, 17])
def test_tokens_in_a_row_see_what_transformers_lets_them_see(
    n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: by its mask, which is of truth values, and by ours."""
    model, text = load(tiny.write_model(tmp_path)), torch.arange(20 + n) * 7 % tiny.VOCABULARY
    found = []
    for ours in (True, False):
        monkeypatch.setattr(LanguageModel, "_few_queries", ours)
        sequence = Text(model, len(text), (1, 2))
        sequence.read(text[:20])
        found.append((sequence.extend(text[20:]), sequence.hidden))
    for one, other in zip(*found, strict=True):
        assert one is not None
        assert other is not None
        assert one.equal(other)


@torch.inference_mode()
def test_a_tree_and_its_branches(tmp_path: Path) -> None:
    model = load(tiny.write_model(tmp_path))
    sequence = Text(model, 16)
    sequence.read(torch.arange(9))
    branches = verification_pass(Topology((-1, -1)), model.device, model.module.dtype)
    found = sequence.extend(torch.tensor([30, 40, 50]), branches)
    for at, branch in enumerate(([30], [30, 40], [30, 50])):
        text = torch.tensor([*range(9), *branch])
        wanted = model.module(input_ids=text[None], use_cache=False).logits[0, -1]
        torch.testing.assert_close(found[at], wanted, **CLOSE)


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
    found, none = few_rows.attend(layer, query, key, value, mask, scaling=0.3)
    wanted = sdpa_attention_forward(layer, query, key, value, mask, scaling=0.3)[0]
    assert none is None
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6)


def test_rows_of_padding_that_see_nothing_are_finite() -> None:
    mask = torch.zeros(1, 1, 2, 4, dtype=torch.bool)
    states = torch.ones(1, 1, 4, 8)
    found = few_rows.attend(torch.nn.Module(), states[:, :, :2], states, states, mask, scaling=1.0)[
        0
    ]
    assert found.isfinite().all()


def test_what_is_not_for_them(tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path)
    eager = load(folder, attention="eager")
    assert eager.module.config._attn_implementation == "eager"
    half = load(folder, dtype="bfloat16")  # the head alone is in float32
    assert half.module.config._attn_implementation == "sdpa"
    assert [type(m) for m in half.module.modules()].count(FewRows) == 1
    settings = {"path": str(folder), "revision": None, "label": "t", "device": "cpu", "threads": 1}
    bare = skeleton(tiny.MODEL, settings, "k")
    assert not any(isinstance(inner, FewRows) for inner in bare.module.modules())


@pytest.mark.thorough
@pytest.mark.parametrize("gamma", [1, 3, 7])
def test_greedy_decoding_of_the_embedded_pair(gamma: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafting changes nothing, nor do the products for few tokens."""
    target, drafter = (load(ROOT / "assets/mini" / name) for name in ("large", "drafter"))
    monkeypatch.setattr(few_rows, "LEAST_BYTES", 2**40)
    plain = load(ROOT / "assets/mini/large")
    assert not any(isinstance(inner, FewRows) for inner in plain.module.modules())
    law, nothing = Match(Greedy()), Nothing(torch.device("cpu"))
    for prompt in ([5, 9, 5, 9, 5], list(range(3, 40))):
        wanted = decode(plain, nothing, law, prompt, 0, 24).tokens
        assert decode(target, nothing, law, prompt, 0, 24).tokens == wanted
        model = ModelDrafter(drafter, Greedy())
        assert decode(target, model, law, prompt, gamma, 24).tokens == wanted
