"""Answers that an engine served, scored by the target: tokens, the pass, drift."""

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
from analysis.statistics.drift import ANOTHER
from conf.schema import Execution
from pipeline.errors import PipelineError
from pipeline.loader import Study
from pipeline.models.passes import HELD
from pipeline.stages.distributions import compute as distributions
from pipeline.store.artifacts import Artifact
from pipeline.store.distributions import read_distributions
from tests.pipeline import tiny
from tests.pipeline.served import ASKED, IDS, chat, lines, node
from tests.pipeline.stopping import stopped_after

RULES: list[Rule] = [StrictGreedy(), Additive(0.1), Typical(0.1, 0.09), Tree(2)]


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
    first, second = (certify(read_distributions(artifact), RULES) for artifact in (exact, found))
    same = first.accepted_count == second.accepted_count
    assert np.mean(~same) < 0.01
    for end in ("lower", "upper"):
        ends = getattr(first, end)[same], getattr(second, end)[same]
        assert np.allclose(*ends, rtol=0, atol=2 * error + 1e-12)
    told = found.record.facts["drift"]["served.jsonl"]
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
    with pytest.raises(PipelineError, match=r"temperature=0 differs from .* temperature 0.7. Give"):
        tiny.built(node(model, path), tmp_path)
    assert tiny.built(node(model, path, temperature=0.7), tmp_path).record.facts["drift"] == {}


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
    assert found.record.facts["excluded"] == {"prompts or answers that are no text": 2}
    assert list(found.record.facts["noted"].values()) == [1]
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
    facts = tiny.built(node(model, *files), tmp_path).record.facts["drift"]
    gap = step["top_logits"][0] - step["top_logits"][1]
    pair = facts["a.jsonl and b.jsonl"]
    assert (pair["prompts"], pair["parted"], pair["median_after"]) == (6, 1, 2)
    assert pair["largest_gap"] == pytest.approx(gap, abs=1e-4)
    assert pair["near_ties"] == (gap <= 0.25)
    assert (facts["a.jsonl"]["off"], facts["b.jsonl"]["off"]) == (0, 1)
    said = capsys.readouterr().out
    assert "of 6 prompts in both 1 differ, first after 2 tokens (median)" in said
    assert "another model" not in said


def test_served_log_probabilities_show_their_difference(
    model: Path, dump: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the dump, the third of each list off by 3e-4 and the others by 1e-5; two steps."""
    exact, rows = dump
    table = exact.read(columns=["prompt_id", "top_ids", "top_logits", "logsumexp"]).to_pylist()
    served = json.loads(json.dumps(rows))
    for row in served:
        (choice,) = row["response"]["choices"]
        steps = [step for step in table if step["prompt_id"] == row["response"]["id"]]
        content = []
        for step in steps:
            values = np.array(step["top_logits"][:3]) - step["logsumexp"] + [1e-5, -1e-5, 3e-4]
            top = [
                {"token": f"token_id:{token}", "logprob": value}
                for token, value in zip(step["top_ids"], values, strict=False)
            ]
            content.append({**top[0], "top_logprobs": [*top, {"token": "x", "logprob": -9.5}]})
        choice["logprobs"] = {"content": content}
    path = lines(tmp_path / "served.jsonl", *served)
    facts = tiny.built(node(model, path, steps=2), tmp_path).record.facts["drift"]
    known = facts["served.jsonl"]
    assert known["log_probs"] == 3 * known["steps"] == 3 * 2 * len(rows)
    assert known["median_difference"] == pytest.approx(1e-5, rel=0.5)  # two passes differ, too
    assert known["largest_difference"] == pytest.approx(3e-4, rel=0.1)
    assert "36 log-probabilities in the file differ from those here by 1" in capsys.readouterr().out
    choice["token_ids"][0] = (choice["token_ids"][0] + 1) % 200 + 5  # lists of other tokens
    path = lines(tmp_path / "other.jsonl", served[-1])
    facts = tiny.built(node(model, path, steps=2), tmp_path).record.facts["drift"]
    assert "log_probs" not in facts["other.jsonl"]


def test_answers_of_another_model_are_called_so(
    dump: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = tiny.write_model(tmp_path / "stranger", seed=5)
    path = lines(tmp_path / "served.jsonl", *dump[1])
    facts = tiny.built(node(stranger, path), tmp_path).record.facts["drift"]
    assert facts["served.jsonl"]["share"] > ANOTHER
    assert "the answers are those of another model" in capsys.readouterr().out


def test_killed_and_resumed(
    model: Path, dump: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lines(tmp_path / "served.jsonl", *dump[1])
    whole = tiny.built(node(model, path, batch=2), tmp_path / "whole")
    score, calls = distributions.score_batch, []

    def noting(*arguments: Any) -> Any:
        calls.append(arguments[1])
        return score(*arguments)

    monkeypatch.setattr(distributions, "score_batch", noting)
    with stopped_after(2, distributions, "score_batch", monkeypatch):
        tiny.built(node(model, path, batch=2), tmp_path / "killed")
    resumed = tiny.built(node(model, path, batch=2), tmp_path / "killed")
    assert len(calls) == 4  # three shards, one of them begun twice
    assert resumed.content == whole.content


@pytest.mark.thorough
def test_two_workers_give_the_same_content(model: Path, dump: Any, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    path = lines(tmp_path / "served.jsonl", *dump[1])
    here = node(model, path, batch=2)
    ray = replace(here.spec.model, execution=Execution("ray", 2))
    there = replace(here, spec=replace(here.spec, model=ray))
    found = tiny.built(there, tmp_path / "there")
    assert found.record.facts["engine"] == "ray"
    assert found.content == tiny.built(here, tmp_path / "here").content


MEMORY = """
import resource, sys
from pathlib import Path
from tests.pipeline import tiny
from tests.pipeline.served import node
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
        (["distributions.answers=[x.jsonl]"], "distributions.source=model contradict each other"),
        (["distributions.source=answers", "distributions.answers=[x.jsonl]"],
         "distributions.answers=x.jsonl does not exist, and is no hub id"),
    ],
)  # fmt: skip
def test_errors_come_before_any_work(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(message)):
        Study("study=mini", f"outputs={tmp_path}", *overrides)
