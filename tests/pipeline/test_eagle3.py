"""EAGLE-3 heads: random checkpoints against the plain architecture, cached, by depth, refused."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MixtralConfig,
)

from analysis.trees.topology import ROOT, Topology
from pipeline.core.errors import PipelineError
from pipeline.core.paths import ROOT as PROJECT
from pipeline.decoding.proposers import Eagle3Proposer
from pipeline.decoding.sampling import GreedySampler
from pipeline.inputs.identity import Identities
from pipeline.models.eagle3.drafter import teacher_forced_outputs
from pipeline.models.eagle3.loading import LAYERS, load_head
from pipeline.models.loading import load_model, wrap
from pipeline.models.products import MAX_ROWS
from tests.pipeline import heads, tiny
from tests.pipeline.decoding.pair import PROMPTS, V, plain_greedy
from tests.pipeline.heads import IDS, random_weights, reference, reference_logits, states_of, write

ASSETS = PROJECT / "assets"
DEPTH = 7  # of the target: hidden states after 2, 3 and 4 layers are read
TREE = Topology((-1, -1, 0, 0, 1, 2, 4))  # in level order
CLOSE = {"atol": 2e-5, "rtol": 1e-5}

pytestmark = pytest.mark.usefixtures("buffers")


@pytest.fixture(scope="module")
def target():
    return tiny.random_model(V, layers=DEPTH)


def begun(model, text, tree=None):
    """A drafter that has read a text but its last token."""
    drafter = Eagle3Proposer(model, GreedySampler(), tree)
    hidden = states_of(model.target, text[:-1], model.layers)[None]
    drafter.begin(torch.tensor([text[:-1]]), 60, hidden)
    return drafter


@pytest.mark.parametrize(
    ("made", "more"),
    [
        ({}, {"pickled": True}),
        ({"layers": 2}, {LAYERS: [0, 7], "num_hidden_layers": 7}),  # as its target's file has it
        ({"layers": 4, "fc_norm": True}, {LAYERS: [0, 3, 5, 7], "fc_norm": True}),
        ({"embedding": True}, {}),
        ({"ids": None}, {}),
    ],
)
@torch.inference_mode()
def test_hidden_states_logits_and_drafts_are_those_of_the_architecture(
    target, tmp_path, made, more
):
    """States at layer 7 of 7 are read before the final norm, as vLLM hands them over."""
    given = random_weights(target, **made)
    model = load_head(write(target, given, tmp_path, **more), target)
    layers = tuple(more.get(LAYERS, (2, 3, 4)))
    assert model.layers == layers
    assert (model.drafted is None) == ("ids" in made)
    text = [*PROMPTS[1], 4]
    chosen = begun(model, text).propose(text, 4, 1).tokens.tolist()
    for count in range(4):  # the whole draft, token by token
        output = reference(target, given, text, chosen[:count], layers)
        assert chosen[count] == int(reference_logits(given, output[None]).argmax())
    # given texts: depth 1 reads the target's hidden states, depth 3 its own outputs
    whole = text + chosen
    states = states_of(target, whole, layers)[None]
    outputs = teacher_forced_outputs(model.head, model.embed(torch.tensor([whole])), states, 3)
    assert torch.stack(outputs).isfinite().all()
    every = heads.layer(given, heads.embedding(target, given, whole[1:]),
                  heads.fused(target, given, whole[:-1], layers))  # fmt: skip
    torch.testing.assert_close(outputs[0][0, 1:], every, **CLOSE)
    found = model.logits(outputs[0][0, 1:])
    torch.testing.assert_close(found, reference_logits(given, every), **CLOSE)
    for at in range(3, len(whole)):
        deep = reference(target, given, whole[: at - 1], whole[at - 1 : at + 1], layers)
        torch.testing.assert_close(outputs[2][0, at], deep, atol=1e-4, rtol=1e-5)
    read = sum(weight.nbytes for name, weight in given.items() if name not in ("d2t", "t2d"))
    assert model.memory_bytes() == read


@pytest.mark.parametrize(
    ("ids", "told", "layers"),
    [
        ([2, 3, 4], None, (2, 3, 4)),  # the default of vLLM for 7 layers
        ([1, 2, 3], None, (2, 3, 4)),  # the same in SpecForge's own counting
        ([1, 3, 6], None, (2, 4, 7)),
        ([0, 7], None, (0, 7)),  # the last output is that of layer 6
        ([3, 4, 5], None, None),
        ([3, 4, 5], "output", (4, 5, 6)),
        ([1, 2, 3], "after", (1, 2, 3)),
    ],
)
def test_layer_ids_are_counted_as_they_were_in_training(target, tmp_path, ids, told, layers):
    write(target, random_weights(target, len(ids)), tmp_path, eagle_config={LAYERS: ids})
    if layers is None:
        with pytest.raises(PipelineError, match=r"drafter: .* is \[3, 4, 5\].*\.layer_ids=after"):
            load_head(heads.used(tmp_path, told), target)
    else:
        assert load_head(heads.used(tmp_path, told), target).layers == layers


@torch.inference_mode()
def test_trees_are_drafted_branch_by_branch(target, tmp_path):
    given = random_weights(target)
    model = load_head(write(target, given, tmp_path), target)
    text = [*PROMPTS[1], 4]
    tokens = begun(model, text, TREE).propose(text, TREE.depth, 1).tokens.tolist()
    branches = {ROOT: []}
    for node, parent in enumerate(TREE.parents):
        branches[node] = [*branches[parent], tokens[node]]
    for node, branch in branches.items():
        if children := TREE.children[node]:
            row = reference_logits(given, reference(target, given, text, branch)[None])[0]
            assert [tokens[child] for child in children] == row.topk(len(children)).indices.tolist()


@torch.inference_mode()
def test_what_is_drafted_after_roll_backs_is_drafted_without_a_cache(target, tmp_path):
    given = random_weights(target)
    model = load_head(write(target, given, tmp_path), target)
    tokens, n = PROMPTS[1] + plain_greedy(target, PROMPTS[1]), len(PROMPTS[1])
    drafter, known = begun(model, tokens[: n + 1]), n + 1
    for count, accepted in ((4, 0), (4, 2), (4, 1), (4, 0), (4, 3), (0, 0), (2, 0)):
        # a call that drafts nothing leaves its hidden states for the next
        drafts = drafter.propose(tokens[:known], count, known - n).tokens.tolist()
        for at in range(count):
            output = reference(target, given, tokens[:known], drafts[:at])
            assert drafts[at] == int(reference_logits(given, output[None]).argmax())
        new = states_of(target, tokens[: known + accepted], model.layers)
        drafter.accept(known, range(accepted), new[None, known - 1 :])
        known += accepted + 1


@torch.inference_mode()
def test_a_bfloat16_target_with_a_float32_projection():
    target = wrap(tiny.random_model(V).module.bfloat16(), "t", torch.device("cpu"))
    for drafted in (None, IDS):
        model = heads.random_head(target, drafted)
        model.head.bfloat16()
        logits = model.logits(torch.randn(3, 32).bfloat16())
        assert logits.dtype == torch.float32
        assert logits.isfinite().sum() == 3 * (V if drafted is None else len(drafted))


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        ({"d2t": None}, {}, r"1 weights are missing.*\(d2t\)"),
        ({"midlayer.self_attn.q_proj.bias": torch.ones(32)}, {}, r"unknown .*\(.*q_proj\.bias\)"),
        ({}, {"vocab_size": 128256}, "vocab_size is 128256, tiny has 24"),
        ({}, {LAYERS: [2, 4, 8]}, r"after \(2, 4, 8\) layers, tiny has 7"),
        ({"t2d": torch.zeros(24, dtype=torch.bool)}, {}, "that t2d marks.*damaged"),
        ({"d2t": torch.tensor([0, 2, 3, 4, 4, 4, 6, 17])}, {}, "increasing ids below 24 .*damag"),
        ({}, {"model_type": "qwen3"}, "its layer is that of a qwen3: Llama's is read"),
        ({}, {"norm_output": True}, "norm_output is not read"),
        ({"d2t": torch.zeros(8, dtype=torch.long), "t2d": None}, {}, "d2t is all zeros.*first 8"),
        (
            {"d2t": torch.zeros(8, dtype=torch.long), "t2d": torch.zeros(24, dtype=torch.bool)},
            {},
            "d2t is all zeros",
        ),  # as speculators makes them before training
        ({}, {"architectures": ["DFlashDraftModel"]}, "of the kind DFlash"),
        ({}, {"model_type": "deepseek_mtp"}, "of the kind MTP"),
        (
            {"layers.1.mlp.up_proj.weight": torch.ones(40, 32)},
            {},
            r"several layers \(layers\.1\.mlp",
        ),
        (
            {},
            {"transformer_layer_config": {"hidden_size": 32}},
            "norm_before_residual is not given",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(target, tmp_path, change, more, message):
    weights = random_weights(target) | change
    weights = {name: weight for name, weight in weights.items() if weight is not None}
    with pytest.raises(PipelineError, match=f"^drafter.*{message}") as error:
        load_head(write(target, weights, tmp_path, **more), target)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("shape", "more", "message"),
    [
        ({}, {"speculators_model_type": "dflash"}, "of the kind DFlash"),
        ({}, {"speculators_model_type": "mtp"}, "of the kind MTP"),
        ({}, {"speculators_model_type": "hydra"}, "speculators_model_type is hydra"),
        ({}, {"norm_before_residual": None}, "norm_before_residual is not given"),
        ({}, {"norm_before_fc": True}, "norm_before_fc is not read"),
        ({"model_type": "qwen3"}, {}, "a qwen3: Llama's is read"),
        ({"hidden_size": 64}, {}, "hidden_size is 64, tiny has 32"),
    ],
)
def test_heads_of_speculators_that_are_not_read_are_one_line(
    target, tmp_path, shape, more, message
):
    head = heads.write_speculators(target, random_weights(target), tmp_path, shape, **more)
    with pytest.raises(PipelineError, match=f"^drafter.*{message}") as error:
        load_head(head, target)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("made", "shape", "more"),
    [
        ({}, {}, {}),
        ({"embedding": True, "fc_norm": True, "layers": 2}, {},
         {LAYERS: [3, 5], "fc_norm": True}),  # counted as vLLM does
        ({"ids": None}, {"rope_theta": 1.0, "rope_parameters": {"rope_theta": heads.THETA,
                                                                "rope_type": "default"}}, {}),
    ],
)  # fmt: skip
@torch.inference_mode()
def test_a_head_in_speculators_layout_is_the_one_in_eagles_own(target, tmp_path, made, shape, more):
    given = random_weights(target, **made)
    write(target, given, tmp_path / "own", **more)
    own = load_head(heads.used(tmp_path / "own", "after"), target)
    other = load_head(
        heads.write_speculators(target, given, tmp_path / "spec", shape, **more), target
    )
    assert other.layers == own.layers
    text = [*PROMPTS[1], 4]
    drafts = [begun(model, text).propose(text, 4, 1) for model in (own, other)]
    assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()
    states = states_of(target, text, own.layers)[None]
    embedded = own.embed(torch.tensor([text]))
    for a, b in zip(*(teacher_forced_outputs(model.head, embedded, states, 3)
                      for model in (own, other)), strict=True):  # fmt: skip
        assert torch.equal(a, b)


@torch.inference_mode()
def test_the_residual_is_normed_where_the_head_says_so(target, tmp_path):
    given = random_weights(target)
    head = heads.write_speculators(target, given, tmp_path, norm_before_residual=True)
    model = load_head(head, target)
    text = [*PROMPTS[1], 4]
    chosen = begun(model, text).propose(text, 4, 1).tokens.tolist()
    others = []
    for count in range(4):
        output = reference(target, given, text, chosen[:count], norm_before_residual=True)
        assert chosen[count] == int(reference_logits(given, output[None]).argmax())
        others.append(reference(target, given, text, chosen[:count]) - output)
    assert all(other.abs().max() > 0.1 for other in others)  # the other kind is another head


def test_a_mapping_to_the_first_ids_is_read_where_the_file_marks_them(target, tmp_path):
    """Or where nothing is left out of the vocabulary."""
    first = torch.arange(8)
    reduced = load_head(write(target, random_weights(target, ids=first), tmp_path), target)
    assert reduced.drafted.tolist() == first.tolist()
    whole = random_weights(target, ids=torch.arange(target.vocab_size))
    assert load_head(write(target, whole | {}, tmp_path / "whole"), target).drafted is not None
    del whole["t2d"]
    assert load_head(write(target, whole, tmp_path / "whole"), target).drafted is not None


INDEX = "model.safetensors.index.json"


def test_weights_in_one_file_and_in_parts_are_refused(target, tmp_path):
    """Of a head as of a model; an index of the one file contradicts nothing."""
    drafter = write(target, random_weights(target), tmp_path)
    (tmp_path / INDEX).write_text('{"weight_map": {"fc.weight": "model.safetensors"}}')
    load_head(drafter, target)
    model = tiny.write_model(tmp_path / "model")
    load_model(tiny.used(model, "targets.tiny"))
    for folder in (tmp_path, model):
        (folder / INDEX).write_text('{"weight_map": {"fc.weight": "model-00001-of-2.safetensors"}}')
    with pytest.raises(PipelineError, match=rf"^drafter\.path=.*model\.safetensors and .*{INDEX}"):
        load_head(drafter, target)
    with pytest.raises(PipelineError, match=rf"^targets\.tiny\.path=.*and in the parts of {INDEX}"):
        load_model(tiny.used(model, "targets.tiny"))


def test_pickled_weights_are_part_of_the_identity(target, tmp_path):
    """A head without safetensors is another one when its weights change."""
    given, found = random_weights(target), []
    for _ in range(2):
        write(target, given, tmp_path, pickled=True)
        found.append(Identities(tmp_path / "memo").model(str(tmp_path), None, "drafter.path"))
        given["norm.weight"] = given["norm.weight"] + 1
    assert found[0] != found[1]


SMALL = {
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
def test_states_are_those_between_the_layers(config, norm):
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval()
    module.get_submodule(norm).weight.data.uniform_(0.5, 2)
    ids = torch.arange(MAX_ROWS + 1)[None]  # of which products are torch's own
    plain = module(input_ids=ids, output_hidden_states=True).hidden_states
    model = wrap(module, "any", torch.device("cpu"))
    states = model.forward(ids, model.new_cache(ids.shape[1]), layers=(4, 0, 2))[1]
    last, first, second = states.unbind(2)
    torch.testing.assert_close(first, plain[0], rtol=0, atol=0)
    torch.testing.assert_close(second, plain[2], rtol=0, atol=0)
    torch.testing.assert_close(module.get_submodule(norm)(last), plain[4], rtol=0, atol=0)
    assert not torch.allclose(last, plain[4], atol=0.01)


@pytest.mark.thorough
@torch.inference_mode()
def test_smollm2s_head_in_the_layout_of_speculators_drafts_the_same_tokens(tmp_path):
    """On a target of its shape; the weights are random."""
    folder = ASSETS / "smollm2" / "drafter"
    shape = json.loads((folder / "config.json").read_text())
    torch.manual_seed(0)
    config = LlamaConfig(**shape | {"num_hidden_layers": 30, "max_position_embeddings": 64})
    module = AutoModelForCausalLM.from_config(config).eval()
    target = wrap(module, "SmolLM2", torch.device("cpu"))
    more = {name: shape.pop(name) for name in (LAYERS, "fc_norm", "draft_vocab_size")}
    given = load_file(folder / "model.safetensors")
    other = heads.write_speculators(target, given, tmp_path, shape, **more)
    text = list(range(900, 912))
    models = [load_head(spec, target) for spec in (heads.used(folder), other)]
    drafts = [begun(model, text).propose(text, 8, 1).tokens.tolist() for model in models]
    assert drafts[0] == drafts[1]
    outputs = [
        teacher_forced_outputs(
            model.head,
            model.embed(torch.tensor([text])),
            states_of(target, text, model.layers)[None],
            3,
        )
        for model in models
    ]
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))
