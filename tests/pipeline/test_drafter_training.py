"""The training text: the target's own, in its template, different, resumable."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.drafter_training import features, generate
from pipeline.drafter_training.conversations import Choice, Turns, converse, sample
from pipeline.drafter_training.openings import Novelty
from pipeline.models.load import LanguageModel, load_model, load_tokenizer
from tests.pipeline import tiny

GREEDY = Choice(0.0, 1.0)
SAMPLED = Choice(0.6, 1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    settings = {"path": str(folder), "revision": None, "label": "t", "device": "cpu", "threads": 1}
    return load_model(tiny.MODEL, settings, "k")


@pytest.fixture(scope="module")
def end(model: LanguageModel) -> int:
    """A token that this model writes often: about one question in two ends in time with it."""
    never = Turns([1, 40], [], -1, 30, 1, SAMPLED)
    rows = converse(model, [[]] * 16, [GREEDY] * 16, never, lambda _: None,
                    torch.Generator().manual_seed(3))  # fmt: skip
    return Counter(token for row in rows for token in set(row.tokens[2:])).most_common(1)[0][0]


def plain_answer(model: LanguageModel, begin: list[int], n: int, end: int) -> list[int]:
    """The greedy answer by plain forward passes over everything."""
    tokens = list(begin)
    for _ in range(n):
        with torch.inference_mode():
            logits = model.module(input_ids=torch.tensor([tokens])).logits[0, -1]
        tokens.append(int(logits.argmax()))
        if tokens[-1] == end:
            break
    return tokens[len(begin) :]


def test_answers_are_greedy_continuations_and_rows_do_not_disturb_each_other(
    model: LanguageModel, end: int
) -> None:
    turns = Turns([1, 40], [50, 3], end, max_question=30, max_answer=9, question=SAMPLED)
    beginnings = [[60 + i] * (i % 4) for i in range(64)]
    rows = converse(model, beginnings, [GREEDY] * 64, turns, lambda _: None,
                    torch.Generator().manual_seed(1))  # fmt: skip
    kept = [row for row in rows if row.dropped is None]
    assert 3 < len(kept) < 64  # so rows left the batch at different times
    for row, beginning in zip(rows, beginnings, strict=True):
        assert row.tokens[:2] == [1, 40]
        assert row.tokens[2 : 2 + len(beginning)] == beginning
        if row.dropped is not None:
            assert (row.dropped, len(row.tokens)) == ("too long", 2 + 30)
            continue
        at = row.answer_at
        assert at is not None
        assert row.tokens[at - 3 : at] == [end, 50, 3]  # the question's end, then the template
        assert row.tokens[at:] == plain_answer(model, row.tokens[:at], 9, end)


def test_refused_questions_get_no_answer(model: LanguageModel, end: int) -> None:
    turns = Turns([1], [3], end, max_question=30, max_answer=9, question=SAMPLED)
    asked: list[list[int]] = []

    def refusal(question: list[int]) -> str | None:
        asked.append(question)
        return "no"

    rows = converse(model, [[70]] * 16, [GREEDY] * 16, turns, refusal,
                    torch.Generator().manual_seed(1))  # fmt: skip
    assert asked
    assert {row.dropped for row in rows} <= {"no", "too long"}
    assert all(question[0] == 70 and end not in question[1:] for question in asked)


def test_a_forced_end_token_does_not_end_the_question(model: LanguageModel) -> None:
    turns = Turns([1], [3], 2, max_question=5, max_answer=4, question=SAMPLED)
    (row,) = converse(model, [[60, 2, 61, 62]], [GREEDY], turns, lambda _: None,
                      torch.Generator().manual_seed(0))  # fmt: skip
    assert row.tokens[:5] == [1, 60, 2, 61, 62]


def test_sampling_keeps_to_the_nucleus_and_its_frequencies() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    rows = p.log().repeat(20_000, 1)
    drawn = sample(rows, Choice(1.0, 0.8), torch.Generator().manual_seed(0))
    share = torch.bincount(drawn, minlength=4) / len(drawn)
    # 4 standard deviations of a share; the nucleus of 0.8 holds the first two
    torch.testing.assert_close(share, torch.tensor([0.625, 0.375, 0, 0]), rtol=0, atol=0.014)
    drawn = sample(rows, Choice(1.0, 1.0), torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.bincount(drawn) / len(drawn), p, rtol=0, atol=0.014)


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


def recipe(directory: Path, shards: int) -> Any:
    return generate.recipe_of(
        [f"directory={directory}", "generate.batch=12", f"generate.shards={shards}"]
    )


@pytest.mark.thorough
def test_shards_do_not_depend_on_interruptions(
    folder: Path, model: LanguageModel, end: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(str(folder), None, "k")
    monkeypatch.setattr(generate, "load", lambda _: (model, tokenizer))
    turns = Turns([1, 40], [3], end, 150, 6, SAMPLED)
    monkeypatch.setattr(generate, "turns_of", lambda *_: turns)
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    generate.run(recipe(tmp_path / "whole", 2), tmp_path / "whole")
    generate.run(recipe(tmp_path / "parts", 1), tmp_path / "parts")
    (tmp_path / "parts" / "shard-00001.partial").write_bytes(b"cut off")
    generate.run(recipe(tmp_path / "parts", 2), tmp_path / "parts")
    for name in ("shard-00000.parquet", "shard-00001.parquet"):
        first, second = (pq.read_table(tmp_path / d / name) for d in ("whole", "parts"))
        assert first.schema == generate.SCHEMA
        assert first.num_rows > 0
        assert first.equals(second)


@pytest.mark.parametrize(
    ("override", "said"),
    [("generate.batsh=3", "batsh"), ("target=none", "target=none: give one of .*smollm2"),
     ("generate.batch=x", "batch=x: ")],
)  # fmt: skip
def test_errors_are_one_line(override: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"^error: .*{said}") as caught:
        generate.main([f"directory={tmp_path}", override])
    assert "\n" not in str(caught.value)


def test_reading_the_shards(tmp_path: Path) -> None:
    """In order, each once, over several directories."""
    for name, first in (("a", 10), ("b", 20)):
        (tmp_path / name).mkdir()
        for number in (first // 10, first // 10 + 1):
            columns = [[[1, first + number, 5]], [2], [0.7], ["x"]]
            shard = tmp_path / name / f"shard-{number:05d}.parquet"
            pq.write_table(pa.table(columns, schema=generate.SCHEMA), shard)
    (tmp_path / "a" / "shard-00002.partial").write_bytes(b"cut off")
    paths = features.shards([tmp_path / "a", tmp_path / "b"])
    kept = [written for path in paths for written in features.read(path)]
    assert [written.tokens.tolist() for written in kept] == [[1, 11, 5], [1, 22, 5], [1, 23, 5]]
    assert {(written.answer_at, round(written.temperature, 3)) for written in kept} == {(2, 0.7)}
