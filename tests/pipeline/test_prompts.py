"""Stage prompts: what rows are accepted, in which files, and as which tokens."""

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from pipeline.core.errors import PipelineError
from pipeline.inputs.prompt_files import read_row, source_files
from pipeline.models.tokens import encode
from tests.pipeline import tiny

SCHEMA = pa.schema(
    {
        "prompt": pa.string(),
        "prompt_id": pa.string(),
        "messages": pa.list_(pa.struct({"content": pa.string(), "role": pa.string()})),
    }
)


def row(name, text):
    turns = [("user", text), ("assistant", "an answer"), ("user", "and then?")]
    messages = [{"content": content, "role": role} for role, content in turns]
    return {"prompt": text, "prompt_id": name, "messages": messages}


@pytest.fixture
def ultrachat(tmp_path):
    """Two shards of one split and one of another, with rows that are no prompts."""
    good = [row(f"good{i}", f"question {i} " + "a b " * i) for i in range(10)]
    bad = [row("empty", " \n"), row("none", None), row("short", "a"), row("long", "a b " * 200),
           row("good3", "question again"), {**row("turnless", "x"), "messages": []}]  # fmt: skip
    directory = tmp_path / "ultrachat" / "data"
    directory.mkdir(parents=True)
    for name, rows in {"train_sft-00000-of-00002-1a": good[:5] + bad[:3],
                       "train_sft-00001-of-00002-2b": bad[3:] + good[5:],
                       "test_sft-00000-of-00001-3c": [row("other", "question of the test split")],
                       }.items():  # fmt: skip
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), directory / f"{name}.parquet")
    return directory.parent


def build(model, source, root, **changes):
    """The prompts of a source in the order of its rows."""
    artifact = tiny.built(tiny.prompts_node(model, source, **changes), root)
    return sorted(artifact.read().to_pylist(), key=lambda found: found["source_row"])


def refused(model, source, root, message, **changes):
    with pytest.raises(PipelineError, match=message):
        build(model, source, root, **changes)


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))  # empty lines are no rows
    return path


def test_ultrachat_rows(model, ultrachat, tmp_path):
    node = tiny.prompts_node(
        model, ultrachat, split="train_sft", count=10, min_tokens=8, max_tokens=99
    )
    artifact = tiny.built(node, tmp_path / "store")
    found = artifact.read().to_pylist()
    rows = [r for file in sorted((ultrachat / "data").glob("train*")) for r in
            pq.read_table(file).to_pylist()]  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert sorted(r["prompt_id"] for r in found) == sorted(f"good{i}" for i in range(10))
    for prompt in found:
        origin = rows[prompt["source_row"]]
        assert prompt["prompt_id"] == origin["prompt_id"]
        assert prompt["text"] == origin["messages"][0]["content"]
        rendered = f"<|user|>{prompt['text']}<|answer|><|end|>"  # enable_thinking is false
        assert prompt["token_ids"] == tokenizer.encode(rendered)
        assert 8 <= prompt["n_tokens"] == len(prompt["token_ids"]) <= 99
    excluded = artifact.metadata["excluded"]
    assert {reason: e["rows"] for reason, e in excluded.items()} == {
        "no user message": 1, "not a string": 1, "empty": 1, "duplicate id": 1,
        "too short": 1, "too long": 1,
    }  # fmt: skip
    refused(model, ultrachat, tmp_path / "no", r"split=train_gen; found none", split="train_gen")


def test_the_seed_shuffles_and_thinking_reaches_the_template(model, ultrachat, tmp_path):
    orders, wanted = [], {"split": "train_sft", "count": 4}
    for at, (seed, thinking) in enumerate([(0, False), (0, True), (1, False)]):
        node = tiny.prompts_node(model, ultrachat, **wanted, seed=seed, enable_thinking=thinking)
        table = tiny.built(node, tmp_path / f"store{at}").read()
        orders.append(table["source_row"].to_pylist())
        assert {ids[-1] for ids in table["token_ids"].to_pylist()} == {3 if thinking else 2}
    assert sorted(orders[0]) != orders[0] == orders[1] != orders[2]


def test_plain_rows_are_accepted_and_ids_made_of_their_text(model, tmp_path):
    rows = [{"text": "a text of mine", "category": "world"}, {"prompt": "a prompt of mine"},
            row("x", "a chat of mine"), {"text": "a text with a number", "id": 7, "category": 3},
            {"prompt": "a\nb", "prompt_id": None, "text": "not this"}, {"text": "a text of mine"},
            {"text": "half a letter \ud800"}, {"text": "an odd number", "id": 1.5},
            {"messages": [{"role": "user", "content": 3}]}, {"messages": ["text"]},
            {"messages": None}, {"messages": 5}]  # fmt: skip
    found = build(model, lines(tmp_path / "p.jsonl", *rows), tmp_path / "a", count=5, seed=1)
    texts = ["a text of mine", "a prompt of mine", "a chat of mine", "a text with a number", "a\nb"]
    assert sorted(r["text"] for r in found) == sorted(texts)
    assert {r["source"] for r in found} <= {"world", "p.jsonl"}
    ids = {r["text"]: r["prompt_id"] for r in found}
    assert (ids["a chat of mine"], ids["a text with a number"]) == ("x", "7")
    assert ids["a\nb"] == hashlib.sha256(b"a\nb").hexdigest()[:16]
    reasons = (r"only 5 prompts .*: 3 no user message \(row .*\), 2 not a string \(row \d, \d\), "
               r"1 id not a string or integer \(row 7\), 1 duplicate id \(row \d\)\)")  # fmt: skip
    refused(model, tmp_path / "p.jsonl", tmp_path / "b", reasons, count=6)
    lines(tmp_path / "p.jsonl", *rows[::-1])
    again = build(model, tmp_path / "p.jsonl", tmp_path / "c", count=5)
    assert {r["text"]: r["prompt_id"] for r in again} == ids  # of content, not of place


