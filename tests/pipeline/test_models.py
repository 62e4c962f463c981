"""Loading: what is refused and why, the head's precision, the preallocated cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache

from pipeline.caches import select
from pipeline.encoding import encode
from pipeline.errors import PipelineError
from pipeline.identity import hub_commit
from pipeline.models import LanguageModel, load_model, load_tokenizer
from tests.pipeline import tiny


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tiny.write_model(tmp_path / "model")


def load(directory: Path | str, device: str = "cpu", **changes: Any) -> LanguageModel:
    settings = {"path": str(directory), "label": "tiny", "device": device, "threads": 1}
    return load_model({**tiny.MODEL, **changes}, settings, "targets.tiny")


def last_logits(model: LanguageModel, ids: torch.Tensor) -> torch.Tensor:
    mask, positions = torch.ones_like(ids), torch.arange(ids.shape[1])[None]
    with torch.inference_mode():
        return model.forward(ids, mask, positions, model.new_cache(ids.shape[1]))


def test_eos_comes_from_the_generation_config(directory: Path) -> None:
    assert load(directory).eos == (2,)
    path = directory / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [2, 7]}))
    assert load(directory).eos == (2, 7)


def test_float32_head_of_a_bfloat16_model(directory: Path) -> None:
    """Equals projecting the bf16 hidden state in float64 to float32's rounding, and so is finer
    than the bf16 head, whose spacing is 2^-8 of the value; tied embeddings stay bf16."""
    ids = torch.arange(4, 24)[None]
    model = load(directory, dtype="bfloat16")
    assert model.module.get_input_embeddings().weight.dtype == torch.bfloat16
    plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    with torch.inference_mode():
        hidden = plain.model(ids).last_hidden_state[:, -1].double()
        exact = hidden @ plain.lm_head.weight.double().T
    fine, coarse = last_logits(model, ids), last_logits(
        load(directory, dtype="bfloat16", head_dtype="bfloat16"), ids)  # fmt: skip
    assert fine.dtype == torch.float32
    assert (fine - exact).abs().max() < 1e-6 * exact.abs().max()
    assert coarse.dtype == torch.bfloat16
    assert (coarse - exact).abs().max() > 1e-4 * exact.abs().max()


def test_preallocated_cache_equals_transformers(directory: Path) -> None:
    """Bit for bit, also after rows have left the batch."""
    model = load(directory)
    torch.manual_seed(0)
    ids = torch.randint(4, tiny.VOCABULARY, (3, 9))
    keep = torch.tensor([True, False, True])
    results = []
    for cache in (model.new_cache(9), DynamicCache(config=model.module.config)):
        with torch.inference_mode():
            model.forward(ids[:, :7], torch.ones_like(ids[:, :7]), torch.arange(7)[None], cache)
            select(cache, keep)
            steps = [model.forward(ids[keep, i : i + 1], torch.ones_like(ids[keep, : i + 1]),
                                   torch.tensor([[i]]), cache) for i in (7, 8)]  # fmt: skip
        results.append(torch.stack(steps))
    assert torch.equal(*results)
    assert model.cache_bytes() == 2 * 2 * 2 * 32 * 4  # k and v, layers, heads, head_dim, float32


def test_weights_read_in_a_step(directory: Path) -> None:
    """Tied: everything is read once. With a head of its own dtype the embeddings are only
    looked up."""
    stored = sum(t.nbytes for t in load_file(directory / "model.safetensors").values())
    embedding = tiny.VOCABULARY * 64
    assert load(directory).weight_bytes() == stored
    bf16 = load(directory, dtype="bfloat16").weight_bytes()
    assert bf16 == (stored // 2 - embedding * 2) + embedding * 4


def test_refusals(directory: Path, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(PipelineError, match=r"device.name=cuda: .* give device.name=cpu"):
            load(directory, device="cuda")
    weights = load_file(directory / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PipelineError, match=r"lack or misshape 1 weights .*layers\.1\.mlp\.up"):
        load(directory)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(PipelineError, match=r"targets.tiny.path=.* no file named .*safetensors"):
        load(directory)
    with pytest.raises(PipelineError, match="is no hub id"):
        load(tmp_path / "nowhere")


def test_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that names the key and the files, not minutes of retries."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        PipelineError,
        match=r"targets.tiny.path=no-one/no-model: the hub did not "
        r"give .*\.safetensors.* local copy: targets.tiny.path=DIRECTORY",
    ):
        load("no-one/no-model", commit="0" * 40)


def test_fetched_model_needs_no_hub(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot in the hub client's cache is found without the hub: commit, weights, tokenizer."""
    from huggingface_hub import constants

    commit = "0123456789" * 4
    cache = directory.parent / "hub"
    repository = cache / "models--some-one--a-model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    directory.rename(repository / "snapshots" / commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_commit("some-one/a-model", None, "model", "key") == commit
    assert load("some-one/a-model", commit=commit).eos == (2,)
    tokenizer = load_tokenizer("some-one/a-model", commit, "targets.tiny")
    assert encode(tokenizer, [""], "chat", enable_thinking=True) == [1, 3]
