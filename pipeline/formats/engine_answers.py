"""The steps of an engine's answers, in each of the formats that engines write.

| format | who writes it | steps |
|---|---|---|
| chat | vLLM, SGLang, llama.cpp | choices[].logprobs.content[].top_logprobs |
| completions | vLLM, SGLang | choices[].logprobs: tokens, token_logprobs, top_logprobs |
| prompt | vLLM | prompt_logprobs, of an answer or of a choice |
| native | llama.cpp | completion_probabilities[].top_logprobs |
| native | SGLang | meta_info: output_token_logprobs, output_top_logprobs; input_... of the prompt |

docs/engine_logs.md names the sources. A token is an id where the engine gives one, else its bytes
and which of the equal ones of its step it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pipeline.errors import first_line

Token = int | tuple[bytes, int]
Top = list[tuple[Token, float]]
TOKEN_ID = re.compile(r"token_id:(\d+)")  # vLLM, with return_tokens_as_token_ids


class FormatError(ValueError):
    """What is wrong with an answer, to be said behind its file and line."""


class Step(NamedTuple):
    """A step as an engine logs it.

    Attributes:
        line: where it stands.
        emitted: the token.
        own: the log-probability given with it, None where there is none.
        top: the most probable tokens and their log-probabilities, in the order of the engine.
        mass: of the whole list, once `engine_logs` has ranked it.
    """

    line: int
    emitted: Token
    own: float | None
    top: Top
    mass: float = 1.0


class Piece(NamedTuple):
    """A part of an answer, or all of it.

    Attributes:
        answer: its name; None is what a stream without ids goes on with.
        steps: None where the engine logged nothing.
        finished: whether nothing follows.
        tokens: how many a stream says that the answer has so far; 0 where it does not.
        one_pass: whether llama.cpp wrote it, whose softmax adds the vocabulary up one by one.
    """

    answer: str | None
    steps: list[Step | None]
    finished: bool = True
    tokens: int = 0
    one_pass: bool = False


def pieces(
    body: Mapping[str, Any], name: Any, line: int, streamed: bool, part: str
) -> list[Piece] | str:
    """Return the parts of answers in one object of a log, or why it is left out.

    Args:
        body: the object.
        name: its custom_id, None where it has none.
        line: where it stands.
        streamed: whether it is an event of a stream.
        part: generated, or prompt for the texts that were re-scored.

    Raises:
        FormatError: it has no log-probabilities, or processed ones.
    """
    chunk = streamed or str(body.get("object", "")).endswith(".chunk")
    try:
        if isinstance(body.get("choices"), list):
            own = name or body.get("id")
            told = _whole((body.get("usage") or {}).get("completion_tokens")) if chunk else 0
            found = [
                _choice(choice, body, own, line, chunk, part)._replace(tokens=told)
                for choice in body["choices"]
            ]
            if not found and own:  # the last event of a stream, with its usage
                return [Piece(str(own), [], False, tokens=told)]
            return found
        if isinstance(body.get("meta_info"), Mapping):
            return [_sglang(body["meta_info"], name, line, streamed, part)]
        if "completion_probabilities" in body or {"content", "stop"} <= set(body):
            return [_llama(body, name, line, chunk, part)]
    except FormatError:
        raise
    except KeyError as error:
        raise FormatError(f"holds a token without {error.args[0]}") from error
    except (IndexError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"can't be read as an answer: {first_line(error)}") from error
    return "objects that are no answers"


def _choice(
    choice: Mapping[str, Any], body: Mapping[str, Any], own: Any, line: int, chunk: bool, part: str
) -> Piece:
    index = choice.get("index") or 0
    answer = (str(own) if own else f"line-{line}") + (f"#{index}" if index else "")
    finished = choice.get("finish_reason") is not None or not chunk
    if part == "prompt":
        scored = choice.get("prompt_logprobs") or body.get("prompt_logprobs")
        if scored is None:
            raise FormatError("has no prompt_logprobs: ask for prompt_logprobs=N")
        return Piece(
            answer, [_scored(at, line) if at else None for at in scored[1:]]
        )  # [0] has none
    _refuse_backend(body.get("__verbose"))
    found = choice.get("logprobs") or {}
    if isinstance(found.get("content"), list):
        content = found["content"]
        steps = [_described(entry, line) for entry in content]
        tops = [step and step.top for step in steps]
        tokens = {step.emitted for step in steps if step}
        if chunk and len(tokens) > 1 and all(top == tops[0] for top in tops):
            raise FormatError(
                f"holds {len(tops)} tokens that repeat one list of log-probabilities, as SGLang "
                "streams them: log without stream"
            )
        return Piece(answer, steps, finished, one_pass=any("id" in entry for entry in content))
    if isinstance(found.get("tokens"), list):
        return Piece(answer, _completions(found, line), finished)
    text = choice.get("text") or (choice.get("delta") or {}).get("content")
    if not found and (not chunk or text):
        raise FormatError(
            "has no logprobs: ask for logprobs=true and top_logprobs=N (chat), logprobs=N "
            "(completions)"
        )
    return Piece(answer, [], finished)


def _step(line: int, emitted: Token, own: Any, top: Iterable[tuple[Token, Any]]) -> Step:
    own = None if own is None else _number(own)
    return Step(line, emitted, own, [(token, _number(value)) for token, value in top])


def _described(entry: Mapping[str, Any], line: int) -> Step | None:
    """Read a token of the chat format; llama.cpp's own has ids besides."""
    if "top_probs" in entry or "prob" in entry:
        raise FormatError(SAMPLED)
    top = entry["top_logprobs"]
    if not top:
        return None
    seen = Counter[Token]()
    named: list[Token] = []
    for token in map(_token, top):  # those of the same bytes are told apart by their order
        named.append((token[0], seen[token]) if isinstance(token, tuple) else token)
        seen[token] += 1
    values = [item["logprob"] for item in top]
    return _step(line, _token(entry), entry.get("logprob"), zip(named, values, strict=True))


