"""Training of a head: what it reads, every conversation once an epoch, resumable."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.drafter_training import __main__ as training
from pipeline.drafter_training import features, generate, train
from pipeline.drafter_training.features import Example, Written
from pipeline.errors import PipelineError
from pipeline.models.heads.feature_head import FeatureHead
from pipeline.models.heads.head_files import load_head
from pipeline.models.language_model import LanguageModel
from pipeline.models.load import load_model, load_tokenizer
from tests.pipeline import heads, tiny

LAYERS = (1, 2)
LENGTHS = (30, 9, 17, 22, 12, 40, 8, 26, 15, 11, 33, 19)
RECIPE = {
    "layers": LAYERS, "intermediate_size": 40, "vocabulary": 60, "tokens": 90, "depth": 3,
    "epochs": 2, "deep_epochs": 2, "learning_rate": 1e-3, "warmup_steps": 4, "feature_weight": 0.5,
    "others": 20, "checkpoint_seconds": 1000.0, "seed": 3, "bfloat16": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def target(folder: Path) -> LanguageModel:
    settings = {"path": str(folder), "revision": None, "label": "t", "device": "cpu", "threads": 1}
    return load_model(tiny.MODEL, settings, "k")


def conversations(count: int = len(LENGTHS)) -> list[Written]:
    rng = np.random.default_rng(1)
    return [
        Written(rng.integers(4, 120, LENGTHS[i % 12]).astype(np.int32), LENGTHS[i % 12] // 2, 0.0)
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def examples(target: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    path = tmp_path_factory.mktemp("f") / "features" / "shard-00000.safetensors"
    features.extract(target.module, LAYERS, conversations(), path)
    return features.examples(conversations(), LAYERS, path)


@torch.inference_mode()
def test_features_are_the_hidden_states_of_each_conversation(
    target: LanguageModel, examples: list[Example], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(features, "AT_ONCE", 50)
    path = tmp_path / "shard-00001.safetensors"
    assert features.extract(target.module, LAYERS, conversations(), path) == sum(LENGTHS)
    for written, one, again in zip(
        conversations(), examples, features.examples(conversations(), LAYERS, path), strict=True
    ):
        ids = torch.from_numpy(written.tokens).long()
        out = target.module(input_ids=ids[None], output_hidden_states=True)
        plain = torch.stack([out.hidden_states[layer][0] for layer in LAYERS], 1)
        assert one.tokens.tolist() == ids.tolist()
        for found in (one.hidden, again.hidden):
            # half of a unit in the last place of float16, and float32's of another batch
            torch.testing.assert_close(found.float(), plain, rtol=6e-4, atol=1e-4)
        # the last is after the final norm: the projection reads it
        logits = target.module.get_output_embeddings()(plain[:, -1])
        torch.testing.assert_close(logits, out.logits[0], rtol=1e-4, atol=1e-4)


def test_features_of_other_layers_or_text_are_refused(
    target: LanguageModel, tmp_path: Path
) -> None:
    path = tmp_path / "shard-00000.safetensors"
    features.extract(target.module, (0, 2), conversations(), path)
    with pytest.raises(PipelineError, match=r"of layers \[0, 2\] or of other text: remove it"):
        features.examples(conversations(), LAYERS, path)
    with pytest.raises(PipelineError, match="or of other text"):
        features.examples(conversations(5), (0, 2), path)
    with torch.no_grad():
        broken = SimpleNamespace(
            model=lambda **_: SimpleNamespace(hidden_states=[torch.full((4, 40, 3), 1e5)])
        )
    with pytest.raises(PipelineError, match="beyond float16"):
        features.extract(broken, [0], conversations(4), tmp_path / "x.safetensors")
    assert not (tmp_path / "x.safetensors").exists()


def test_every_conversation_once_an_epoch_deep_ones_last() -> None:
    recipe = SimpleNamespace(**RECIPE)
    plan = train._plan(LENGTHS, recipe)
    depths = [depth for _, depth in plan]
    assert depths == sorted(depths)
    for depth in (1, 3):
        seen = Counter(i for members, d in plan if d == depth for i in members)
        assert seen == dict.fromkeys(range(len(LENGTHS)), 2)
    for members, _ in plan:
        # lengths are sorted with up to 20 tokens of noise, which batches may exceed their size by
        assert len(members) == 1 or len(members) * (max(LENGTHS[i] for i in members) - 20) <= 90
    assert plan == train._plan(LENGTHS, recipe)
    rates = [train._rate(step, 50, recipe) for step in range(50)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(a > b for a, b in pairwise(rates[4:]))
    assert 0.01 < rates[-1] < 0.02


def test_drafted_tokens_are_the_most_frequent_and_the_end() -> None:
    def one(tokens: Sequence[int]) -> Example:
        return Example(torch.tensor(tokens), 0, torch.empty(0))

    some = [one([5, 5, 5, 9, 9]), one([9, 9, 7, 7, 11])]
    assert train.drafted_tokens(some, 3, [2]).tolist() == [2, 5, 9]
    assert train.drafted_tokens(some, 3, [30]).tolist() == [5, 9, 30]  # beyond all that occur
    assert train.drafted_tokens(some, 4, []).tolist() == [5, 7, 9, 11]


def trained(
    target: LanguageModel, examples: list[Example], directory: Path, **changes: Any
) -> FeatureHead:
    torch.manual_seed(0)
    recipe = SimpleNamespace(**RECIPE | changes)
    head = FeatureHead(heads.shape_of(target), len(LAYERS))
    train.initial(head, target.module.model.norm.weight)
    vocabulary = train.Vocabulary(
        target.module.get_input_embeddings().weight,
        target.module.get_output_embeddings().weight,
        train.drafted_tokens(examples, recipe.vocabulary, target.eos),
    )
    return train.train(head, vocabulary, examples, examples[:4], recipe, directory)


def test_a_stopped_run_ends_with_the_same_weights(
    target: LanguageModel, examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(target, examples, tmp_path / "whole")
    save, saved = train._save, 0

    def stopping(*arguments: Any) -> None:
        nonlocal saved
        save(*arguments)
        saved += 1
        if saved == 7:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train, "_save", stopping)
        with pytest.raises(KeyboardInterrupt):
            trained(target, examples, tmp_path / "parts", checkpoint_seconds=-1.0)
    (tmp_path / "parts" / "checkpoint.tmp").write_bytes(b"cut off")
    parts = trained(target, examples, tmp_path / "parts")
    begun = trained(target, examples, tmp_path / "none", epochs=0, deep_epochs=0)
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], weight, rtol=0, atol=0)
        assert weight.isfinite().all()
        assert not torch.equal(begun.state_dict()[name], weight), name
    log = (tmp_path / "whole" / "log.csv").read_text().splitlines()
    assert log[0] == "step,loss,agreement_depth_1,agreement_depth_2,agreement_depth_3"
    assert np.isfinite([float(x) for x in log[1].split(",")]).all()
    with pytest.raises(PipelineError, match="is of a run with other conversations, epochs"):
        trained(target, examples[:5], tmp_path / "parts", epochs=3)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_the_loss_falls(
    target: LanguageModel, examples: list[Example], tmp_path: Path, bfloat16: bool
) -> None:
    losses = []
    for epochs in (1, 20):
        settings = {"epochs": epochs, "deep_epochs": 0, "bfloat16": bfloat16}
        head = trained(target, examples, tmp_path / str(epochs), **settings)
        assert {weight.dtype for weight in head.parameters()} == {torch.float32}
        last = (tmp_path / str(epochs) / "log.csv").read_text().splitlines()[-1]
        losses.append(float(last.split(",")[1]))
    assert losses[1] < 0.9 * losses[0]


@pytest.fixture
def assets(
    folder: Path, target: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Training text of 24 conversations, two of which ask what the study asks."""
    tokenizer = load_tokenizer(str(folder), None, "k")
    place = tmp_path / "smollm2"
    place.mkdir()
    asked = "what is a token and then another one of these"
    (place / "prompts.jsonl").write_text(json.dumps({"prompt": asked}) + "\n")
    rows = [(one.tokens.tolist(), one.answer_at) for one in conversations(22)]
    near = tokenizer.encode(f"tell me: {asked.upper()}, please")
    rows += [([*near, 5, 6, 7, 8], len(near))] * 2
    columns = [
        [tokens for tokens, _ in rows], [at for _, at in rows], [0.0] * len(rows), [""] * len(rows)
    ]  # fmt: skip
    (tmp_path / "text").mkdir()
    shard = tmp_path / "text" / "shard-00000.parquet"
    pq.write_table(pa.table(columns, schema=generate.SCHEMA), shard)
    monkeypatch.setattr(training, "ASSETS", tmp_path)
    monkeypatch.setattr(training, "load", lambda _: (target, tokenizer))
    return tmp_path


