"""Spec-Bench's files of answers, from decoded answers; `prompt_files` reads its questions.

An answer is {"question_id", "category", "answer_id", "model_id",
"choices", "tstamp"}, its choice holding the text, decoding_steps, new_tokens and wall_time of each
turn, and accept_lengths, the tokens that each call of all turns emitted. The tstamp is 0: files
of this project carry no dates. Spec-Bench's evaluation/speed.py reads these files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median_high
from typing import Any

from pipeline.store.node import slug


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
        shards: of each prompt, in the order of its source, its rows of "data", "calls" and
            "timings/runs", and of "later turns" (see `pipeline.stages.decoding.compute`).
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
    data = shard["data"][run]
    first = {
        "token_ids": data["token_ids"],
        "seconds": median_high(
            row["seconds"] for row in shard["timings/runs"] if row["run"] == run
        ),
        "emitted": [call["emitted"] for call in shard["calls"] if call["run"] == run],
    }
    turns = [first, *(turn for turn in shard.get("later turns", []) if turn["run"] == run)]
    question = data["prompt_id"]
    return {
        "question_id": int(question) if question.isdecimal() else question,
        "category": data["source"],
        "answer_id": hashlib.sha256(f"{question}\n{name}".encode()).hexdigest()[:22],
        "model_id": name,
        "choices": [
            {
                "index": 0,
                "turns": [decode(turn["token_ids"]) for turn in turns],
                "decoding_steps": [len(turn["emitted"]) for turn in turns],
                "new_tokens": [len(turn["token_ids"]) for turn in turns],
                "wall_time": [turn["seconds"] for turn in turns],
                "accept_lengths": [count for turn in turns for count in turn["emitted"]],
            }
        ],
        "tstamp": 0.0,
    }