def _completions(found: Mapping[str, Any], line: int) -> list[Step | None]:
    tokens, tops = found["tokens"], found.get("top_logprobs")
    if not isinstance(tops, list) or len(tops) != len(tokens):
        raise FormatError(
            f"has {len(tokens)} tokens and "
            f"{len(tops) if isinstance(tops, list) else 'no'} top_logprobs: ask for logprobs=N"
        )
    owns = found.get("token_logprobs") or [None] * len(tokens)
    return [
        _step(line, _text(token), own, [(_text(name), value) for name, value in top.items()])
        if top
        else None
        for token, own, top in zip(tokens, owns, tops, strict=True)
    ]


def _scored(entry: Mapping[str, Any], line: int) -> Step:
    """Read a position of vLLM's prompt_logprobs: the prompt's own token stands first."""
    top = [(_id(name), item["logprob"]) for name, item in entry.items()]
    return _step(line, *top[0], top)


def _llama(body: Mapping[str, Any], name: Any, line: int, chunk: bool, part: str) -> Piece:
    if part == "prompt":
        raise FormatError("has no prompt_logprobs: llama.cpp does not give any")
    if (body.get("generation_settings") or {}).get("post_sampling_probs"):
        raise FormatError(SAMPLED)
    _refuse_backend(body)
    found = body.get("completion_probabilities")
    if found is None and not chunk:
        raise FormatError("has no completion_probabilities: ask for n_probs=N")
    answer = str(name) if name else None if chunk else f"line-{line}"
    steps = [_described(entry, line) for entry in found or []]
    told = _whole(body.get("tokens_predicted")) if chunk else 0
    return Piece(answer, steps, bool(body.get("stop", True)), told, one_pass=True)


def _sglang(info: Mapping[str, Any], name: Any, line: int, streamed: bool, part: str) -> Piece:
    if streamed:
        raise FormatError("is of a stream of SGLang's /generate: log it without stream")
    side = "input" if part == "prompt" else "output"
    owns, tops = info.get(f"{side}_token_logprobs"), info.get(f"{side}_top_logprobs")
    if not isinstance(owns, list) or not isinstance(tops, list) or len(owns) != len(tops):
        raise FormatError(
            f"has no {side}_token_logprobs with as many {side}_top_logprobs: ask for "
            "return_logprob=true and top_logprobs_num=N"
            + (" and logprob_start_len=0" if part == "prompt" else "")
        )
    steps = [
        _step(line, _id(own[1]), own[0], [(_id(item[1]), item[0]) for item in top]) if top else None
        for own, top in zip(owns, tops, strict=True)
    ]
    first = 1 if part == "prompt" else 0  # nothing comes before the first token of a prompt
    return Piece(str(name or info.get("id") or f"line-{line}"), steps[first:])


SAMPLED = "holds probabilities after sampling: log with post_sampling_probs=false"


def _refuse_backend(body: Mapping[str, Any] | None) -> None:
    """Refuse an answer that asked llama.cpp for sampling in the backend.

    Some versions then take the softmax over the sampled candidates only.
    """
    if ((body or {}).get("generation_settings") or {}).get("backend_sampling"):
        raise FormatError(
            "was sampled in the backend, where the softmax may be over the sampled candidates "
            "only: log with backend_sampling=false"
        )


def _token(entry: Mapping[str, Any]) -> Token:
    if "id" in entry:
        return _id(entry["id"])
    raw = entry.get("bytes")
    if TOKEN_ID.fullmatch(entry["token"]) or not isinstance(raw, list):
        return _text(entry["token"])
    return bytes(raw), 0


def _text(text: str) -> Token:
    found = TOKEN_ID.fullmatch(text)
    return int(found[1]) if found else (text.encode(errors="surrogatepass"), 0)


def _id(value: Any) -> int:
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if type(value) is not int or value < 0:
        raise FormatError(f"holds a token id that is {value!r:.40}")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise FormatError(f"holds a log-probability that is {value!r:.40}")
    return value


def _whole(value: Any) -> int:
    return value if type(value) is int else 0
