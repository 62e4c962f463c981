"""Writes the prompts and answers that an engine served, as the tokens that the target reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pipeline.errors import PipelineError
from pipeline.formats.engine_answers import counted
from pipeline.formats.prompt_files import is_text
from pipeline.formats.served import SAMPLING, Served, read_served
from pipeline.models.load import load_tokenizer
from pipeline.models.prompt_tokens import encode, encode_chat
from pipeline.store import columns
from pipeline.store.artifacts import Pending
from pipeline.store.identity import local_path
from pipeline.store.node import Node

UNKNOWN = "\ufffd"  # what engines write for bytes that are no text
CHANGED = "answers whose text does not come back from its tokens: log token ids"
NO_TEXT = "prompts or answers that are no text"
REFUSED = "prompts that the chat template refuses"


def write_served(node: Node, pending: Pending) -> None:
    """Write the prompts and answers of all files, and what was left out of them.

    Raises:
        PipelineError: a file can't be read, or has no answer; or the tokenizer has no template.
    """
    settings = node.settings
    tokenizer = load_tokenizer(settings["model"], settings["model_revision"], "target")
    rows: list[dict[str, Any]] = []
    answers: dict[str, list[int]] = {}
    excluded, noted, sampling = Counter[str](), Counter[str](), dict[str, set[float]]()
    given = 0
    for at, path in enumerate(settings["answers"], start=1):
        local = local_path(path)
        assert local is not None
        found, left_out = read_served(local)
        excluded.update(left_out)
        refusal = None
        for one in found:
            try:
                ids, text = prompt_of(tokenizer, one["request"], node.config)
            except PipelineError as error:
                refusal = error
                excluded[REFUSED] += 1
                continue
            if not ids or not (one["ids"] or is_text(one["text"])):
                excluded[NO_TEXT] += 1
                continue
            for option in SAMPLING:
                if one["request"].get(option) is not None:
                    sampling.setdefault(option, set()).add(one["request"][option])
            given += one["ids"] is not None
            name = one["name"] if one["name"] not in answers else f"{one['name']}@{at}"
            answers[name] = one["ids"] or answer_of(tokenizer, one, noted)
            rows.append(
                {
                    "prompt_id": name,
                    "source": local.name,
                    "source_row": one["line"],
                    "text": text,
                    "later_turns": [],
                    "token_ids": ids,
                    "n_tokens": len(ids),
                }
            )
        if refusal is not None and not rows:
            raise refusal
    if not rows:
        raise PipelineError(f"distributions.answers: no answer is left: {counted(excluded)}")
    pending.write("data", pa.Table.from_pylist(rows, schema=columns.schema("prompts")))
    table = [list(answers), list(answers.values())]
    pending.write("answers", pa.table(table, schema=columns.schema("prompts", "answers")))
    pending.facts |= {
        "answers": len(rows),
        "given_ids": given,
        "excluded": dict(excluded),
        "noted": dict(noted),
        "sampling": {option: sorted(values) for option, values in sampling.items()},
    }
    print(
        f"prompts {node.label}: {len(rows)} answers, {given} with token ids; left out or cut off: "
        f"{counted(excluded)}" + (f"; {counted(noted)}" if noted else ""),
        flush=True,
    )


def prompt_of(tokenizer: Any, request: Served, config: Mapping[str, Any]) -> tuple[list[int], str]:
    """Return the tokens of what was asked, and its text; no tokens where it is no text.

    Raises:
        PipelineError: the chat template does not take it.
    """
    if request.get("prompt_ids"):
        return request["prompt_ids"], tokenizer.decode(request["prompt_ids"])
    asked = request.get("enable_thinking")
    thinking = config["enable_thinking"] if asked is None else asked
    if request.get("messages"):
        messages = [{**one, "content": _text(one.get("content"))} for one in request["messages"]]
        if not all(is_text(one["content"]) for one in messages):
            return [], ""
        ids = encode_chat(tokenizer, messages, enable_thinking=thinking)
        return ids, messages[-1]["content"]
    prompt = request["prompt"]
    if not is_text(prompt):
        return [], ""
    template = config["template"] if request["chat"] is None else "none"
    return encode(tokenizer, [prompt], template, enable_thinking=thinking), prompt


def _text(content: Any) -> Any:
    """Return the text of a message, whose parts are joined; what is no text is returned."""
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        return "".join(part["text"] for part in content)
    return content


def answer_of(tokenizer: Any, one: Served, noted: Counter[str]) -> list[int]:
    """Return the tokens of an answer's text, and the end token where the model ended it."""
    ids: list[int] = tokenizer.encode(one["text"], add_special_tokens=False)
    back = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if back != one["text"] or UNKNOWN in back:
        noted[CHANGED] += 1
    end = tokenizer.eos_token_id
    return ids + ([end] if one["ended"] and end is not None and ids[-1:] != [end] else [])
