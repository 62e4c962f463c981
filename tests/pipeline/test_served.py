"""Answers that an engine served, scored by the target: formats, tokens, the pass, drift."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from analysis import certify
from analysis.rules import Additive, Rule, StrictGreedy, Tree, Typical
from analysis.statistics.drift import ANOTHER, compare_texts, drift, gaps
from pipeline.errors import PipelineError
from pipeline.formats.engine_answers import AGAIN, CUT, NO_JSON, TORN
from pipeline.loader import Study
from pipeline.models.passes import HELD
from pipeline.stages.distributions import compute as distributions
from pipeline.stages.prompts import served
from pipeline.stages.prompts.served import read_served
from pipeline.store.artifacts import Artifact
from pipeline.store.distributions import read_distributions
from pipeline.store.durable import file_digest
from pipeline.store.node import Node
from tests.pipeline import tiny

RULES: list[Rule] = [StrictGreedy(), Additive(0.1), Typical(0.1, 0.09), Tree(2)]
IDS = [20, 21, 22, 23]
ASKED = {"messages": [{"role": "user", "content": "a question"}], "temperature": 0}


def lines(path: Path, *rows: Any) -> Path:
    path.write_text(
        "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
    )
    return path


def chat(name: str, ids: list[int] | None, text: str = "ab", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text},
              "finish_reason": "stop", "token_ids": ids}  # fmt: skip
    return {"id": name, "object": "chat.completion", "model": "m", "choices": [choice | more]}


def chunks(name: str, ids: list[int]) -> list[str]:
    """A stream of vLLM: the role, two tokens an event, and the usage."""
    head = {"id": name, "object": "chat.completion.chunk", "model": "m"}
    parts = [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    for at in range(0, len(ids), 2):
        end = "length" if at + 2 >= len(ids) else None
        part = {"delta": {"content": "."}, "token_ids": ids[at : at + 2], "finish_reason": end}
        parts.append(part)
    events = [{**head, "choices": [{"index": 0, **part}]} for part in parts]
    events.append({**head, "choices": [], "usage": {"completion_tokens": len(ids)}})
    return [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n"]


def llama(content: str, tokens: list[int], stop: bool, **more: Any) -> dict[str, Any]:
    return {"index": 0, "content": content, "tokens": tokens, "stop": stop, **more}


SGLANG = {"text": "ab", "output_ids": IDS, "meta_info": {"id": "s", "finish_reason": {
    "type": "length", "length": 4}}}  # fmt: skip
LOGGED = {"content": [{"token": f"token_id:{token}", "logprob": -1.0} for token in IDS]}
FORMATS: dict[str, list[Any]] = {
    "own": [{"prompt": [5, 6], "answer": IDS}],
    "vllm chat": [{"request": ASKED, "response": chat("v", IDS)}],
    "vllm chat, prompt ids": [{**chat("v", IDS), "prompt_token_ids": [5, 6]}],
    "vllm chat, logged ids": [{"request": ASKED, "response": chat("v", None, logprobs=LOGGED)}],
    "vllm stream": [ASKED, *chunks("v", IDS)],
    "vllm completions": [{"request": {"prompt": [5, 6]}, "response": {"id": "v", "choices": [
        {"text": "ab", "token_ids": IDS, "finish_reason": "length"}]}}],
    "batch": [{"custom_id": "q", "url": "/v1/chat/completions", "body": ASKED},
              {"custom_id": "q", "response": {"status_code": 200, "body": chat("v", IDS)}}],
    "sglang": [{"request": {"text": "a question", "sampling_params": {"temperature": 0}},
                "response": SGLANG}],
    "sglang stream": [{"input_ids": [5, 6]}, *(f"data: {json.dumps(one)}\n\n" for one in (
        {"text": "a", "output_ids": IDS[:2], "meta_info": {"id": "s", "finish_reason": None}},
        SGLANG))],
    "tensorrt-llm": [ASKED, {**chat("chatcmpl-1", None), "usage": {"total_tokens": 5}}],
    "llama.cpp": [llama("ab", IDS, True, prompt="a question", stop_type="limit")],
    "llama.cpp stream": [{"prompt": "a question"}, *(f"data: {json.dumps(one)}\n\n" for one in (
        llama("a", IDS[:2], False), llama("b", IDS[2:], False),
        llama("", [], True, stop_type="eos")))],
    "conversation": [{"messages": [*ASKED["messages"], {"role": "assistant", "content": "ab"}]}],
}  # fmt: skip


@pytest.mark.parametrize("engine", FORMATS)
def test_every_format_gives_what_was_asked_and_answered(engine: str, tmp_path: Path) -> None:
    answers, excluded = read_served(lines(tmp_path / "served.jsonl", *FORMATS[engine]))
    (one,) = answers
    assert excluded == {}
    given = engine not in ("tensorrt-llm", "conversation")
    assert one["ids"] == (IDS if given else None)
    assert given or one["text"] == "ab"
    asked = one["request"]
    assert asked.get("prompt_ids") == [5, 6] or asked.get("prompt") == "a question" or (
        asked["messages"] == ASKED["messages"]
    )  # fmt: skip
    ended = ("vllm chat", "batch", "tensorrt-llm", "llama.cpp stream")
    assert one["ended"] is (engine.startswith(ended))


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    own = {"prompt": "a", "answer": "b"}
    stopped = chunks("cut", IDS)[:2]
    path = lines(
        tmp_path / "served.jsonl", own, "curl: (7) Failed\n", {"detail": "Not Found"}, 12, [],
        {"request": ASKED, "response": chat("twice", IDS)},
        {"request": ASKED, "response": chat("twice", IDS)},
        {"request": ASKED, "response": chat("empty", None, "")},
        {"request": ASKED, "response": chat("alone", None, "x", message={
            "content": "x", "reasoning_content": "y"})},
        {"request": ASKED, "response": {"choices": [3]}},
        {"choices": [{"message": {"content": "whose?"}, "finish_reason": "stop"}]},
        {"answer": "whose?"}, {"messages": [*ASKED["messages"], {"role": "assistant"}]},
        ASKED, *stopped, '{"prompt": "a", "ans',
    )  # fmt: skip
    answers, excluded = read_served(path)
    assert [one["name"] for one in answers] == ["line-1", "twice", "cut"]
    assert answers[-1]["ids"] == IDS[:2]
    assert excluded == {
        NO_JSON: 2, "answers with an error": 1, "objects that are no answers": 2, AGAIN: 1, CUT: 1,
        served.EMPTY: 2, served.APART: 1, served.ALONE: 2,
    }  # fmt: skip
    for nothing in ("", "nonsense\n", json.dumps(ASKED)):
        with pytest.raises(PipelineError, match=r"distributions.answers: .* has no answer that"):
            read_served(lines(path, nothing))


@pytest.mark.parametrize("engine", ["vllm chat", "vllm stream", "batch", "sglang", "sglang stream",
                                    "tensorrt-llm", "llama.cpp", "llama.cpp stream"])  # fmt: skip
def test_a_damaged_line_costs_its_own_answer_alone(engine: str, tmp_path: Path) -> None:
    """Each line of three answers in turn; of a stream stays what comes before."""
    one = lines(tmp_path / "served [1].jsonl", *FORMATS[engine]).read_text().rstrip("\n")
    texts = []
    for number in "345":  # other questions, names, texts and tokens
        text = re.sub(r"\b2([0-3])\b", rf"{number}\1", one).replace("[5, 6]", f"[{number}]")
        for word in ("a question", "v", "s", "q", "ab", "chatcmpl-1"):
            text = text.replace(f'"{word}"', f'"{word}{number}"')
        texts.append(text)
    whole = "\n".join(texts).encode().split(b"\n")
    path = tmp_path / "served [1].jsonl"

    def read(content: list[bytes]) -> tuple[dict[str, list[Any]], dict[str, int]]:
        path.write_bytes(b"\n".join(content))
        answers, excluded = read_served(path)
        found = {str(one["request"]): [*(one["ids"] or one["text"])] for one in answers}
        return found, excluded

    answers, excluded = read(whole)
    assert (len(answers), excluded) == (3, {})
    again = {} if engine.startswith("llama") else {AGAIN: 3}  # whose answers have no names
    assert read([*whole, *whole]) == (answers, again)
    torn = 0
    for at, line in enumerate(whole):
        for damage in (line[:-3], line[:-3] + b"\xff" + line[-3:]) if line else ():
            left, excluded = read([*whole[:at], damage, *whole[at + 1 :]])
            mine = [*answers][3 * at // len(whole)]
            own = left.pop(mine, [])
            assert left == {asked: ids for asked, ids in answers.items() if asked != mine}
            assert (answers[mine][: len(own)], excluded[NO_JSON]) == (own, 1)
            assert own in ([], answers[mine]) or excluded[CUT] == 1
            torn += excluded.get(TORN, 0)
    assert (torn > 0) == ("stream" in engine)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def dump(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, list[Any]]:
    """Greedy answers decoded here, and as served with their ids."""
    root = tmp_path_factory.mktemp("store")
    asked = tiny.prompts_node(model, tiny.write_prompts(root / "prompts.jsonl", 6))
    found = tiny.built(tiny.dump_node(model, asked), root)
    return found, as_served(found, tiny.built(asked, root))


def as_served(found: Artifact, prompts: Artifact) -> list[Any]:
    rows: dict[str, list[int]] = {}
    table = found.read(columns=["prompt_id", "token_id"]).to_pydict()
    for name, token in zip(table["prompt_id"], table["token_id"], strict=True):
        rows.setdefault(name, []).append(token)
    texts = dict(
        zip(*prompts.read(columns=["prompt_id", "text"]).to_pydict().values(), strict=True)
    )
    return [
        {"request": {"messages": [{"role": "user", "content": texts[name]}], "temperature": 0.0},
         "response": chat(name, ids, finish_reason="length")}
        for name, ids in rows.items()
    ]  # fmt: skip


def node(model: Path, *files: Path, batch: int | None = 4, **changes: Any) -> Node:
    """The distributions along the answers of files."""
    config = {"answers": [file_digest(file) for file in files], "template": "chat",
              "enable_thinking": False, "tokenizer": {}}  # fmt: skip
    settings = {"answers": list(map(str, files)), "model": str(model), "model_revision": None}
    prompts = Node("prompts", "tiny", config, settings=settings)
    return tiny.dump_node(model, prompts, batch, served=True, **changes)


@pytest.mark.parametrize("block", [1 << 25, 2000])  # all steps at once, or one or two
def test_certificates_are_those_of_the_dump(
    model: Path, dump: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """A certificate changes by at most twice the largest change of a logit."""
    monkeypatch.setitem(HELD, "cpu", block)
    exact, rows = dump
    path = lines(tmp_path / "served.jsonl", *rows)
    found = tiny.built(node(model, path), tmp_path)
    one, other = exact.read().to_pydict(), found.read().to_pydict()
    for name in ("prompt_id", "position", "token_id"):
        assert one[name] == other[name]
    error = np.abs(np.array(one["top_logits"]) - np.array(other["top_logits"])).max()
    assert error < 1e-4
    for temperature in (1.0, 0.5):
        dists = [read_distributions(artifact, temperature) for artifact in (exact, found)]
        first, second = (certify(dist, RULES) for dist in dists)
        same = first.accepted_count == second.accepted_count
        assert np.mean(~same) < 0.01
        for end in ("lower", "upper"):
            ends = getattr(first, end)[same], getattr(second, end)[same]
            assert np.allclose(*ends, rtol=0, atol=2 * error / temperature + 1e-12)
    told = found.record["facts"]["drift"]["served.jsonl"]
    assert (told["steps"], told["off"]) == (len(one["token_id"]), 0)


def test_answers_are_cut_and_tokens_checked(model: Path, dump: Any, tmp_path: Path) -> None:
    path = lines(tmp_path / "served.jsonl", *dump[1])
    table = tiny.built(node(model, path, steps=3), tmp_path).read().to_pydict()
    assert max(table["position"]) == 2
    path = lines(tmp_path / "other.jsonl", {"prompt": [5], "answer": [6, tiny.VOCABULARY]})
    with pytest.raises(PipelineError, match="larger than its vocabulary: prompt line-1 has token"):
        tiny.built(node(model, path), tmp_path)
    rows = [{"request": {**ASKED, "temperature": 0.7}, "response": chat("a", IDS)}]
    path = lines(tmp_path / "sampled.jsonl", *rows)
    with pytest.raises(PipelineError, match=r"temperature=0 is not how .* temperature 0.7. Give"):
        tiny.built(node(model, path), tmp_path)
    assert tiny.built(node(model, path, temperature=0.7), tmp_path).record["facts"]["drift"] == {}


def test_texts_become_tokens_as_the_chat_template_has_them(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "question"}]
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]
    rows = [
        {"prompt": "a question", "answer": "an answer", "finish_reason": "stop"},
        {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "x y"}]},
        {"request": {"prompt": "plain"}, "response": {"choices": [{"text": " text"}]}},
        {"request": {"messages": image}, "response": chat("image", None)},
        {"prompt": "half", "answer": "a letter \ud83d"},
        {"prompt": "half", "answer": "a letter \ufffd"},
    ]
    path = lines(tmp_path / "served.jsonl", *rows)
    (prompts,) = node(model, path).upstream["prompts"]
    found = tiny.built(prompts, tmp_path)
    asked, answered = found.read().to_pylist(), found.read("answers").to_pylist()
    rendered = tokenizer.encode("<|user|>a question<|answer|><|end|>")
    assert [row["token_ids"] for row in asked[:3]] == [
        rendered,
        rendered,
        tokenizer.encode("plain"),
    ]
    wanted = [
        [*tokenizer.encode("an answer"), 2],
        tokenizer.encode("x y"),
        tokenizer.encode(" text"),
    ]
    assert [row["token_ids"] for row in answered[:3]] == wanted
    assert found.record["facts"]["excluded"] == {"prompts or answers that are no text": 2}
    assert list(found.record["facts"]["noted"].values()) == [1]
    assert "1 answers whose text does not come back" in capsys.readouterr().out


def test_two_sets_are_held_against_each_other(
    model: Path, dump: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of six answers one parts at its third token: to the second most probable one."""
    exact, rows = dump
    table = exact.read(columns=["prompt_id", "top_ids", "top_logits"]).to_pylist()
    other = json.loads(json.dumps(rows))
    ids = other[0]["response"]["choices"][0]["token_ids"]
    step = [row for row in table if row["prompt_id"] == rows[0]["response"]["id"]][2]
    ids[2:] = [step["top_ids"][1]]
    files = [lines(tmp_path / f"{name}.jsonl", *one) for name, one in (("a", rows), ("b", other))]
    facts = tiny.built(node(model, *files), tmp_path).record["facts"]["drift"]
    gap = step["top_logits"][0] - step["top_logits"][1]
    pair = facts["a.jsonl and b.jsonl"]
    assert (pair["prompts"], pair["parted"], pair["median_after"]) == (6, 1, 2)
    assert pair["largest_gap"] == pytest.approx(gap, abs=1e-4)
    assert pair["near_ties"] == (gap <= 0.25)
    assert (facts["a.jsonl"]["off"], facts["b.jsonl"]["off"]) == (0, 1)
    said = capsys.readouterr().out
    assert "of 6 prompts in both 1 part, after 2 tokens (median)" in said
    assert "another model" not in said


