"""A head that is exported drafts as it did, and as vLLM's code computes it; states before norms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MixtralConfig,
)

from pipeline.decoding.choices import Greedy
from pipeline.decoding.drafters import HeadDrafter
from pipeline.errors import PipelineError
from pipeline.models.heads.feature_head import FeatureHead, Norms
from pipeline.models.heads.head_files import LLAMA_KEYS, read_weights, save_head
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.heads.load import load_head
from pipeline.models.language_model import LanguageModel, recorded_states
from pipeline.training import export
from tests.pipeline.decoding.pair import PROMPTS, V
from tests.pipeline.eagle3 import IDS, layer_config, reference, reference_logits
from tests.pipeline.heads import states_of, used
from tests.pipeline.tiny import random_model

DEPTH = 3


@pytest.fixture(scope="module")
def target() -> LanguageModel:
    return random_model(V, layers=DEPTH)


def saved(folder: Path, layers: tuple[int, ...], norms: Norms) -> Path:
    """Write a random head in the project's own layout."""
    torch.manual_seed(3)
    given = layer_config()
    shape = {key: given[key] for key in LLAMA_KEYS if given.get(key) is not None}
    head = FeatureHead(shape, len(layers), norms)
    for weight in head.parameters():
        scale = 1.5 * weight.shape[-1] ** -0.5 if weight.ndim == 2 else 0.2
        weight.data = (weight.ndim == 1) + scale * torch.randn_like(weight)
    save_head(head, shape, layers, IDS, folder)
    return folder


def loaded(folder: Path, target: LanguageModel) -> HiddenDrafter:
    return load_head(used(folder), target)


def drafts(model: HiddenDrafter, text: list[int], count: int) -> list[int]:
    drafter = HeadDrafter(model, Greedy())
    states = states_of(model.target, text[:-1], model.layers)
    drafter.begin(torch.tensor(text[:-1]), 40, states)
    return drafter.propose(text, count, 1).tokens.tolist()


@torch.inference_mode()
def test_an_exported_head_drafts_as_before_and_as_vllm_computes(
    target: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = (0, 1, 2, DEPTH)
    folder, out = saved(tmp_path / "head", layers, Norms(fc_norm=True)), tmp_path / "exported"
    monkeypatch.setattr(export, "load_target", lambda *_: (target, None))
    export.main([str(folder), str(out)])
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["draft_vocab_size"], config["vocab_size"]) == (len(IDS), V)
    # vLLM counts states by this key, or by eagle_config; the layers it takes from either
    assert config["num_aux_hidden_states"] == 4
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == list(layers)
    ours, published = loaded(folder, target), loaded(out, target)
    given = {name: value.float() for name, value in read_weights(out).items() if name != "d2t"}
    given["d2t"] = read_weights(out)["d2t"]
    assert given["t2d"].nonzero()[:, 0].tolist() == IDS.tolist()
    for text in ([*PROMPTS[0], 9], [*PROMPTS[1], 4]):
        chosen = drafts(ours, text, 4)
        assert drafts(published, text, 4) == chosen
        for at, token in enumerate(chosen):
            output = reference(target, given, text, chosen[:at], layers, config)
            logits = reference_logits(given, output[None], config)
            assert token == int(logits.argmax())
    outputs = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(published.logits(outputs), ours.logits(outputs), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["head"], "^error: give the directory of a head, then the one to write"),
        (["none", "out"], "^error: HEAD=none: no head is there"),
        (["exported", "out"], r"^error: HEAD=exported: it is in EAGLE-3's layout: give one of mod"),
        (["deep", "out"], "^error: HEAD: the head reads hidden states after 5 layers, tiny has 3"),
    ],
)
def test_what_is_not_exported_is_one_line(
    target: LanguageModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export, "load_target", lambda *_: (target, None))
    saved(Path("deep"), (1, 5), Norms(fc_norm=True))
    export.main([str(saved(Path("head"), (1, 2), Norms())), "exported"])
    with pytest.raises(SystemExit, match=message) as caught:
        export.main(arguments)
    assert "\n" not in str(caught.value)
    assert not Path("out").exists()


def test_a_head_that_was_trained_behind_the_final_norm_is_refused(
    target: LanguageModel, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "old", (1, DEPTH), Norms())
    with pytest.raises(PipelineError, match=r"after all 3 layers without fc_norm, as heads of ear"):
        loaded(folder, target)
    assert loaded(saved(tmp_path / "lower", (1, 2), Norms()), target).layers == (1, 2)


def hooks(module: Any) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())


SMALL: dict[str, Any] = {
    "vocab_size": 24, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2,
    "intermediate_size": 40,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "norm"),
    [
        (LlamaConfig(**SMALL), "model.norm"),
        (Gemma3TextConfig(**SMALL, num_key_value_heads=1, head_dim=16), "model.norm"),
        (GPTNeoXConfig(**SMALL), "gpt_neox.final_layer_norm"),
        # as many experts as layers
        (MixtralConfig(**SMALL, num_local_experts=4, num_key_value_heads=1), "model.norm"),
    ],
    ids=lambda one: getattr(one, "model_type", ""),
)
@torch.inference_mode()
def test_states_are_those_between_the_layers(config: Any, norm: str) -> None:
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(config).eval()
    module.get_submodule(norm).weight.data.uniform_(0.5, 2)
    ids = torch.tensor([[3, 9, 5, 1]])
    plain = module(input_ids=ids, output_hidden_states=True).hidden_states
    before = hooks(module)
    with recorded_states(module, (4, 0, 2)) as states:
        module(input_ids=ids)
    assert hooks(module) == before
    assert set(states) == {0, 2, 4}
    for layer in (0, 2):
        torch.testing.assert_close(states[layer], plain[layer], rtol=0, atol=0)
    torch.testing.assert_close(module.get_submodule(norm)(states[4]), plain[4], rtol=0, atol=0)
    assert not torch.allclose(states[4], plain[4], atol=0.01)
