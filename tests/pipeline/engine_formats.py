"""Stored steps written as each engine writes its answers, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from analysis.topk import TopK
from pipeline.engines.logs import EngineLog, stacked

Answer = list[tuple[int, list[tuple[int, float]]]]  # emitted token, and the top tokens of each step


def vllm_chat(name: str, answer: Answer, ids: bool = True) -> list[str]:
    """vLLM, chat: the emitted token first, one list of as many as were asked for."""

    def entry(token: int, value: float) -> dict[str, Any]:
        text = f"token_id:{token}" if ids else f"<{token}>"
        return {"token": text, "logprob": max(value, -9999.0), "bytes": list(text.encode())}

    content = []
    for token, top in answer:
        values = dict([(token, dict(top).get(token, top[-1][1] - 1.0)), *top])
        listed = [entry(*pair) for pair in list(values.items())[: len(top)]]
        content.append({**entry(token, values[token]), "top_logprobs": listed})
    choice = {"index": 0, "message": {"role": "assistant", "content": "..."},
              "logprobs": {"content": content}, "finish_reason": "length"}  # fmt: skip
    return [json.dumps({"id": f"chatcmpl-{name}", "object": "chat.completion", "model": "m",
                        "choices": [choice], "usage": {"total_tokens": 9}})]  # fmt: skip


def vllm_completions(name: str, answer: Answer) -> list[str]:
    """vLLM, completions: an object by token, and one more where the emitted is not in the top."""
    tokens, tops = [], []
    for token, top in answer:
        value = dict(top).get(token, top[-1][1] - 1.0)
        values = dict([(token, value), *top])
        tokens.append(f"token_id:{token}")
        tops.append({f"token_id:{t}": v for t, v in values.items()})
    own = [top[token] for token, top in zip(tokens, tops, strict=True)]
    logprobs = {"text_offset": [0] * len(tokens), "token_logprobs": own, "tokens": tokens,
                "top_logprobs": tops}  # fmt: skip
    choice = {"index": 0, "text": "...", "logprobs": logprobs, "finish_reason": "length"}
    return [json.dumps({"id": f"cmpl-{name}", "object": "text_completion", "model": "m",
                        "choices": [choice]})]  # fmt: skip


def llama_completion(_: str, answer: Answer) -> list[str]:
    """llama.cpp, /completion."""

    def entry(token: int, value: float) -> dict[str, Any]:
        value = float(np.finfo(np.float32).min) if np.isinf(value) else value
        return {"id": token, "token": ".", "bytes": [46], "logprob": value}

    found = [
        {**entry(token, dict(top).get(token, top[-1][1] - 1.0)),
         "top_logprobs": [entry(*pair) for pair in top]}
        for token, top in answer
    ]  # fmt: skip
    return [json.dumps({"index": 0, "content": "...", "tokens": [], "id_slot": 0, "stop": True,
                        "model": "m", "completion_probabilities": found})]  # fmt: skip


ENGINES: dict[str, Callable[[str, Answer], list[str]]] = {
    "vllm chat": vllm_chat,
    "vllm completions": vllm_completions,
    "llama.cpp completion": llama_completion,
}


def answers(
    dist: TopK, emitted: np.ndarray, starts: np.ndarray, k: int, digits: int
) -> Iterator[tuple[str, Answer]]:
    """Yield the answers of stored trajectories with k log-probabilities a step, rounded."""
    values = np.round(dist.log_probs[:, :k], digits)
    steps = [
        (int(token), list(zip(ids.tolist(), row.tolist(), strict=True)))
        for token, ids, row in zip(emitted, dist.ids[:, :k], values, strict=True)
    ]
    for at, (begin, end) in enumerate(zip(starts, [*starts[1:], len(steps)], strict=True)):
        yield f"answer-{at}", steps[begin:end]


def read_back(log: EngineLog, vocab_size: int) -> TopK:
    """Return a log with the engine's ids as distributions."""
    found = stacked(log.trajectories)
    return TopK.from_log_probs(found["top_ids"], found["log_probs"], log.error, vocab_size)
