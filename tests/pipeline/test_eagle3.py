"""Published EAGLE-3 heads: random checkpoints in both layouts against the plain architecture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MixtralConfig,
)

from analysis.trees.topology import ROOT, Topology
from pipeline.decoding.choices import Greedy
from pipeline.decoding.drafters import HeadDrafter
from pipeline.errors import PipelineError
from pipeline.hub import Identities
from pipeline.models.heads.feature_head import GivenText, Norms
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.heads.load import load_head, read_head
from pipeline.models.language_model import LanguageModel
from pipeline.models.load import wrap
from tests.pipeline import tiny
from tests.pipeline.decoding.pair import PROMPTS, V
from tests.pipeline.eagle3 import (
    IDS,
    INNER,
    D,
    Numbers,
    embedding,
    fused,
    layer,
    reference,
    reference_logits,
    weights,
    write,
)
from tests.pipeline.heads import states_of, used

DEPTH = 7  # of the target: hidden states after 2, 3 and 4 layers are read
TREE = Topology((-1, -1, 0, 0, 1, 2, 4))  # in level order
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-5}


@pytest.fixture(scope="module")
def target() -> LanguageModel:
    return tiny.random_model(V, layers=DEPTH)


def begun(
    model: HiddenDrafter, text: list[int], tree: Topology | None = None
) -> tuple[HeadDrafter, Tensor]:
    """A drafter that has read a text but its last token; the target's hidden states."""
    hidden = states_of(model.target, text, model.layers)[None]
    drafter = HeadDrafter(model, Greedy(), tree)
    drafter.begin(torch.tensor([text[:-1]]), 40, hidden[:, :-1])
    return drafter, hidden


@pytest.mark.parametrize(
    ("layout", "more"),
    [
        ("bin", {}),
        ("safetensors", {}),
        ("speculators", {}),
        ("speculators", {"norm_before_residual": True}),
        ("speculators", {"eagle_aux_hidden_state_layer_ids": [1, 2, 6]}),
        ("safetensors", {"eagle_aux_hidden_state_layer_ids": [0, 7], "num_hidden_layers": 7}),
        ("safetensors", {"fc_norm": True, "eagle_aux_hidden_state_layer_ids": [0, 3, 5, 7]}),
        ("safetensors", {"eagle_config": {"norm_before_fc": True}, "fc_norm": True}),
        ("speculators", {"norm_before_fc": True, "norm_output": True}),
        ("speculators", {"fc_norm": True, "norm_output": True, "norm_before_residual": True}),
    ],
)
@torch.inference_mode()
def test_hidden_states_logits_and_drafts_are_those_of_the_architecture(
    target: LanguageModel, tmp_path: Path, layout: str, more: dict[str, Any]
) -> None:
    """States at layer 7 of 7 are read before the final norm, as vLLM hands them over."""
    given = weights(config=more)
    model = load_head(write(tmp_path, layout, given, **more), target)
    layers = tuple(more.get("eagle_aux_hidden_state_layer_ids", (2, 3, 4)))
    assert model.layers == layers
    text = [*PROMPTS[1], 4]
    chosen = begun(model, text)[0].propose(text, 4, 1).tokens.tolist()
    for count in range(4):  # the whole draft, token by token
        output = reference(target, given, text, chosen[:count], layers, more)
        logits = reference_logits(given, output[None], more)
        assert chosen[count] == int(logits.argmax())
        assert chosen[count] in IDS
    # given texts: depth 1 reads the target's hidden states, depth 3 its own outputs
    whole = text + chosen
    states = begun(model, whole)[1]
    at = torch.arange(len(whole))[None]
    outputs = GivenText(model.head, 3).read(model.embed(torch.tensor([whole])), states, at, at >= 0)
    every = layer(given, embedding(target, given, whole[1:]),
                  fused(target, given, whole[:-1], layers), more)  # fmt: skip
    torch.testing.assert_close(outputs[0][0, 1:], every, **CLOSE)
    torch.testing.assert_close(
        model.logits(outputs[0][0, 1:]), reference_logits(given, every, more), **CLOSE
    )
    deep = reference(target, given, text, chosen[:2], layers, more)
    torch.testing.assert_close(outputs[2][0, len(text) + 1], deep, **CLOSE)


