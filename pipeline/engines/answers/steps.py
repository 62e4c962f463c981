"""The steps of an engine's answers, in each of the formats that engines write.

| format | who writes it | steps |
|---|---|---|
| chat | vLLM, SGLang, llama.cpp | choices[].logprobs.content[].top_logprobs |
| completions | vLLM, SGLang | choices[].logprobs: tokens, token_logprobs, top_logprobs |
| an engine's own | llama.cpp | as `Engine.logged_entries` returns them |

A token is its id if the engine gives one. Else it is its bytes, with a number that tells it apart
from tokens of the same bytes in the same step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pipeline.core.errors import first_line
from pipeline.engines.engine_base import AnswerError, AnswerPart, mapping
from pipeline.engines.llama_cpp import SAMPLED
from pipeline.engines.registry import ENGINES, engine_of

Token = int | tuple[bytes, int]
Top = list[tuple[Token, float]]
TOKEN_ID = re.compile(r"token_id:(\d+)")  # vLLM, with return_tokens_as_token_ids


class Step(NamedTuple):
    """A step as an engine logs it."""

    line: int  # where it stands
    emitted: Token
    log_prob: float | None  # of the emitted token, as given beside the list; None if it is not
    top: Top  # the most probable tokens and their log-probabilities, in the engine's order
    mass: float = 1.0  # of the whole list, once it is ranked
    wrong: str = ""  # why it can't be read; behind its file and line


StepList = list[Step | None]  # None where the engine logged nothing
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError)  # of values of another form


def logged_steps(part: AnswerPart) -> tuple[StepList, int]:
    """Return the steps of an answer, and the number of echoed prompt tokens before them.

    Raises:
        AnswerError: it has no log-probabilities, or processed ones.
    """
    _check_settings(part)
    if not part.is_choice:
        entries = engine_of(part).logged_entries(part)
        return [_described(entry, part.line) for entry in entries], 0
    logprobs = part.content.get("logprobs") or {}
    steps = StepList()
    if isinstance(logprobs.get("content"), list):
        steps = [_described(entry, part.line) for entry in logprobs["content"]]
    elif isinstance(logprobs.get("tokens"), list):
        steps = _completions(logprobs, part.line)
    elif not logprobs:
        raise AnswerError(f"has no logprobs: {_remedy(part)}")
    echoed = _echoed(part, logprobs, len(steps))
    return steps[echoed:], echoed


def _check_settings(part: AnswerPart) -> None:
    """Check that neither the request nor the answer's settings ask for processed values."""
    request = part.request
    settings = [request, request.get("sampling_params"), request.get("extra_body")]
    answers = part.body, mapping(part.body.get("__verbose"))
    settings += [answer.get("generation_settings") for answer in answers]
    processed = {name: why for engine in ENGINES for name, why in engine.processed.items()}
    for one in map(mapping, settings):
        for name, why in processed.items():
            if one.get(name):
                raise AnswerError(why)


def _remedy(part: AnswerPart) -> str:
    """Say what to ask the endpoint of an answer for."""
    if "message" in part.content or "delta" in part.content:
        return "ask for logprobs=true and top_logprobs=N"
    if "text" in part.content:
        return "ask for logprobs=N"
    return "ask for logprobs=true and top_logprobs=N (chat), logprobs=N (all others)"


def _echoed(part: AnswerPart, logprobs: Mapping[str, Any], steps: int) -> int:
    """Return how many tokens of the prompt stand before those of a choice (echo=true)."""
    usage = part.body.get("usage") or {}
    prompt = part.request.get("prompt")
    size = usage.get("prompt_tokens")
    answer = usage.get("completion_tokens")
    both = type(size) is int and type(answer) is int and steps == size + answer
    own_value = (logprobs.get("token_logprobs") or [0.0])[0]
    top_values = (logprobs.get("top_logprobs") or [0.0])[0]
    unscored = own_value is None and not top_values  # a text's first token
    if not (both or unscored or part.request.get("echo") is True):
        return 0
    if type(size) is not int and isinstance(prompt, list):
        size = len(prompt)
    if type(size) is not int or not 0 <= size <= steps:
        raise AnswerError("echoes its prompt, and does not say how long it is: ask for echo=false")
    return size


def _described(entry: Mapping[str, Any] | None, line: int) -> Step | None:
    """Read a token of the chat format; llama.cpp's own has ids besides."""
    if entry is None:  # of a chunk without log-probabilities
        return None
    try:
        if "top_probs" in entry or "prob" in entry:
            raise AnswerError(SAMPLED)
        return _described_step(entry, line)
    except UNREADABLE as error:
        return _unreadable(line, error)


def _described_step(entry: Mapping[str, Any], line: int) -> Step | None:
    seen = Counter[Token]()
    top = []
    for item in entry["top_logprobs"] or ():  # tokens of the same bytes are told apart by order
        token = _token(item)
        seen[token] += 1
        named = (token[0], seen[token] - 1) if isinstance(token, tuple) else token
        top.append((named, item.get("logprob")))
    return _step(line, _token(entry), entry.get("logprob"), top)


def _completions(logprobs: Mapping[str, Any], line: int) -> StepList:
    tokens = logprobs["tokens"]
    tops = logprobs.get("top_logprobs")
    if not isinstance(tops, list) or len(tops) != len(tokens):
        size = len(tops) if isinstance(tops, list) else "no"
        raise AnswerError(f"has {len(tokens)} tokens and {size} top_logprobs: ask for logprobs=N")
    log_probs = logprobs.get("token_logprobs") or [None] * len(tokens)
    steps = StepList()
    for token, log_prob, top in zip(tokens, log_probs, tops, strict=True):
        try:
            listed = [(_text(name), value) for name, value in (top or {}).items()]
            steps.append(_step(line, _text(token), log_prob, listed))
        except UNREADABLE as error:
            steps.append(_unreadable(line, error))
    return steps


def _step(
    line: int, emitted: Token, log_prob: Any, top: Iterable[tuple[Token, Any]]
) -> Step | None:
    listed = [(token, _number(value)) for token, value in top]
    if not listed:
        return None
    return Step(line, emitted, None if log_prob is None else _number(log_prob), listed)


def _unreadable(line: int, error: Exception) -> Step:
    why = first_line(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
    return Step(line, 0, None, [], wrong=f"holds {why:.80}")


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
        raise ValueError(f"a token id that is {value!r:.40}")
    return value


def _number(value: Any) -> float:
    number = type(value) in (int, float) and value <= 1e30  # not so of NaN
    if not number or (isinstance(value, int) and value < -1e30):
        raise ValueError(f"a log-probability that is {value!r:.40}")
    return value
