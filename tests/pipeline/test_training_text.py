"""The training text: the target's own, in its template, different, resumable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.models.language_model import LanguageModel
from pipeline.models.load import load_model, load_tokenizer
from pipeline.training import features, text
from pipeline.training.conversations import Sampler, Turns, converse, draw_nucleus
from pipeline.training.questions import Novelty
from tests.pipeline import tiny
from tests.pipeline.test_training import plain_answer

GREEDY, SAMPLED = Sampler(0.0, 1.0), Sampler(0.6, 1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def target(folder: Path) -> LanguageModel:
    settings = {"path": str(folder), "revision": None, "label": "t", "device": "cpu", "threads": 1}
    return load_model(tiny.MODEL, settings, "k")


@pytest.fixture(scope="module")
def end(target: LanguageModel) -> int:
    """A token that this model writes often: about one question in two ends in time with it."""
    rows = asked(target, Turns([1, 40], [], -1, 30, 1, SAMPLED), [[]] * 16, seed=3)
    return Counter(token for row in rows for token in set(row.tokens[2:])).most_common(1)[0][0]


def asked(
    model: LanguageModel,
    turns: Turns,
    beginnings: list[list[int]],
    refusal: Callable[[list[int]], str | None] = lambda _: None,
    seed: int = 1,
) -> list[Any]:
    greedy = [GREEDY] * len(beginnings)
    generator = torch.Generator().manual_seed(seed)
    return converse(model, beginnings, greedy, turns, refusal, generator)


def test_answers_are_greedy_continuations_and_rows_do_not_disturb_each_other(
    target: LanguageModel, end: int
) -> None:
    turns = Turns([1, 40], [50, 3], end, max_question=30, max_answer=9, question=SAMPLED)
    beginnings = [[60 + i] * (i % 4) for i in range(64)]
    rows = asked(target, turns, beginnings)
    kept = [row for row in rows if row.dropped is None]
    assert 3 < len(kept) < 64  # so rows left the batch at different times
    for row, beginning in zip(rows, beginnings, strict=True):
        assert row.tokens[:2] == [1, 40]
        assert row.tokens[2 : 2 + len(beginning)] == beginning
        if row.dropped is not None:
            assert (row.dropped, len(row.tokens)) == ("too long", 2 + 30)
            continue
        at = row.answer_at
        assert row.tokens[at - 3 : at] == [end, 50, 3]  # the question's end, then the template
        assert row.tokens[at:] == plain_answer(target, row.tokens[:at], 9, end)


def test_refused_questions_get_no_answer(target: LanguageModel, end: int) -> None:
    turns = Turns([1], [3], end, max_question=30, max_answer=9, question=SAMPLED)
    questions: list[list[int]] = []
    rows = asked(target, turns, [[70]] * 16, lambda one: questions.append(one) or "no")
    assert questions
    assert {row.dropped for row in rows} <= {"no", "too long"}
    assert all(one[0] == 70 and end not in one[1:] for one in questions)
    turns = Turns([1], [3], 2, max_question=5, max_answer=4, question=SAMPLED)
    (row,) = asked(target, turns, [[60, 2, 61, 62]], seed=0)
    assert row.tokens[:5] == [1, 60, 2, 61, 62]  # a forced end token does not end the question


def test_sampling_keeps_to_the_nucleus_and_its_frequencies() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    rows = p.log().repeat(20_000, 1)
    for top_p, wanted in ((0.8, torch.tensor([0.625, 0.375, 0, 0])), (1.0, p)):
        drawn = draw_nucleus(rows, Sampler(1.0, top_p), torch.Generator().manual_seed(0))
        share = torch.bincount(drawn, minlength=4) / len(drawn)
        # 4 standard deviations of a share; the nucleus of 0.8 holds the first two
        torch.testing.assert_close(share, wanted, rtol=0, atol=0.014)


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


@pytest.mark.thorough
def test_shards_do_not_depend_on_interruptions(
    folder: Path, target: LanguageModel, end: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(str(folder), None, "k")
    monkeypatch.setattr(text, "load_target", lambda _: (target, tokenizer))
    turns = Turns([1, 40], [3], end, 150, 6, SAMPLED)
    monkeypatch.setattr(text, "turns_of", lambda *_: turns)
    for name, counts in (("whole", (2,)), ("parts", (1, 2))):
        (tmp_path / name).mkdir()
        for shards in counts:
            given = ["generate.batch=12", f"generate.shards={shards}"]
            text.write_text(text.recipe_of(given), tmp_path / name)
            (tmp_path / name / "shard-00001.partial").write_bytes(b"cut off")
    for name in ("shard-00000.parquet", "shard-00001.parquet"):
        first, second = (pq.read_table(tmp_path / d / name) for d in ("whole", "parts"))
        assert first.schema == text.SCHEMA
        assert first.num_rows > 0
        assert first.equals(second)


def test_reading_the_shards(tmp_path: Path) -> None:
    """In order, each once, over several directories."""
    for name, first in (("a", 10), ("b", 20)):
        (tmp_path / name).mkdir()
        for number in (first // 10, first // 10 + 1):
            columns = [[[1, first + number, 5]], [2], [0.7], ["x"]]
            shard = tmp_path / name / f"shard-{number:05d}.parquet"
            pq.write_table(pa.table(columns, schema=text.SCHEMA), shard)
    (tmp_path / "a" / "shard-00002.partial").write_bytes(b"cut off")
    paths = features.shards([tmp_path / "a", tmp_path / "b"])
    kept = [one for path in paths for one in features.read_shard(path)]
    assert [one.tokens.tolist() for one in kept] == [[1, 11, 5], [1, 22, 5], [1, 23, 5]]
    assert {one.answer_at for one in kept} == {2}


@pytest.mark.parametrize(
    ("override", "said"),
    [("generate.batsh=3", "batsh"), ("target=none", "target=none: give one of .*smollm2"),
     ("generate.batch=x", "batch=x: ")],
)  # fmt: skip
def test_errors_of_text_are_one_line(override: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"^error: .*{said}") as caught:
        text.main([f"directory={tmp_path}", override])
    assert "\n" not in str(caught.value)
