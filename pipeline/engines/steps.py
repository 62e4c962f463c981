"""The steps of an engine's answers, in each of the formats that engines write.

| format | who writes it | steps |
|---|---|---|
| chat | vLLM, llama.cpp | choices[].logprobs.content[].top_logprobs |
| completions | vLLM | choices[].logprobs: tokens, token_logprobs, top_logprobs |
| native | llama.cpp | completion_probabilities[].top_logprobs |

A token is an id where the engine gives one, else its bytes and which of the equal ones of its step
it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pipeline.engines.answers import FormatError, Part

Token = int | tuple[bytes, int]
Top = list[tuple[Token, float]]
TOKEN_ID = re.compile(r"token_id:(\d+)")  # vLLM, with return_tokens_as_token_ids
SAMPLED = "holds probabilities after sampling: log with post_sampling_probs=false"


class Step(NamedTuple):
    """A step as an engine logs it."""

    line: int  # where it stands
    emitted: Token
    own: float | None  # the log-probability given with it, None where there is none
    top: Top  # the most probable tokens and their log-probabilities, in the engine's order
    mass: float = 1.0  # of the whole list, once `logs` has ranked it


StepList = list[Step | None]  # None where the engine logged nothing


def logged_steps(part: Part) -> StepList:
    """Return the steps of an answer.

    Raises:
        FormatError: it has no log-probabilities, or processed ones.
    """
    settings = part.body.get("generation_settings") or {}  # llama.cpp's
    verbose = (part.body.get("__verbose") or {}).get("generation_settings") or {}
    if settings.get("backend_sampling") or verbose.get("backend_sampling"):
        raise FormatError(
            "was sampled in the backend, where the softmax may be over the sampled candidates "
            "only: log with backend_sampling=false"
        )
    if not part.is_choice:
        if settings.get("post_sampling_probs"):
            raise FormatError(SAMPLED)
        entries = part.body.get("completion_probabilities")
        if entries is None:
            raise FormatError("has no completion_probabilities: ask for n_probs=N")
        return [_described(entry, part.line) for entry in entries]
    logprobs, steps = part.content.get("logprobs") or {}, StepList()
    if isinstance(logprobs.get("content"), list):
        steps = [_described(entry, part.line) for entry in logprobs["content"]]
    elif isinstance(logprobs.get("tokens"), list):
        steps = _completions(logprobs, part.line)
    elif not logprobs:
        raise FormatError(
            "has no logprobs: ask for logprobs=true and top_logprobs=N (chat), logprobs=N "
            "(completions)"
        )
    return steps[_echoed(part, logprobs, len(steps)) :]


def _echoed(part: Part, logprobs: Mapping[str, Any], steps: int) -> int:
    """Return how many tokens of the prompt stand before those of a choice (echo=true)."""
    usage, prompt = part.body.get("usage") or {}, part.request.get("prompt")
    size, answer = usage.get("prompt_tokens"), usage.get("completion_tokens")
    both = type(size) is int and type(answer) is int and steps == size + answer
    unscored = (logprobs.get("token_logprobs") or [0.0])[0] is None  # a text's first token
    if not (both or unscored or part.request.get("echo") is True):
        return 0
    if type(size) is not int and isinstance(prompt, list):
        size = len(prompt)
    if type(size) is not int or not 0 <= size <= steps:
        raise FormatError("echoes its prompt, and does not say how long it is: ask for echo=false")
    return size


def by_llama(part: Part) -> bool:
    """Whether llama.cpp wrote an answer, whose softmax adds the vocabulary up one by one."""
    content = (part.content.get("logprobs") or {}).get("content") or []
    return not part.is_choice or any("id" in entry for entry in content)


def _described(entry: Mapping[str, Any], line: int) -> Step | None:
    """Read a token of the chat format; llama.cpp's own has ids besides."""
    if "top_probs" in entry or "prob" in entry:
        raise FormatError(SAMPLED)
    seen, top = Counter[Token](), []
    for item in entry["top_logprobs"] or ():  # tokens of the same bytes are told apart by order
        token = _token(item)
        seen[token] += 1
        named = (token[0], seen[token] - 1) if isinstance(token, tuple) else token
        top.append((named, item["logprob"]))
    return _step(line, _token(entry), entry.get("logprob"), top)


def _completions(logprobs: Mapping[str, Any], line: int) -> StepList:
    tokens, tops = logprobs["tokens"], logprobs.get("top_logprobs")
    if not isinstance(tops, list) or len(tops) != len(tokens):
        size = len(tops) if isinstance(tops, list) else "no"
        raise FormatError(f"has {len(tokens)} tokens and {size} top_logprobs: ask for logprobs=N")
    owns = logprobs.get("token_logprobs") or [None] * len(tokens)
    return [
        _step(
            line, _text(token), own, [(_text(name), value) for name, value in (top or {}).items()]
        )
        for token, own, top in zip(tokens, owns, tops, strict=True)
    ]


def _step(line: int, emitted: Token, own: Any, top: Iterable[tuple[Token, Any]]) -> Step | None:
    listed = [(token, _number(value)) for token, value in top]
    if not listed:
        return None
    return Step(line, emitted, None if own is None else _number(own), listed)


def _token(entry: Mapping[str, Any]) -> Token:
    if "id" in entry:
        return _id(entry["id"])
    raw = entry.get("bytes")
    if TOKEN_ID.fullmatch(entry["token"]) or not isinstance(raw, list):
        return _text(entry["token"])
    return bytes(raw), 0


def _text(text: str) -> Token:
    match = TOKEN_ID.fullmatch(text)
    return int(match[1]) if match else (text.encode(errors="surrogatepass"), 0)


def _id(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise FormatError(f"holds a token id that is {value!r:.40}")
    return value


def _number(value: Any) -> float:
    number = type(value) in (int, float) and value <= 1e30  # not so of NaN
    if not number or (isinstance(value, int) and value < -1e30):
        raise FormatError(f"holds a log-probability that is {value!r:.40}")
    return value