def test_the_residual_of_speculators_is_that_of_vllm(tmp_path: Path) -> None:
    """Where config.json does not say: `update_eagle3` of vLLM's speculators/algos.py."""
    for layout, normed in (("speculators", True), ("safetensors", False)):
        head = write(tmp_path, layout, weights())
        config = json.loads((tmp_path / "config.json").read_text())
        config.pop("norm_before_residual", None)
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert read_head(head).norms == Norms(norm_before_residual=normed)


@pytest.mark.parametrize(
    ("layout", "ids", "told", "layers"),
    [
        ("safetensors", [2, 3, 4], None, (2, 3, 4)),  # the default of vLLM for 7 layers
        ("safetensors", [1, 2, 3], None, (2, 3, 4)),  # the same in SpecForge's own counting
        ("safetensors", [1, 3, 6], None, (2, 4, 7)),
        ("speculators", [1, 2, 6], None, (1, 2, 6)),
        ("safetensors", [0, 7], None, (0, 7)),  # the last output is that of layer 6
        ("safetensors", [3, 4, 5], None, None),
        ("safetensors", [3, 4, 5], "output", (4, 5, 6)),
        ("safetensors", [1, 2, 3], "after", (1, 2, 3)),
    ],
)
def test_layer_ids_are_counted_as_they_were_in_training(
    target: LanguageModel,
    tmp_path: Path,
    layout: str,
    ids: list[int],
    told: Any,
    layers: tuple[int, ...] | None,
) -> None:
    more = {"eagle_aux_hidden_state_layer_ids": ids}
    write(tmp_path, layout, weights(config=more), **more)
    if layers is None:
        with pytest.raises(PipelineError, match=r"drafter: .* is \[3, 4, 5\].*\.layer_ids=after"):
            load_head(used(tmp_path, told), target)
    else:
        assert load_head(used(tmp_path, told), target).layers == layers


@torch.inference_mode()
def test_trees_are_drafted_branch_by_branch(target: LanguageModel, tmp_path: Path) -> None:
    given = weights()
    model = load_head(write(tmp_path, "bin", given), target)
    text = [*PROMPTS[1], 4]
    tokens = begun(model, text, TREE)[0].propose(text, TREE.depth, 1).tokens.tolist()
    for node in range(ROOT, len(TREE)):
        children = TREE.children[node]
        if children:
            branch: list[int] = []
            up = node
            while up != ROOT:
                branch.insert(0, tokens[up])
                up = TREE.parents[up]
            row = reference_logits(given, reference(target, given, text, branch)[None])[0]
            assert [tokens[child] for child in children] == row.topk(len(children)).indices.tolist()


@torch.inference_mode()
def test_a_head_of_another_width_brings_its_embedding(
    target: LanguageModel, tmp_path: Path
) -> None:
    given = weights(width=20, wide=True)
    used = write(tmp_path, "safetensors", given, 20, target_hidden_size=D)
    model = load_head(used, target)
    text = [5, 9, 5, 9, 5, 4]
    drafts = begun(model, text)[0].propose(text, 3, 1).tokens.tolist()
    for at, draft in enumerate(drafts):
        output = reference(target, given, text, drafts[:at])
        assert draft == int(reference_logits(given, output[None])[0].argmax())
    outputs = torch.randn(3, 20)
    assert model.completed(outputs, model.logits(outputs)) is None
    assert model.memory_bytes() == sum(
        value.nbytes for name, value in given.items() if name not in ("d2t", "t2d")
    )
    del given["embed_tokens.weight"]
    write(tmp_path, "safetensors", given, 20, target_hidden_size=D)
    with pytest.raises(PipelineError, match=r"1 weights are missing.*\(embed_tokens\.weight\)"):
        load_head(used, target)


def test_a_whole_vocabulary_needs_no_list_of_tokens(target: LanguageModel, tmp_path: Path) -> None:
    given = weights(ids=None)
    model = load_head(write(tmp_path, "speculators", given), target)
    assert model.drafted is None
    outputs = torch.randn(3, D, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model.logits(outputs), reference_logits(given, outputs), **CLOSE)


