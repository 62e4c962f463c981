"""Stage prompts on files in UltraChat's schema, whatever their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from pipeline.errors import PipelineError
from tests.pipeline import tiny

SCHEMA = pa.schema(
    {
        "prompt": pa.string(),
        "prompt_id": pa.string(),
        "messages": pa.list_(pa.struct({"content": pa.string(), "role": pa.string()})),
    }
)


def row(name: str, text: str | None, answer: str = "an answer") -> dict[str, Any]:
    turns = [("user", text), ("assistant", answer), ("user", "and then?")]
    messages = [{"content": content, "role": role} for role, content in turns]
    return {"prompt": text, "prompt_id": name, "messages": messages}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def ultrachat(tmp_path: Path) -> Path:
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


def test_ultrachat_rows(model: Path, ultrachat: Path, tmp_path: Path) -> None:
    node = tiny.prompts_node(model, ultrachat, "train_sft", count=10, min_tokens=8, max_tokens=99)
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
    excluded = artifact.record["facts"]["excluded"]
    assert {reason: e["rows"] for reason, e in excluded.items()} == {
        "no user message": 1, "not a string": 1, "empty": 1, "duplicate id": 1,
        "too short": 1, "too long": 1,
    }  # fmt: skip
    assert {item["prompt_id"] for e in excluded.values() for item in e["first"]} == {
        "none", "turnless", "empty", "good3", "short", "long",
    }  # fmt: skip


def test_seed_shuffles_and_count_stops(model: Path, ultrachat: Path, tmp_path: Path) -> None:
    orders = []
    for seed in (0, 0, 1):
        node = tiny.prompts_node(model, ultrachat, "train_sft", count=4, seed=seed)
        store = tmp_path / f"store{len(orders)}"
        orders.append(
            tiny.built(node, store).read(columns=["source_row"])["source_row"].to_pylist()
        )
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])
    assert len(orders[0]) == 4


def test_thinking_reaches_the_template(model: Path, tmp_path: Path) -> None:
    source = tiny.write_prompts(tmp_path / "prompts.jsonl", 6)
    for thinking, last in ((True, 3), (False, 2)):
        node = tiny.prompts_node(model, source, enable_thinking=thinking)
        for ids in tiny.built(node, tmp_path / "store").read()["token_ids"].to_pylist():
            assert ids[-1] == last


@pytest.mark.parametrize(("change", "message"), [
    ({"count": 50}, r"prompts.count=50: .* has only 6 prompts of 3 to 100 tokens"),
    ({"split": "train_gen"}, r"prompts.split=train_gen; found none"),
])  # fmt: skip
def test_errors_name_the_key(
    model: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    tiny.write_prompts(folder / "train_sft.jsonl", 6)
    node = tiny.prompts_node(model, folder, **change)
    with pytest.raises(PipelineError, match=message):
        tiny.built(node, tmp_path / "store")


def test_values_of_mixed_types(model: Path, tmp_path: Path) -> None:
    source = tiny.write_prompts(tmp_path / "prompts.jsonl", 6)
    odd: list[Any] = [[{"role": "user", "content": 3}], ["text"], None]
    with source.open("a") as file:
        for i, messages in enumerate(odd):
            bad = {"prompt": 3, "prompt_id": f"bad{i}", "messages": messages}
            file.write(json.dumps(bad) + "\n")
    with pytest.raises(
        PipelineError,
        match=r"only 6 prompts .*2 no user message \(row \d, \d\), 1 not a string \(row \d\)",
    ):
        tiny.built(tiny.prompts_node(model, source, count=9), tmp_path / "store")


def test_lacking_column_is_named(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "prompts.jsonl"
    source.write_text(json.dumps({"prompt": "x", "id": "1"}) + "\n")
    with pytest.raises(PipelineError, match="no column messages, prompt_id; it has prompt, id"):
        tiny.built(tiny.prompts_node(model, source), tmp_path / "store")


def test_broken_file_is_named(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "prompts.jsonl"
    source.write_text('{"prompt": "x"\n')
    with pytest.raises(PipelineError, match=r"prompts\.jsonl .*can't be read"):
        tiny.built(tiny.prompts_node(model, source), tmp_path / "store")


def test_tokenizer_without_template(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model")
    (model / "chat_template.jinja").unlink()
    source = tiny.write_prompts(tmp_path / "prompts.jsonl", 6)
    with pytest.raises(PipelineError, match="no chat template"):
        tiny.built(tiny.prompts_node(model, source), tmp_path / "store")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    "name", ["p[12]", "p*", "p?", "[!a]", "p q", "p'q\"", "ü✓", "{p1,p2}", "p#1", "p%201", "**"]
)
def test_a_path_is_no_pattern(model: Path, tmp_path: Path, name: str, suffix: str) -> None:
    """Neither a file nor its directory, beside others that the pattern would find."""
    for at, place in enumerate([f"{name}/{name}", "p1/p1", "p2/p2", f"{name}/p1", f"{name}/p2"]):
        path = tmp_path / f"{place}{suffix}"
        path.parent.mkdir(exist_ok=True)
        rows = [row(f"{at}.{i}", f"question {i} of file {at}") for i in range(6)]
        if suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
        else:
            path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    source = tmp_path / name / f"{name}{suffix}"
    found = tiny.built(tiny.prompts_node(model, source), tmp_path / f"store {name}")
    assert {name.split(".")[0] for name in found.read()["prompt_id"].to_pylist()} == {"0"}
    every = tiny.built(tiny.prompts_node(model, source.parent, count=18), tmp_path / "store")
    ids = every.read()["prompt_id"].to_pylist()
    assert {name.split(".")[0] for name in ids} == {"0", "3", "4"}
