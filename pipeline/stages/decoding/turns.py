"""The later turns of a conversation: Spec-Bench asks some of its questions in two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.decoding.loop import Answer

Decode = Callable[[int, dict[str, Any]], Answer]


def decode_later_turns(
    prompt: Mapping[str, Any],
    answers: Sequence[Sequence[int]],
    decode: Decode,
    encode: Callable[[list[str]], list[int]],
    text: Callable[[Sequence[int]], str],
) -> list[dict[str, Any]]:
    """Return the later turns of a prompt, each run going on from its own answers.

    Args:
        prompt: its row: prompt_id, text, later_turns.
        answers: the tokens with which each run answered the first turn.
        decode: decodes a prompt (prompt_id and token_ids) with a run, by its index.
        encode: turns a conversation into tokens.
        text: turns tokens into text.

    Raises:
        PipelineError: a conversation does not fit into a model's context.
    """
    rows = []
    for run, first in enumerate(answers):
        said, tokens = [prompt["text"]], first
        for number, turn in enumerate(prompt["later_turns"], start=2):
            said += [text(tokens), turn]
            name = f"{prompt['prompt_id']} turn {number}"  # its own sampling noise
            answer = decode(run, {"prompt_id": name, "token_ids": encode(said)})
            tokens = answer.tokens
            rows.append(
                {
                    "run": run,
                    "token_ids": answer.tokens,
                    "emitted": [call.emitted for call in answer.calls],
                    "seconds": answer.seconds,
                }
            )
    return rows
