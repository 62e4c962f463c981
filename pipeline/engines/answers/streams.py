"""Joins the chunks of streamed answers.

| stream | a chunk is told by | its stream by |
|---|---|---|
| chat, completions, vLLM's generate | `object`; no usage, finish_reason or choices | id |
| llama.cpp's /completion | stop false; the last one has no tokens | id_slot, index |
| SGLang's /generate | finish_reason null; each one repeats all that came before | meta_info.id |

Lists of tokens and log-probabilities grow from chunk to chunk. Of anything else, such as usage,
timings and metrics, the last value counts; texts are not joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from pipeline.engines.answers.json_text import UnreadableFileError

NATIVE_LISTS = ("tokens", "completion_probabilities")


@dataclass
class _Stream:
    line: int  # of its first chunk
    number: int  # of this chunk in its line
    body: dict[str, Any] = field(default_factory=dict)  # the last value of everything else
    chunks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by choice
    finished: set[str] = field(default_factory=set)  # choices


class Streams:
    """Collects chunks until the end of a file; streams may be interleaved.

    `events`: the file holds server-sent events, so that every object with choices is a chunk.
    """

    def __init__(self, events: bool) -> None:
        self._events = events
        self._open: dict[str, _Stream] = {}
        self._ended: list[_Stream] = []

    def take(self, line: int, number: int, value: Mapping[str, Any]) -> bool:
        """Take an object if it is a chunk, and say whether it is one."""
        if isinstance(value.get("choices"), list):
            return self._take_choices(line, number, value)
        if isinstance(value.get("meta_info"), Mapping):
            return self._take_sglang(line, number, value)
        if {"content", "stop"} <= set(value):
            return self._take_native(line, number, value)
        return False

    def answers(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Yield each answer with the line and number of its first chunk, in the file's order.

        Raises:
            UnreadableFileError: the chunks of several streams can't be told apart.
        """
        streams = [*self._ended, *self._open.values()]
        for stream in sorted(streams, key=lambda one: (one.line, one.number)):
            if "meta_info" in stream.body:
                whole = stream.body
            elif "choices" in stream.body:
                choices = [_choice(chunks) for chunks in stream.chunks.values()]
                whole = stream.body | {"choices": choices}
            else:
                whole = _native(stream)
            yield stream.line, stream.number, whole

    def _stream(self, key: str, line: int, number: int, anew: bool) -> _Stream:
        if anew and key in self._open:
            self._ended.append(self._open.pop(key))
        return self._open.setdefault(key, _Stream(line, number))

    def _take_choices(self, line: int, number: int, value: Mapping[str, Any]) -> bool:
        choices = value["choices"]
        name = value.get("id") or value.get("request_id")
        if not all(isinstance(choice, dict) for choice in choices):
            return False
        is_chunk = self._events or str(value.get("object")).endswith(".chunk")
        if not is_chunk and (name is None or _is_whole(value)):
            return False
        key = f"choices {name}"
        by_index = {str(choice.get("index")): choice for choice in choices}
        finished = self._open[key].finished if key in self._open else set()
        again = any(index in finished and _has_tokens(one) for index, one in by_index.items())
        stream = self._stream(key, line, number, anew=again)
        stream.body |= {"choices": []} | _without_none(value)
        for index, choice in by_index.items():
            stream.chunks.setdefault(index, []).append(choice)
            if choice.get("finish_reason") is not None:
                stream.finished.add(index)
        return True

    def _take_sglang(self, line: int, number: int, value: Mapping[str, Any]) -> bool:
        meta = value["meta_info"]
        key = f"SGLang {meta.get('id')}"
        unfinished = meta.get("finish_reason", "") is None
        if not unfinished and key not in self._open:
            return False
        stream = self._stream(key, line, number, anew=False)
        stream.body |= value
        if not unfinished:
            self._ended.append(self._open.pop(key))
        return True

    def _take_native(self, line: int, number: int, value: Mapping[str, Any]) -> bool:
        key = f"llama.cpp {value.get('id_slot')} {value.get('index')}"
        predicted = value.get("tokens_predicted")
        last = bool(value["stop"])
        if last and (key not in self._open or any(value.get(name) for name in NATIVE_LISTS)):
            return False
        anew = False
        if not last and key in self._open and isinstance(predicted, int):
            before = self._open[key].body.get("tokens_predicted")
            anew = isinstance(before, int) and before > 0 and predicted < max(2, before)
        stream = self._stream(key, line, number, anew)
        stream.body |= _without_none(value)
        stream.chunks.setdefault("", []).append(dict(value))
        if last:
            self._ended.append(self._open.pop(key))
        return True


def _is_whole(value: Mapping[str, Any]) -> bool:
    """Whether an answer has what its last chunk brings: its counts, and why each choice ended."""
    choices = value["choices"]
    ended = all(choice.get("finish_reason", "") is not None for choice in choices)
    return bool(choices) and ended and value.get("usage") is not None


def _choice(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a choice; a token without log-probabilities among others with some has null."""
    if any(_is_described(chunk) for chunk in chunks):
        for chunk in chunks:
            if _has_tokens(chunk) and not chunk.get("logprobs"):
                chunk["logprobs"] = {"content": [None]}
    whole: dict[str, Any] = reduce(_joined, chunks, {})
    return whole


def _native(stream: _Stream) -> dict[str, Any]:
    tokens: list[Any] = []
    entries: list[Any] = []
    for chunk in stream.chunks[""]:
        new = _list(chunk.get("tokens"))
        logged = _list(chunk.get("completion_probabilities"))
        tokens += new
        entries += logged or [None] * len(new)
    predicted = stream.body.get("tokens_predicted")
    if isinstance(predicted, int) and max(len(tokens), len(entries)) > predicted:
        raise UnreadableFileError(
            f"holds {len(tokens)} tokens of one stream, from line {stream.line} on, that counts "
            f"{predicted}: several streams of one slot are mixed, give each its own file"
        )
    whole = stream.body | {"tokens": tokens}
    if any(entry is not None for entry in entries):
        whole["completion_probabilities"] = entries
    return whole


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_described(choice: Mapping[str, Any]) -> bool:
    """Whether a chunk has log-probabilities in the chat format."""
    logprobs = choice.get("logprobs")
    return isinstance(logprobs, Mapping) and bool(logprobs.get("content"))


def _has_tokens(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, Mapping) else choice.get("text")
    return bool(text or any(map(choice.get, ("message", "logprobs", "token_ids"))))


def _without_none(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in value.items() if one is not None}


def _joined(old: Any, new: Any) -> Any:
    """Return what was streamed with one more chunk: lists grow, other values are replaced."""
    if isinstance(old, list) and isinstance(new, list):
        old.extend(new)
        return old
    if isinstance(old, dict) and isinstance(new, dict):
        known = _without_none(new)
        return old | {key: _joined(old.get(key), value) for key, value in known.items()}
    return new