SMALL = [
    "train.layers=[1,2]", "train.intermediate_size=40", "train.vocabulary=60", "train.tokens=90",
    "train.others=20", "train.held_out=0.2", "heads.drafter.epochs=1",
    "generate.ngram_of_study=8",
]  # fmt: skip


def test_a_head_is_trained_written_and_drafts(
    assets: Path, target: LanguageModel, capsys: pytest.CaptureFixture[str]
) -> None:
    training.main(["drafter", f"directory={assets / 'text'}", *SMALL])
    assert "drafter: 18 conversations, " in capsys.readouterr().out  # of 22; 4 are held out
    written = assets / "smollm2" / "drafter"
    card = (written / "README.md").read_text()
    assert "# drafter\n" in card
    assert "18 conversations" in card
    assert card.count(" %") == 4  # agreement by depth
    assert "AdamW; products in float32." in card
    assert "last hidden state; 1 passes at depth 1 of a draft, then 1 passes at depths 1" in card
    config = {"head": {"vocabulary": "reduced", "depths": 2}}
    read = load_head(config, {"path": str(written), "label": "h"}, "drafter", target)
    assert read.drafted is not None
    assert len(read.drafted) == 60
    assert set(target.eos) <= set(read.drafted.tolist())
    training.main(["drafter", f"directory={assets / 'text'}", *SMALL])  # nothing is left to do
    assert "step" not in capsys.readouterr().out
    (assets / "text" / "drafter" / "checkpoint.pt").unlink()
    again = ["heads.drafter.epochs=0", f"train.start={written}"]
    training.main(["drafter", f"directory={assets / 'text'}", *SMALL, *again])
    card = (written / "README.md").read_text()
    assert f"state; from the weights in `{written}`, 1 passes at depths 1 to 3." in card


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "head '': give one of drafter, drafter_small"),
        (["drafted"], "head 'drafted': give one of"),
        (["drafter", "train.epoch=3"], "epoch"),
        (["drafter", *SMALL, "train.vocabulary=300"], "vocabulary=300: give an integer above 0"),
        (["drafter", *SMALL, "train.held_out=0"], "22 conversations are too few to train on"),
    ],
)
def test_errors_are_one_line(assets: Path, arguments: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=f"^error: .*{said}") as caught:
        training.main([*arguments, *([f"directory={assets / 'text'}"] if arguments else [])])
    assert "\n" not in str(caught.value)
