"""Calls predicted along an engine's answers, beside those that the engine counted, one by one.

vllm_draft.jsonl was written by vLLM 0.32 on the CPU: the embedded pair, drafts of 5, at most 64
tokens, temperature 0, --per-request-spec-decode-metrics detailed.
"""

from __future__ import annotations

import json

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from analysis.statistics.trajectories import Trajectories, calls_along
from pipeline.engines.written.counts import read_counts
from tests.pipeline.test_engine_counts import FILES

ANSWERS, LENGTH = FILES / "vllm_draft.jsonl", 5


def test_replayed_from_the_second_token_every_call_is_the_engines() -> None:
    """But the last one of an answer: vLLM counts accepted tokens behind its end."""
    drafter = AutoModelForCausalLM.from_pretrained("assets/mini/drafter", dtype=torch.float32)
    answers = [json.loads(line) for line in ANSWERS.read_text().splitlines()]
    cut, calls = 0, 0
    for answer in answers:
        (choice,) = answer["choices"]
        prompt, tokens = choice["prompt_token_ids"], choice["token_ids"]
        counts = answer["metrics"]["speculative_decoding"]
        theirs = counts["per_step_accepted"] or []
        with torch.inference_mode():
            logits = drafter(torch.tensor([prompt + tokens])).logits[0]
        drafted = logits.argmax(-1)[len(prompt) - 1 : -1].numpy()
        steps = Trajectories.from_positions(np.arange(len(tokens)))
        _, _, ours, emitted = calls_along(drafted == np.array(tokens), steps, LENGTH)
        assert emitted.sum() == len(tokens) - 1
        assert ours[:-1].tolist() == theirs[:-1]
        assert not theirs or ours[-1] <= theirs[-1]
        cut += bool(theirs) and bool(ours[-1] < theirs[-1])
        calls += len(theirs)
    assert (len(answers), calls, cut) == (12, 255, 2)
    counted = read_counts(ANSWERS)
    assert counted.passes <= calls <= counted.most_passes
