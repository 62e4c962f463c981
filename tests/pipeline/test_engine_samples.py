"""What vLLM and llama.cpp wrote, read: against the model itself, and against each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pipeline.engines.written.asked import read_asked
from pipeline.engines.written.logs import EngineLog, read_log, stacked
from tests.engines.samples import SAMPLES, answer_ids, lines

MINI, SMOLLM2 = 2048, 49_152  # tokens of the vocabularies


def log_of(name: str, part: str = "generated", vocab_size: int = MINI) -> EngineLog:
    path = SAMPLES / f"{name}.jsonl.gz"
    return read_log(path, {"part": part, "error": None}, 256, vocab_size)


@pytest.mark.parametrize(
    ("name", "part", "vocab_size", "answers", "steps", "k"),
    [
        ("vllm_logs_20", "generated", MINI, 30, 12, 20),
        ("vllm_logs_256", "generated", MINI, 3, 6, 256),
        ("vllm_prompt_logs", "prompt", MINI, 3, 39, 20),
        ("vllm_chat", "generated", MINI, 1, 8, 20),
        ("llama_logs_20", "generated", SMOLLM2, 10, 12, 20),
        ("llama_logs_256", "generated", SMOLLM2, 1, 6, 256),
    ],
)
def test_logs_are_read_whole(
    name: str, part: str, vocab_size: int, answers: int, steps: int, k: int
) -> None:
    log = log_of(name, part, vocab_size)
    assert (log.answers, log.k, log.excluded) == (answers, k, {})
    assert log.given_ids
    assert [len(of_answer) for of_answer in log.trajectories.values()] == [steps] * answers


def test_llama_cpps_sums_are_judged_with_the_vocabulary_only() -> None:
    """Its float32 sum over the vocabulary is off by more than the printed values.

    Stage prompts reads a log without the vocabulary.
    """
    (steps,) = log_of("llama_logs_256", vocab_size=SMOLLM2).trajectories.values()
    assert 1.000001 < max(step.mass for step in steps) < 1.0001
    path = SAMPLES / "llama_logs_256.jsonl.gz"
    assert read_log(path, {"part": "generated", "error": None}, 1).answers == 1


def test_the_values_are_those_of_the_model() -> None:
    """Within the error that the reader gives the log: float32 passes of the embedded target."""
    model = AutoModelForCausalLM.from_pretrained("assets/mini/large", dtype=torch.float32)
    for name in ("vllm_logs_20", "vllm_logs_256"):
        log = log_of(name)
        columns = stacked(log.trajectories)
        begin = 0
        for line in lines(name):
            prompt, answer = line["request"]["prompt"], answer_ids(line)
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            ours = torch.log_softmax(logits.double(), -1).numpy()
            rows = slice(begin, begin + len(answer))
            begin += len(answer)
            assert columns["token_id"][rows].tolist() == answer == ours.argmax(1).tolist()
            theirs = columns["log_probs"][rows]
            there = np.take_along_axis(ours, columns["top_ids"][rows], axis=1)
            assert np.abs(theirs - there).max() <= log.error
        assert begin == len(columns["token_id"])


@pytest.mark.parametrize(
    "name", ["vllm_alone", "vllm_draft", "vllm_ngram", "vllm_logs_20", "llama_alone", "llama_ngram"]
)
def test_answers_keep_the_tokens_that_the_engine_read_and_wrote(name: str) -> None:
    answers = read_asked(SAMPLES / f"{name}.jsonl.gz")
    rows = lines(name)
    assert [answer.name for answer in answers] == [row["custom_id"] for row in rows]
    for answer, row in zip(answers, rows, strict=True):
        assert answer.prompt == row["request"]["prompt"]
        assert answer.tokens == answer_ids(row)


def test_drafts_changed_no_text() -> None:
    for runs in (("vllm_alone", "vllm_draft", "vllm_ngram"), ("llama_alone", "llama_ngram")):
        texts = [[answer_ids(line) for line in lines(name)] for name in runs]
        assert all(text == texts[0] for text in texts)