@pytest.mark.parametrize(("content", "message"), [
    (b'{"text": "x"}\n{"text": "caf\xe9"}\n', r"^prompts.source: .*p.jsonl, line 2 is no UTF-8"),
    (b'{"text": "a b c d"}\n\n{"text": "a"\n', r"p.jsonl, line 3 is no JSON"),
    (b'["x"]', r"p.jsonl, line 1: expected an object"),
    (b'{"question": "x"}', r"row 0 \(from 0\) has no text; it has question"),
])  # fmt: skip
def test_files_that_hold_no_prompts_are_named(model, tmp_path, content, message):
    (tmp_path / "p.jsonl").write_bytes(content)
    refused(model, tmp_path / "p.jsonl", tmp_path / "store", message)


def test_system_messages_are_counted_and_parts_of_text_joined(model, tmp_path, capsys):
    """A message with an image, or a part without text, is no prompt; in both formats."""
    rows = []
    first = {"type": "text", "text": "part 0 "}
    for name, kind, text in (("a", "text", "part 1 "), ("b", "image", "x"), ("c", "text", None)):
        parts = [first, {"type": kind, "text": text}]
        turns = [{"role": "system", "content": parts[:1]}, {"role": "user", "content": parts}]
        rows.append({"prompt_id": name, "messages": turns})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    for at, source in enumerate((lines(tmp_path / "p.jsonl", *rows), tmp_path / "p.parquet")):
        found = build(model, source, tmp_path / f"{at}", count=1)
        assert [r["text"] for r in found] == ["part 0 part 1 "]
        assert "the system messages of 1 rows are left out" in capsys.readouterr().out
        refused(model, source, tmp_path / "no", r"only 1 prompts .*: 2 not a string", count=2)


def test_parquet_files_are_read_whole_or_named(model, ultrachat, tmp_path):
    """One without rows is no source alone; among others it is nothing."""
    path = ultrachat / "data/train_sft-00000-of-00002-0a.parquet"
    pq.write_table(pa.Table.from_pylist([], SCHEMA), path)
    refused(model, path, tmp_path / "store", "0a.parquet holds no rows")
    rows = build(model, ultrachat, tmp_path / "store", split="train_sft", count=10, min_tokens=8)
    assert [r["prompt_id"] for r in rows[:5]] == [f"good{i}" for i in range(5)]
    path = ultrachat / "data/test_sft-00000-of-00001-3c.parquet"
    whole = path.read_bytes()
    path.write_bytes(b"PAR1" + whole[4:60].swapcase() + whole[60:])
    refused(model, path, tmp_path / "store", r"3c.parquet is no Parquet file that can be read")


def test_a_split_is_files_and_folders_by_name(tmp_path):
    """Names are no patterns, and other splits that begin alike are others."""
    names = ["more/train[1]/a.jsonl", "train[1]-0-of-1.jsonl", "train[1]-x/b.jsonl",
             "train[1].jsonl", "train[1]2.jsonl", "my_train[1].jsonl",
             "three/folders/deep/train[1].jsonl"]  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = source_files(str(tmp_path), None, "train[1]")
    assert [path.relative_to(tmp_path).as_posix() for path in found] == names[:4]
    assert len(source_files(str(tmp_path), None, None)) == 6


def test_a_base_model_reads_plain_text(tmp_path):
    model = tiny.write_model(tmp_path / "model")
    (model / "chat_template.jinja").unlink()
    source = tiny.write_prompts(tmp_path / "prompts.jsonl", 6)
    refused(model, source, tmp_path / "store", "no chat template. Give prompts.template=none")
    tokenizer = AutoTokenizer.from_pretrained(model)
    for found in build(model, source, tmp_path / "store", template="none"):
        assert found["token_ids"] == tokenizer.encode(found["text"])


@pytest.mark.parametrize(("single", "begins"), [("$A <|end|>", []), ("<|user|> $A <|end|>", [1])])
def test_plain_text_keeps_what_begins_it_and_not_what_ends_it(model, single, begins):
    tokenizer = AutoTokenizer.from_pretrained(model)
    bare = tokenizer.encode("a b\n\nc\n\nd")
    special = [("<|user|>", 1), ("<|end|>", 2)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=single, special_tokens=special
    )
    assert encode(tokenizer, "a b\n\nc\n\nd", "none", enable_thinking=False) == begins + bare


def test_a_template_that_fails_is_named(tmp_path):
    model = tiny.write_model(tmp_path / "model")
    source = tiny.write_prompts(tmp_path / "prompts.jsonl", 6)
    for template, message in {
        "{% for x in messages %}": r"TemplateSyntaxError: .* \(line 1\)",
        "<|user|>Hello<|answer|>": "ValueError: it ignores the user's message",
    }.items():
        (model / "chat_template.jinja").write_text(template)
        refused(model, source, tmp_path / "store", f"its chat template fails: {message}")


@pytest.mark.parametrize(
    ("row", "name", "text"),
    [
        ({"prompt_id": None, "id": "a", "prompt": None, "text": "b"}, "a", "b"),
        ({"prompt_id": "x", "id": "a", "prompt": "c", "text": "b"}, "x", "c"),
        ({"id": 7, "text": "b"}, "7", "b"),
    ],
)
def test_a_null_of_a_parquet_column_hides_nothing(row, name, text):
    found = read_row(row, 0)
    assert (found["prompt_id"], found["text"]) == (name, text)