def test_answers_of_another_model_are_called_so(
    dump: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = tiny.write_model(tmp_path / "stranger", seed=5)
    path = lines(tmp_path / "served.jsonl", *dump[1])
    facts = tiny.built(node(stranger, path), tmp_path).record["facts"]["drift"]
    assert facts["served.jsonl"]["share"] > ANOTHER
    assert "the answers are those of another model" in capsys.readouterr().out


def test_greedy_decoding_is_unchanged_where_the_margin_exceeds_twice_the_error() -> None:
    """Random errors within the bound; the worst one changes it at any smaller margin."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4000, 8)).astype(np.float32)
    order = np.argsort(-z, axis=1)
    logits = np.take_along_axis(z, order, axis=1)
    for error in (0.03, 0.3):
        served_logits = z + rng.uniform(-error, error, z.shape)
        gap, margin = gaps(served_logits.argmax(axis=1), order, logits)
        off = gap >= 0
        assert off.any()
        assert not off[margin > 2 * error].any()
        assert gap.max() <= 2 * error
        found = drift(gap, margin)
        assert found["off"] == off.sum()
        assert found["share"] <= found["by_error"][f"{error:g}"]
    worst = z.copy()
    np.put_along_axis(worst, order[:, :1], logits[:, :1] - 0.3, axis=1)
    np.put_along_axis(worst, order[:, 1:2], logits[:, 1:2] + 0.3, axis=1)
    gap, margin = gaps(worst.argmax(axis=1), order, logits)
    clear = np.abs(margin - 0.6) > 1e-6
    assert np.array_equal((gap >= 0)[clear], (margin < 0.6)[clear])


def test_a_token_that_is_not_stored_has_at_least_the_gap_of_the_last() -> None:
    ids, logits = np.array([[4, 2], [4, 2], [4, 2]]), np.array([[3.0, 1.0]] * 3)
    gap, margin = gaps(np.array([4, 2, 9]), ids, logits)
    assert gap.tolist() == [-1, 2, 2]
    assert margin.tolist() == [2, 2, 2]
    tie, _ = gaps(np.array([2]), ids[:1], np.array([[3.0, 3.0]]))
    assert tie.tolist() == [0]  # off the argmax, by nothing
    same = compare_texts(np.array([1, 2, 1, 2]), np.full(4, -1.0), [(slice(0, 2), slice(2, 4))])
    assert (same["parted"], same["largest_gap"]) == (0, 0)


def test_killed_and_resumed(
    model: Path, dump: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lines(tmp_path / "served.jsonl", *dump[1])
    whole = tiny.built(node(model, path, batch=2), tmp_path / "whole")
    score, calls = distributions.score_batch, []

    def stopping(*arguments: Any) -> Any:
        calls.append(arguments[1])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return score(*arguments)

    monkeypatch.setattr(distributions, "score_batch", stopping)
    with pytest.raises(KeyboardInterrupt):
        tiny.built(node(model, path, batch=2), tmp_path / "killed")
    resumed = tiny.built(node(model, path, batch=2), tmp_path / "killed")
    assert len(calls) == 4  # three shards, one of them begun twice
    assert resumed.content == whole.content


@pytest.mark.thorough
def test_two_workers_give_the_same_content(model: Path, dump: Any, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    path = lines(tmp_path / "served.jsonl", *dump[1])
    here = node(model, path, batch=2)
    execution = {"engine": "ray", "workers": 2}
    there = replace(here, settings={**here.settings, "execution": execution})
    found = tiny.built(there, tmp_path / "there")
    assert found.record["facts"]["engine"] == "ray"
    assert found.content == tiny.built(here, tmp_path / "here").content


MEMORY = """
import resource, sys
from pathlib import Path
from tests.pipeline import tiny
from tests.pipeline.test_served import node
root, count = Path(sys.argv[1]), sys.argv[2]
tiny.built(node(root / "model", root / f"{count}.jsonl", batch=64), root / count)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.thorough
def test_ten_thousand_answers_take_little_more_memory_than_a_few(tmp_path: Path) -> None:
    tiny.write_model(tmp_path / "model")
    megabytes = []
    for count in (500, 10_000):
        rows = ({"id": str(at), "prompt": [5 + at % 90, 6], "answer": [at % 250 + 4] * 12}
                for at in range(count))  # fmt: skip
        lines(tmp_path / f"{count}.jsonl", *rows)
        done = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path), str(count)],
                              capture_output=True, text=True, check=True)  # fmt: skip
        megabytes.append(int(done.stdout.split()[-1]))
    assert megabytes[1] < megabytes[0] + 200  # 120,000 steps; their file has 30 MB


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["distributions.source=answers"], "distributions.answers=[] and distributions.source=ans"),
        (["distributions.answers=[x.jsonl]"], "distributions.source=model do not go together"),
        (["distributions.source=answers", "distributions.answers=[x.jsonl]"],
         "distributions.answers=x.jsonl does not exist, and is no hub id"),
    ],
)  # fmt: skip
def test_errors_come_before_any_work(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(message)):
        Study("study=mini", f"outputs={tmp_path}", *overrides)
