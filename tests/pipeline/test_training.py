"""Training of a head: its text, every conversation once an epoch, resumable, measured."""

from __future__ import annotations

import json
import re
from collections import Counter
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.errors import PipelineError
from pipeline.models.heads.feature_head import FeatureHead, GivenText, Norms
from pipeline.models.heads.head_files import save_head
from pipeline.models.heads.load import load_head
from pipeline.models.language_model import LanguageModel
from pipeline.models.load import load_tokenizer
from pipeline.training import drafter, features, head, loop, text
from pipeline.training.features import Example
from tests.pipeline import heads
from tests.pipeline.decoding.pair import plain_greedy
from tests.pipeline.stopping import stopped_after

LAYERS = (1, 2)
LENGTHS = (30, 9, 17, 22, 12, 40, 8, 26, 15, 11, 33, 19)
RECIPE = {
    "layers": LAYERS, "intermediate_size": 40, "vocabulary": 60, "tokens": 90, "depth": 3,
    "epochs": 2, "deep_epochs": 2, "learning_rate": 1e-3, "warmup_steps": 4, "feature_weight": 0.5,
    "others": 20, "checkpoint_seconds": 1000.0, "seed": 3, "bfloat16": False,
}  # fmt: skip


def conversations(count: int = len(LENGTHS)) -> list[Example]:
    rng = np.random.default_rng(1)
    return [
        Example(torch.from_numpy(rng.integers(4, 120, LENGTHS[i % 12])), LENGTHS[i % 12] // 2)
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def examples(target: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    path = tmp_path_factory.mktemp("f") / "features" / "shard-00000.safetensors"
    features.extract(target.module, LAYERS, conversations(), path, False)
    return features.with_hidden(conversations(), LAYERS, path)


@torch.inference_mode()
def test_features_are_the_hidden_states_of_each_conversation(
    target: LanguageModel, examples: list[Example], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(features, "BATCH_TOKENS", 50)
    path = tmp_path / "shard-00001.safetensors"
    assert features.extract(target.module, LAYERS, conversations(), path, False) == sum(LENGTHS)
    again = features.with_hidden(conversations(), LAYERS, path)
    for one, other in zip(examples, again, strict=True):
        out = target.module(input_ids=one.tokens[None], output_hidden_states=True)
        plain = torch.stack([out.hidden_states[layer][0] for layer in LAYERS], 1)
        for found in (one.hidden, other.hidden):
            # half of a unit in the last place of float16, and float32's of another batch
            torch.testing.assert_close(found.float(), plain, rtol=6e-4, atol=1e-4)
        # the last is after the final norm: the projection reads it
        logits = target.module.get_output_embeddings()(plain[:, -1])
        torch.testing.assert_close(logits, out.logits[0], rtol=1e-4, atol=1e-4)
    features.extract(target.module, LAYERS, conversations(), path, True)
    for one, other in zip(again, features.with_hidden(conversations(), LAYERS, path), strict=True):
        assert not one.hidden.equal(other.hidden)  # rounded to 2^-8, in every layer
        off = (one.hidden - other.hidden).float().norm() / one.hidden.float().norm()
        assert off < 0.1


def test_features_of_other_layers_or_text_are_refused(
    target: LanguageModel, tmp_path: Path
) -> None:
    path = tmp_path / "shard-00000.safetensors"
    features.extract(target.module, (0, 2), conversations(), path, False)
    with pytest.raises(PipelineError, match=r"to layers \[0, 2\] or to other text: remove it"):
        features.with_hidden(conversations(), LAYERS, path)
    with pytest.raises(PipelineError, match="or to other text"):
        features.with_hidden(conversations(5), (0, 2), path)
    huge = SimpleNamespace(hidden_states=[torch.full((4, 40, 3), 1e5)])
    with pytest.raises(PipelineError, match="beyond float16"):
        features.extract(
            SimpleNamespace(model=lambda **_: huge), [0], conversations(4), tmp_path / "x", False
        )
    assert not (tmp_path / "x").exists()


def test_every_conversation_once_an_epoch_deep_ones_last() -> None:
    recipe = SimpleNamespace(**RECIPE)
    plan = loop.plan_of(LENGTHS, recipe)
    depths = [depth for _, depth in plan]
    assert depths == sorted(depths)
    for depth in (1, 3):
        seen = Counter(i for members, d in plan if d == depth for i in members)
        assert seen == dict.fromkeys(range(len(LENGTHS)), 2)
    for members, _ in plan:
        # lengths are sorted with up to 20 tokens of noise, which batches may exceed their size by
        assert len(members) == 1 or len(members) * (max(LENGTHS[i] for i in members) - 20) <= 90
    assert plan == loop.plan_of(LENGTHS, recipe)
    rates = [loop.rate(step, 50, recipe) for step in range(50)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(a > b for a, b in pairwise(rates[4:]))
    assert 0.01 < rates[-1] < 0.02


@pytest.mark.parametrize("shape", [(24, 64), (64, 24), (32, 32)])
def test_muon_steps_as_torch_does(shape: tuple[int, int]) -> None:
    """torch's products are in bfloat16, so two steps agree to 3 % of their length."""
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), torch.randn(2, *shape)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimizers = (
        loop.Muon([ours], {"lr": 0.02}),
        torch.optim.Muon(
            [theirs], 0.02, weight_decay=0.01, momentum=0.95, adjust_lr_fn="match_rms_adamw"
        ),
    )
    for gradient in gradients:
        for weight, optimizer in zip((ours, theirs), optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    moved = (theirs - start).norm()
    assert moved > 0.1
    assert (ours - theirs).norm() < 0.03 * moved


def test_drafted_tokens_are_the_most_frequent_and_the_end() -> None:
    some = [Example(torch.tensor(tokens), 0) for tokens in ([5, 5, 5, 9, 9], [9, 9, 7, 7, 11])]
    assert head.drafted_tokens(some, 3, [2]).tolist() == [2, 5, 9]
    assert head.drafted_tokens(some, 3, [30]).tolist() == [5, 9, 30]  # beyond all that occur
    assert head.drafted_tokens(some, 4, []).tolist() == [5, 7, 9, 11]


def trained(
    target: LanguageModel, examples: list[Example], directory: Path, **changes: Any
) -> FeatureHead:
    torch.manual_seed(0)
    recipe = SimpleNamespace(**{"held_out": None} | RECIPE | changes)
    made = FeatureHead(heads.shape_of(target), len(LAYERS), heads.NORMS)
    head.initial(made, target)
    drafted = head.drafted_tokens(examples, recipe.vocabulary, target.eos)
    held_out = recipe.held_out or head.HeldOut(examples[:4], target, drafted)
    del recipe.held_out
    given = {"examples": examples, "held_out": held_out, "recipe": recipe, "directory": directory}
    return loop.train_head(made, target, drafted, **given)


def test_a_stopped_run_ends_with_the_same_weights(
    target: LanguageModel, examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(target, examples, tmp_path / "whole")
    with stopped_after(7, loop, "_save", monkeypatch):
        trained(target, examples, tmp_path / "parts", checkpoint_seconds=-1.0)
    (tmp_path / "parts" / "checkpoint.tmp").write_bytes(b"cut off")
    parts = trained(target, examples, tmp_path / "parts")
    begun = trained(target, examples, tmp_path / "none", epochs=0, deep_epochs=0)
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], weight, rtol=0, atol=0)
        assert weight.isfinite().all()
        assert not torch.equal(begun.state_dict()[name], weight), name
    with pytest.raises(PipelineError, match="belongs to a run with other conversations, epochs"):
        trained(target, examples[:5], tmp_path / "parts", epochs=3)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_the_loss_falls(
    target: LanguageModel,
    examples: list[Example],
    tmp_path: Path,
    bfloat16: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    losses = []
    for epochs in (1, 20):
        settings = {"epochs": epochs, "deep_epochs": 0, "bfloat16": bfloat16}
        settings["learning_rate"] = 5e-3
        made = trained(target, examples, tmp_path / str(epochs), **settings)
        assert {weight.dtype for weight in made.parameters()} == {torch.float32}
        said = re.findall(r"loss ([\d.]+), share 1 of first 40", capsys.readouterr().out)
        losses.append(float(said[-1]))
    assert losses[1] < 0.9 * losses[0]


@pytest.mark.parametrize(("scores", "best"), [([1, 3, 2, 0], 1), ([4, 3, 5, 5], 2), ([2], 0)])
def test_the_best_weights_are_kept(
    scores: list[float],
    best: int,
    target: LanguageModel,
    examples: list[Example],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of equal reports the first; again after a stop, from the checkpoint."""
    monkeypatch.setattr(loop, "plan_of", lambda *_: [([0], 1)] * len(scores))
    seen: list[torch.Tensor] = []

    def measured(made: FeatureHead, _: int) -> dict[str, float]:
        seen.append(made.fc.weight.detach().clone())
        return {head.BEST: scores[len(seen) - 1]}

    for _ in range(2):
        made = trained(target, examples, tmp_path, held_out=SimpleNamespace(measured=measured))
        assert len(seen) == len(scores)
        assert [made.fc.weight.equal(one) for one in seen].index(True) == best


def test_tokens_a_call_are_those_of_decoding(
    target: LanguageModel, examples: list[Example]
) -> None:
    """Each answer is decoded call by call, its drafts by separate passes over what is known.

    Training has the last state after the final norm, decoding before it.
    """
    target = deepcopy(target)
    target.module.model.norm.weight.uniform_(0.3, 3, generator=torch.Generator().manual_seed(2))
    drafted = head.drafted_tokens(examples, 60, target.eos)
    model = heads.random_head(target, drafted)
    # answers that the target gives, so that what is accepted is what is read
    texts = [
        [*one.tokens[: one.answer_at].tolist(),
         *plain_greedy(target, one.tokens[: one.answer_at].tolist(), 12)]
        for one in examples[:3]
    ]  # fmt: skip
    given, calls, tokens = [], 0, 0
    for tokens_, one in zip(texts, examples, strict=False):
        with torch.inference_mode():
            out = target.module(input_ids=torch.tensor([tokens_]), output_hidden_states=True)
        stored = torch.stack([out.hidden_states[layer][0] for layer in LAYERS], 1)
        given.append(Example(torch.tensor(tokens_), one.answer_at, stored))
        states = heads.states_of(target, tokens_, LAYERS)  # as decoding reads them
        embedded, at = model.embed(torch.tensor([tokens_])), torch.arange(len(tokens_))[None]
        torch.testing.assert_close(
            head._outputs(model.head, embedded, stored[None], head.final_norm(target), 1)[0],
            GivenText(model.head, 1).read(embedded, states[None], at, at >= 0)[0],
            atol=1e-4, rtol=1e-4,
        )  # fmt: skip
        at = one.answer_at + 1
        while at < len(tokens_):
            fused = model.head.fuse(states[None, : at - 1])
            accepted, sofar = 0, tokens_[:at]
            while accepted < 2 and at + accepted < len(tokens_):
                cache = model.new_cache(len(sofar))
                with torch.inference_mode():
                    logits, outputs = model.read(torch.tensor([sofar[1:]]), cache, features=fused)
                draft = int(logits[0, -1].argmax())
                if draft != tokens_[at + accepted]:
                    break
                assert outputs is not None
                fused, sofar = torch.cat([fused, outputs[:, -1:]], 1), [*sofar, draft]
                accepted += 1
            tokens += min(accepted + 1, len(tokens_) - at)
            at += accepted + 1
            calls += 1
    held_out = head.HeldOut(given, target, drafted)
    held_out._projection = held_out._projection.bfloat16().float()  # as decoding keeps its rows
    found = held_out.measured(model.head, 2)
    assert found["tokens a call, first 40"] == pytest.approx(tokens / calls)
    assert found["tokens a call, first 40"] == found["tokens a call, first 128"]


@pytest.fixture
def assets(
    model: Path, target: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Training text of 24 conversations, two of which ask what the study asks."""
    tokenizer = load_tokenizer(str(model), None, "k")
    place = tmp_path / "smollm2"
    place.mkdir()
    question = "what is a token and then another one of these"
    (place / "prompts.jsonl").write_text(json.dumps({"prompt": question}) + "\n")
    rows = [(one.tokens.tolist(), one.answer_at) for one in conversations(22)]
    near = tokenizer.encode(f"tell me: {question.upper()}, please")
    rows += [([*near, 5, 6, 7, 8], len(near))] * 2
    columns = [
        [tokens for tokens, _ in rows], [at for _, at in rows], [0.0] * len(rows), [""] * len(rows)
    ]  # fmt: skip
    (tmp_path / "text").mkdir()
    shard = tmp_path / "text" / "shard-00000.parquet"
    pq.write_table(pa.table(columns, schema=text.SCHEMA), shard)
    for module in (drafter, text):
        monkeypatch.setattr(module, "ASSETS", tmp_path)
    monkeypatch.setattr(drafter, "load_target", lambda *_: (target, tokenizer))
    return tmp_path


SMALL = [
    "train.layers=[1,2]", "train.intermediate_size=40", "train.vocabulary=60", "train.tokens=90",
    "train.others=20", "train.held_out=0.2", "train.epochs=1", "generate.ngram_of_study=8",
]  # fmt: skip


def test_a_head_is_trained_written_measured_and_drafts(
    assets: Path, target: LanguageModel, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["drafter", f"directory={assets / 'text'}", *SMALL]
    drafter.main(given)
    said = capsys.readouterr().out
    assert "drafter: 18 conversations, " in said  # of 22
    assert "held out: 4 conversations, " in said
    measured = [line for line in said.splitlines() if line.startswith(("share", "tokens a call"))]
    assert len(measured) == 2 * (4 + 1) + 1
    assert re.search(r"^loss at depths 1 to 3: [1-9][\d.]+$", said, re.MULTILINE)
    written = assets / "smollm2" / "drafter"
    read = load_head(heads.used(written), target)
    assert read.drafted is not None
    assert len(read.drafted) == 60
    drafter.main(given)  # nothing is left to do
    assert "step" not in capsys.readouterr().out
    before = (written / "model.safetensors").read_bytes()
    (assets / "text" / "drafter" / "checkpoint.pt").unlink()
    again = ["train.epochs=0", f"train.start={written}"]
    drafter.main([*given, *again, "train.deep_epochs=0"])
    assert "step" not in capsys.readouterr().out
    assert (written / "model.safetensors").read_bytes() == before
    drafter.main([*given, *again, "train.vocabulary=50"])
    assert (written / "model.safetensors").read_bytes() != before
    again_read = load_head(heads.used(written), target)
    assert again_read.drafted is not None
    assert again_read.drafted.equal(read.drafted)  # those of the head that it began from


def test_training_begins_from_a_head_of_the_same_form(assets: Path, target: LanguageModel) -> None:
    folder = assets / "start"
    given = ["drafter", f"directory={assets / 'text'}", *SMALL, f"train.start={folder}"]
    with pytest.raises(SystemExit, match=r"^error: train\.start=.*no head is there: give a head's"):
        drafter.main(given)
    for layers, norms in (((1, 2), Norms()), ((0, 2), heads.NORMS)):
        made = FeatureHead(heads.shape_of(target), 2, norms)
        save_head(made, heads.shape_of(target), layers, torch.arange(60), folder)
        with pytest.raises(SystemExit, match=r"is trained here, with fc_norm and layers \[1, 2\]"):
            drafter.main(given)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give the name of the head first"),
        (["train.share=0.1"], "give the name of the head first"),
        (["drafter", "train.epoch=3"], "epoch"),
        (["drafter", *SMALL, "train.vocabulary=300"], "vocabulary=300: give an integer above 0"),
        (["drafter", *SMALL, "train.held_out=0"], "22 conversations are too few to train on"),
        (["drafter", *SMALL, "train.epochs=0", "train.deep_epochs=0"], "name a head by train.sta"),
    ],
)
def test_errors_of_training_are_one_line(assets: Path, arguments: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=f"^error: .*{said}") as caught:
        drafter.main([*arguments, *([f"directory={assets / 'text'}"] if arguments else [])])
    assert "\n" not in str(caught.value)
