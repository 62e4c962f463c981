"""Spec-Bench's formats: question files as prompts, answer files from decoded answers.

A question is {"question_id", "category", "turns"}; the first turn is the prompt. An answer is
{"question_id", "answer_id", "model_id", "choices", "tstamp"}, its choice holding for each turn
the text, decoding_steps, new_tokens, wall_time and accept_lengths (tokens emitted by each call).
The tstamp is 0: files of this project carry no dates.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.artifacts import slug


def as_chat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question in UltraChat's schema: prompt, prompt_id, messages; and its category."""
    first = row["turns"][0] if row["turns"] else None
    return {
        "prompt": first,
        "prompt_id": str(row["question_id"]),
        "messages": [{"role": "user", "content": first}],
        "category": row.get("category") or "question",
    }


def write_answers(
    folder: Path,
    runs: Sequence[str],
    shards: Sequence[Mapping[str, Any]],
    decode: Callable[[list[int]], str],
) -> None:
    """Write a file of answers for each run.

    Args:
        folder: made when it is missing.
        runs: names of the runs.
        shards: of each prompt its rows of "data", "calls" and "timings/runs".
        decode: turns tokens into text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for at, name in enumerate(runs):
        lines = [
            json.dumps(_answer(shard, at, name, decode), ensure_ascii=False)
            for shard in shards
            if "data" in shard
        ]
        (folder / f"{slug(name)}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _answer(
    shard: Mapping[str, Any], run: int, name: str, decode: Callable[[list[int]], str]
) -> dict[str, Any]:
    data, timing = shard["data"][run], shard["timings/runs"][run]
    calls = [call for call in shard["calls"] if call["run"] == run]
    question = data["prompt_id"]
    return {
        "question_id": int(question) if question.isdecimal() else question,
        "answer_id": hashlib.sha256(f"{question}\n{name}".encode()).hexdigest()[:22],
        "model_id": name,
        "choices": [
            {
                "index": 0,
                "turns": [decode(data["token_ids"])],
                "decoding_steps": [len(calls)],
                "new_tokens": [data["n_tokens"]],
                "wall_time": [timing["seconds"]],
                "accept_lengths": [call["emitted"] for call in calls],
            }
        ],
        "tstamp": 0.0,
    }
