"""What a row of a source of prompts asks: its text, its name, and what the user says later."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pipeline.errors import PipelineError
from pipeline.formats import spec_bench


class ExcludedRowError(Exception):
    """A row that is no prompt; its one argument says why."""


def read_row(row: Mapping[str, Any], at: int) -> dict[str, Any]:
    """Return the prompt_id, text and later_turns of a row, and its category as source.

    A row without an id gets one made from its text.

    Raises:
        ExcludedRowError: its text is missing, no string or empty, or its id is none.
        PipelineError: it is of no known schema.
    """
    name: Any
    turns: list[Any]
    category = row.get("category")
    if spec_bench.is_question(row):
        name, turns, category = spec_bench.read_question(row)
    elif "messages" in row:
        said = [turn for turn in row["messages"] or [] if isinstance(turn, Mapping)]
        users = [turn for turn in said if turn.get("role") == "user"]
        if not users:
            raise ExcludedRowError("no user message")
        name, turns = row.get("prompt_id"), [users[0].get("content")]
    else:
        key = next((key for key in ("prompt", "text") if key in row), None)
        if key is None:
            raise PipelineError(
                f"prompts.source: row {at} (from 0) has no text; it has "
                f"{', '.join(row) or 'nothing'}. Expected is text or prompt, or UltraChat's "
                "messages (a list of role and content), or Spec-Bench's question_id and turns"
            )
        name, turns = row.get("prompt_id", row.get("id")), [row[key]]
    if not turns or not all(is_text(turn) for turn in turns):
        raise ExcludedRowError("not a string")
    if not all(turn.strip() for turn in turns):
        raise ExcludedRowError("empty")
    if name is None:
        name = hashlib.sha256(turns[0].encode()).hexdigest()[:16]
    if isinstance(name, int):
        name = str(name)
    if not is_text(name):
        raise ExcludedRowError("not a string")
    found = {"prompt_id": name, "text": turns[0], "later_turns": turns[1:]}
    return found | ({"source": category} if category and is_text(category) else {})


def is_text(value: Any) -> bool:
    """Whether a value is a string that UTF-8 can hold: JSON can write half a character."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
