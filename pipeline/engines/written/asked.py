"""The answers of vLLM or llama.cpp that `pipeline.ask` saved, as token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pipeline.engines.written.answers import FormatError, Part, counted, read_answers
from pipeline.errors import PipelineError


class Asked(NamedTuple):
    """A prompt, and the answer to it.

    Attributes:
        name: of the prompt.
        prompt: its tokens.
        tokens: of the answer.
        temperature: of its sampling.
    """

    name: str
    prompt: list[int]
    tokens: list[int]
    temperature: float


def read_asked(path: Path) -> list[Asked]:
    """Return the answers of a file, in its order; those without a token are left out.

    Raises:
        PipelineError: the file can't be read, mixes two models, lacks token ids, or has no answer.
    """
    answers, _, excluded = read_answers(path, _asked)
    found = [answer for answer in answers.values() if answer is not None and answer.tokens]
    if not found:
        raise PipelineError(
            f"{path} has no answer with its request; left out: {counted(excluded)}: give one that "
            "`python -m pipeline.ask URL` saved"
        )
    return found


def _asked(part: Part) -> Asked | None:
    """Return an answer with its prompt; None for another choice of one."""
    if part.content.get("index"):
        return None
    tokens = part.content.get("token_ids" if part.place == "choices" else "tokens")
    prompt, temperature = part.request.get("prompt"), part.request.get("temperature")
    if not prompt or not _are_ids(prompt) or not isinstance(temperature, int | float):
        raise FormatError(
            "has no request with the token ids of its prompt and a temperature, as "
            "`python -m pipeline.ask URL` saves it"
        )
    if tokens is None or not _are_ids(tokens):
        raise FormatError(f"has tokens that are no ids: {tokens!r:.40}")
    return Asked(part.answer, prompt, tokens, temperature)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int and token >= 0 for token in value)