def changed(given: Numbers, **changes: Any) -> Numbers:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in (given | named).items() if value is not None}


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        ({"fc__weight": torch.zeros(D, 2 * D)}, {},
         r"1 weights are missing, unknown or not of the shape in config\.json \(fc\.weight\)"),
        ({"norm__weight": None, "midlayer__mlp__up_proj__weight": None}, {},
         r"2 weights are missing.*\(midlayer\.mlp\.up_proj\.weight, norm\.weight\): take a draf"),
        ({"lm_head__weight": None}, {"draft_vocab_size": 8}, r"\(lm_head\.weight\)"),
        ({"d2t": None}, {}, r"1 weights are missing.*\(d2t\)"),
        ({}, {"vocab_size": 128256}, r"for a vocabulary of 128256 tokens, tiny has 24: take a dr"),
        ({"t2d": torch.zeros(24, dtype=torch.bool)}, {}, r"t2d marks other tokens than d2t names"),
        ({"d2t": torch.tensor([0, 2, 3, 4, 4, 4, 6, 17])}, {}, r"increasing ids below 24, .*damag"),
        ({"d2t": torch.tensor([0.0, 2, 3, 4, 4, 4, 6, 13])}, {}, r"increasing ids below 24"),
        ({}, {"hidden_size": 48}, r"reads hidden states of 48 numbers, tiny has 32"),
        ({}, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 8]}},
         r"after 8 layers, tiny has 7"),
        ({"layers__1__input_layernorm__weight": torch.ones(D)}, {"num_hidden_layers": 2},
         r"1 weights are missing, unknown .*\(layers\.1\.input_layernorm\.weight\)"),
        ({"midlayer__self_attn__q_proj__bias": torch.ones(32)}, {}, r"q_proj\.bias"),
        ({}, {"model_type": "qwen3"}, r"its layer is that of a qwen3: Llama's is read"),
        ({"norm__weight": torch.full((D,), torch.nan)}, {}, r"h gives NaN or infinite"),
        ({"midlayer__mlp__down_proj__weight": torch.full((D, INNER), 3e38)}, {},
         r"^drafter: h gives NaN or infinite logits behind tiny: "),
        ({"lm_head__weight": torch.full((8, D), torch.inf)}, {}, r"h gives NaN or infinite"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(
    target: LanguageModel, tmp_path: Path, change: Numbers, more: dict[str, Any], message: str
) -> None:
    given = weights()
    used = write(tmp_path, "bin", given, **more)
    torch.save(changed(given, **change), tmp_path / "pytorch_model.bin")
    with pytest.raises(PipelineError, match=message) as error:
        load_head(used, target)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("drafter")


def test_other_refusals(target: LanguageModel, tmp_path: Path) -> None:
    used = write(tmp_path, "bin", weights())
    (tmp_path / "pytorch_model.bin").write_bytes(b"damaged")
    with pytest.raises(PipelineError, match="its weights can't be read"):
        load_head(used, target)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(PipelineError, match=r"can't be read: FileNotFoundError"):
        load_head(used, target)
    shallow = tiny.random_model(V, label="shallow")
    write(tmp_path, "bin", weights())
    with pytest.raises(PipelineError, match=r"after 2, L/2 and L - 3 of L layers, shallow has 2"):
        load_head(used, shallow)


def test_pickled_weights_are_part_of_the_identity(tmp_path: Path) -> None:
    """A head without safetensors is another one when its weights change."""
    given = weights()
    write(tmp_path / "head", "bin", given)
    identity: Callable[[], Any] = lambda: Identities(tmp_path / "memo").model(  # noqa: E731
        str(tmp_path / "head"), None, "drafter.path"
    )
    before = identity()
    given["norm.weight"] = given["norm.weight"] + 1
    write(tmp_path / "head", "bin", given)
    assert identity() != before


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
    model = wrap(module, "any", torch.device("cpu"))
    states = model.read(ids, model.new_cache(4), layers=(4, 0, 2))[1]
    assert states is not None
    last, first, second = states.unbind(2)
    torch.testing.assert_close(first, plain[0], rtol=0, atol=0)
    torch.testing.assert_close(second, plain[2], rtol=0, atol=0)
    torch.testing.assert_close(module.get_submodule(norm)(last), plain[4], rtol=0, atol=0)
    assert not torch.allclose(last, plain[4], atol=0.01)
