"""The text that a head is trained on: its target's answers, new questions, shards."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from pipeline.errors import PipelineError
from pipeline.models.language_model import LanguageModel
from pipeline.models.load import load_tokenizer
from pipeline.paths import ASSETS
from pipeline.store.durable import read_sealed
from pipeline.training import features, text
from pipeline.training.text import Novelty, written
from tests.pipeline import tiny
from tests.pipeline.decoding.pair import plain_greedy

GREEDY, SAMPLED = {"temperature": 0.0, "top_p": 1.0}, {"temperature": 0.6, "top_p": 1.0}
TURNS = [1, 40], [3]


@pytest.fixture(scope="module")
def end(target: LanguageModel) -> int:
    """A token that this model writes often: about one question in two ends in time with it."""
    torch.manual_seed(3)
    texts = written(target, [[1, 40]] * 16, 30, SAMPLED, tiny.VOCABULARY - 1)
    return Counter(token for one in texts for token in set(one)).most_common(1)[0][0]


@pytest.fixture
def tokenizer(model: Path, end: int) -> Any:
    made = load_tokenizer(str(model), None, "k")
    made.eos_token = made.convert_ids_to_tokens(end)
    return made


def test_answers_are_greedy_continuations_that_do_not_disturb_each_other(
    target: LanguageModel, end: int
) -> None:
    prompts = [[1, 40, *[60 + i] * (i % 4)] for i in range(12)]
    found = written(target, prompts, 9, GREEDY, end)
    assert found == [plain_greedy(target, prompt, 9, end) for prompt in prompts]
    assert {len(one) for one in found} >= {9}
    assert written(target, [], 9, GREEDY, end) == []


def test_a_conversation_is_a_question_in_the_template_and_its_answer(
    target: LanguageModel, tokenizer: Any, end: int
) -> None:
    recipe = text.recipe_of(
        ["generate.batch=24", "generate.max_question=30", "generate.max_answer=6"]
    )
    rows, why = text.conversations(0, recipe, target, tokenizer, TURNS, Novelty([], 8, 5, 1.0))
    assert 3 < len(rows) < 24
    assert len(rows) + sum(why.values()) == 24
    assert why.keys() <= {"too long", "empty"}
    for tokens, at, temperature, beginning in rows:
        begin = [1, 40, *tokenizer.encode(beginning, add_special_tokens=False)]
        assert tokens[: len(begin)] == begin
        assert tokens[at - 2 : at] == [end, 3]  # the question's end, then the template
        if temperature == 0:
            assert tokens[at:] == plain_greedy(target, tokens[:at], 6, end)
    refusing = Novelty([], 8, 5, -1.0)  # any share is too much
    rows, why = text.conversations(0, recipe, target, tokenizer, TURNS, refusing)
    assert rows == []
    assert why["repeated"] > 3


def test_novelty() -> None:
    study = ["How do whales communicate over long distances in the sea?"]
    novelty = Novelty(study, n_study=4, n=3, repeated=0.5)
    assert novelty.refusal("...") == "empty"
    assert novelty.refusal("Do WHALES communicate, over a phone?") == "in the study"
    assert novelty.refusal("Do whales communicate?") is None  # three words, not four
    assert novelty.refusal("do whales communicate") == "repeated"
    assert novelty.refusal("a b c d e f") is None  # 4 of 3 words
    assert novelty.refusal("a b c d x y") is None  # 2 of its 4 seen before: exactly the half
    assert novelty.refusal("a b c d e z") == "repeated"  # 3 of 4


def test_shards_do_not_depend_on_interruptions(
    target: LanguageModel, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read in order, each once, over several directories."""
    monkeypatch.setattr(text, "load_target", lambda *_: (target, tokenizer))
    monkeypatch.setattr(text, "turns_of", lambda _: TURNS)
    real, made = text.conversations, list[int]()
    monkeypatch.setattr(text, "conversations", lambda *given: made.append(given[0]) or real(*given))
    for name, counts in (("whole", (2,)), ("parts", (1, 2))):
        (tmp_path / name).mkdir()
        for shards in counts:
            given = ["generate.batch=12", f"generate.shards={shards}", "generate.max_answer=6"]
            text.write_text(text.recipe_of(given), tmp_path / name)
            (tmp_path / name / "shard-00001.partial").write_bytes(b"cut off")
    assert made == [0, 1, 0, 1]  # none twice in a directory
    shards_ = features.shards([tmp_path / "whole", tmp_path / "parts"])
    assert [path.name for path in shards_] == ["shard-00000.parquet", "shard-00001.parquet"]
    for path in shards_:
        first, second = (pq.read_table(tmp_path / d / path.name) for d in ("whole", "parts"))
        assert first.schema == text.SCHEMA
        assert first.num_rows > 0
        assert first.equals(second)
        read = features.read_shard(path)
        assert [one.tokens.tolist() for one in read] == first["token_ids"].to_pylist()
        assert [one.answer_at for one in read] == first["answer_at"].to_pylist()


def test_any_damage_of_a_shard_is_found_and_the_next_run_writes_it_again(
    target: LanguageModel, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(text, "load_target", lambda *_: (target, tokenizer))
    monkeypatch.setattr(text, "turns_of", lambda _: TURNS)
    recipe = text.recipe_of(["generate.batch=12", "generate.shards=2", "generate.max_answer=6"])
    text.write_text(recipe, tmp_path)
    first, second = features.shards([tmp_path])
    content, chance = first.read_bytes(), random.Random(0)
    for _ in range(40):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        first.write_bytes(damaged)
        with pytest.raises(PipelineError, match=r"shard-00000.parquet differs from its checksum"):
            features.read_shard(first)
    left = tmp_path / "shard-00007.partial"
    left.write_bytes(b"of a killed run that was asked for more")
    capsys.readouterr()
    text.write_text(recipe, tmp_path)
    printed = capsys.readouterr().out
    assert printed.startswith(f"damaged: {first}: written again\nshard-00000.parquet: ")
    assert second.name not in printed
    assert first.read_bytes() == content
    assert not left.exists()
    sums = tmp_path / features.CHECKSUMS
    sums.write_text(sums.read_text().replace("1", "2", 1))
    with pytest.raises(PipelineError, match=r"checksums.json differs from its check.*: remove"):
        features.read_shard(first)
    sums.unlink()  # as an earlier version left a directory
    assert features.read_shard(first)


def test_the_committed_text_is_what_its_checksums_say() -> None:
    shards = features.shards([ASSETS / "smollm2" / "training_text"])
    assert read_sealed(shards[0].with_name(features.CHECKSUMS)).keys() == {p.name for p in shards}
    assert all(map(features.whole, shards))


@pytest.mark.parametrize(
    ("override", "said"),
    [("generate.batsh=3", "batsh"), ("target=none", "target=none: give one of .*smollm2"),
     ("generate.batch=x", "batch=x: ")],
)  # fmt: skip
def test_errors_of_text_are_one_line(override: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"^error: .*{said}") as caught:
        text.main([f"directory={tmp_path}", override])
    assert "\n" not in str(caught.value)
