"""Stage decoding on the tiny pair: failing prompts, metrics, resuming, and its other files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch

from pipeline import decoding, spec_bench
from pipeline.artifacts import Artifact, Draft, content_digest
from pipeline.errors import PipelineError
from pipeline.methods import build_methods
from pipeline.models import LanguageModel
from pipeline.stages import Node
from tests.pipeline.decoding.pair import PROMPTS, V, logits
from tests.pipeline.fakes import record

METHODS = [
    {"drafter": "model", "rule": "greedy", "draft_length": 3, "temperature": 0},
    {"drafter": "prompt_lookup", "rule": "greedy", "draft_length": 3, "temperature": 0},
    {"drafter": "model", "rule": "mars", "theta": 0.9, "draft_length": 3, "temperature": 0},
    {"drafter": "model", "sampling": "speculative", "draft_length": 2, "temperature": 1.0},
]


@pytest.fixture
def stage(
    target: LanguageModel, drafter: LanguageModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Any:
    """The stage on the tiny pair: a function of prompts that returns the draft it wrote."""
    tokenizer = SimpleNamespace(
        get_vocab=lambda: {str(i): i for i in range(V)},
        decode=lambda ids, **_: " ".join(map(str, ids)),
    )
    monkeypatch.setattr(decoding, "load_tokenizer", lambda *_: tokenizer)
    monkeypatch.setattr(
        decoding,
        "load_model",
        lambda _, settings, key: {"a": target, "b": drafter}[settings["label"]],
    )

    def run(prompts: list[list[int]], name: str = "draft") -> Draft:
        rows = [
            {"prompt_id": str(at), "source": "s", "token_ids": ids}
            for at, ids in enumerate(prompts)
        ]
        upstream = SimpleNamespace(read=lambda: pa.Table.from_pylist(rows))
        node = Node(
            "decoding",
            "tiny",
            {
                "target": {},
                "drafter": {},
                "prompts": len(prompts),
                "steps": 12,
                "seed": 0,
                "lookup": 2,
            },
            settings={
                "target": {"label": "a", "path": ""},
                "drafter": {"label": "b", "path": ""},
                "methods": build_methods(METHODS),
            },
        )
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        draft = Draft(folder, "decoding")
        decoding.compute(node, {"prompts": [upstream]}, draft)  # type: ignore[list-item]
        record(folder, "decoding")
        return draft

    return run


def content(draft: Draft) -> dict[str, Any]:
    artifact = Artifact(draft.directory)
    return {
        name: artifact.read(name).to_pylist()
        for name in ("data", "calls", "trajectory", "indicators", "failures")
    }


def test_the_stage_records_a_failing_prompt_and_goes_on(stage: Any) -> None:
    draft = stage([PROMPTS[0], [], PROMPTS[1]])
    found = content(draft)
    assert found["failures"] == [
        {"prompt_id": "1", "reason": "the prompt is empty: give at least one token"}
    ]
    assert draft.facts["failed_prompts"] == 1
    assert {row["prompt_id"] for row in found["data"]} == {"0", "2"}
    runs = draft.facts["runs"]
    assert [run["method"] for run in runs[:2]] == ["autoregressive", "autoregressive"]
    for row in found["data"]:
        if runs[row["run"]]["lossless"] and row["temperature"] == 0:
            assert row["agreement"] == 1.0
    with pytest.raises(PipelineError, match="no prompt can be decoded: the prompt is empty"):
        stage([[], []], "none")


def test_a_prompt_too_long_for_the_drafter_alone_fails_and_is_named(
    stage: Any, drafter: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafter.module.config, "max_position_embeddings", 20)
    found = content(stage(PROMPTS[:2]))  # of 5 and 17 tokens, with answers of 12
    assert {row["prompt_id"] for row in found["data"]} == {"0"}
    [failure] = found["failures"]
    assert failure["prompt_id"] == "1"
    assert "exceed the context of the drafter, 20 tokens" in failure["reason"]


@pytest.mark.parametrize("broken", [0, 1])  # before the first prompt, methods are warmed up
def test_a_prompt_on_which_memory_runs_out_fails_alone(
    stage: Any, broken: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = decoding.run

    def short(pair: Any, method: Any, row: Any, steps: int) -> Any:
        if row["prompt_id"] == str(broken):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(pair, method, row, steps)

    monkeypatch.setattr(decoding, "run", short)
    found = content(stage(PROMPTS[:2]))
    assert {row["prompt_id"] for row in found["data"]} == {str(1 - broken)}
    assert found["failures"] == [
        {"prompt_id": str(broken), "reason": "out of memory: CUDA out of memory"}
    ]
    assert "1 of 2 prompts failed, the first with: out of memory" in capsys.readouterr().out


def test_likelihoods_and_indicators_are_those_of_plain_passes(
    stage: Any, target: LanguageModel, drafter: LanguageModel
) -> None:
    found = content(stage([PROMPTS[1]]))
    for row in found["data"]:
        text = PROMPTS[1] + row["token_ids"]
        chosen = logits(target, text)[len(PROMPTS[1]) - 1 : -1].double().log_softmax(1)
        wanted = sum(chosen[i, token].item() for i, token in enumerate(row["token_ids"]))
        assert row["log_likelihood"] == pytest.approx(wanted, abs=1e-3)
    greedy_rows = [row for row in found["indicators"] if row["rule"] == "greedy"]
    answer = found["data"][0]["token_ids"]
    drafted = logits(drafter, PROMPTS[1] + answer)[len(PROMPTS[1]) - 1 : -1].argmax(1).tolist()
    assert [row["accepted"] for row in greedy_rows] == [
        a == b for a, b in zip(drafted, answer, strict=True)
    ]


def test_a_killed_stage_resumes_and_ends_with_the_same_content(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = content(stage(PROMPTS, "whole"))
    real = decoding.decode_prompt
    done: list[int] = []
    kills = [True]

    def counted(pair: Any, row: Any, turn: int) -> Any:
        if len(done) == 2 and kills:
            kills.pop()
            raise KeyboardInterrupt
        done.append(turn)
        return real(pair, row, turn)

    monkeypatch.setattr(decoding, "decode_prompt", counted)
    with pytest.raises(KeyboardInterrupt):
        stage(PROMPTS, "killed")
    assert content(stage(PROMPTS, "killed")) == whole
    assert done == [0, 1, 2]


def test_answers_have_spec_benchs_format_and_questions_become_prompts(stage: Any) -> None:
    draft = stage([PROMPTS[0]])
    path = draft.directory / "timings/answers/greedy_draft_length=3_temperature=0.jsonl"
    [answer] = [json.loads(line) for line in path.read_text().splitlines()]
    [choice] = answer["choices"]
    assert answer["question_id"] == 0
    assert choice["new_tokens"] == [12]
    assert sum(choice["accept_lengths"]) == 11
    assert choice["decoding_steps"] == [len(choice["accept_lengths"])]
    assert choice["wall_time"][0] > 0
    question = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}
    assert spec_bench.as_chat(question)["messages"] == [{"role": "user", "content": "Write."}]
    assert spec_bench.as_chat(question)["prompt_id"] == "81"
    assert spec_bench.as_chat(question)["category"] == "writing"


def test_seconds_are_no_content() -> None:
    assert content_digest({"data.parquet": "x", "timings/runs.parquet": "y"}) == content_digest(
        {"data.parquet": "x", "timings/runs.parquet": "z", "plan.json": "w"}
    )
