"""The answers in a file that an engine wrote, in the order of the file.

`json_text` finds the objects in the file's text, `streams` joins the chunks of streamed ones, and
`layouts` finds the answers in each object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pipeline.core.errors import PipelineError, first_line
from pipeline.engines.answers.json_text import UnreadableFileError, form_of, has_events, json_values
from pipeline.engines.answers.layouts import NO_ANSWER, answer_parts, without_batch
from pipeline.engines.answers.streams import Streams
from pipeline.engines.engine_base import AnswerError, AnswerPart
from pipeline.engines.packed_files import decoded, read_bytes
from pipeline.engines.printed_text import counted, printable

NO_JSON = "lines that are no JSON"
AGAIN = "answers given again"

T = TypeVar("T")


def read_answers(
    path: Path, read: Callable[[AnswerPart], T]
) -> tuple[dict[str, T], str | None, Counter[str]]:
    """Read every answer of a file.

    Returns:
        What `read` gave for each answer, by name; the model that the answers name, or None; and
        how many were left out, by reason.

    Raises:
        PipelineError: the file can't be read, most of it is no answers, it mixes two models, or
            `read` raised a `AnswerError`.
    """
    answers: dict[str, T] = {}
    excluded = Counter[str]()
    first: tuple[str, int] | None = None
    for line, parts in _parts(path, excluded):
        model = parts[0].body.get("model")
        if isinstance(model, str) and model:
            first = first or (printable(model), line)
            if printable(model) != first[0]:
                raise PipelineError(
                    f"{path} mixes two models: {first[0]} in line {first[1]} and "
                    f"{printable(model)} in line {line}: give each its own file"
                )
        for part in parts:
            if part.name in answers:
                excluded[AGAIN] += 1
                continue
            try:
                answers[part.name] = read(part)
            except AnswerError as error:
                raise PipelineError(f"{path}, line {line} {error}") from error
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                why = f"{type(error).__name__}: {first_line(error)}"
                raise PipelineError(f"{path}, line {line} can't be read ({why:.80})") from error
    return answers, None if first is None else first[0], excluded


def _parts(path: Path, excluded: Counter[str]) -> Iterator[tuple[int, list[AnswerPart]]]:
    """Yield each object's line and answers; count objects and lines that have none.

    Raises:
        PipelineError: most of the file can't be read.
    """
    text = decoded(read_bytes(path))
    broken: list[int] = []
    streams = Streams(has_events(text))
    objects = 0
    other_keys = ""  # of the first object that is no answer

    def objects_and_streams() -> Iterator[tuple[int, int, Any]]:
        nonlocal objects
        for line, number, value in json_values(text, broken):
            objects += 1
            unwrapped = without_batch(value)
            if not (isinstance(value, dict) and streams.take(line, number, unwrapped)):
                yield line, number, unwrapped
        yield from streams.answers()

    try:
        for line, number, value in objects_and_streams():
            parts = answer_parts(value, line)
            if isinstance(parts, str):
                excluded[parts] += 1
                if parts == NO_ANSWER and isinstance(value, dict):
                    other_keys = other_keys or f"JSON objects with the keys {', '.join(value):.80}"
                continue
            yield line, [_with_own_name(part, number) for part in parts]
    except UnreadableFileError as error:
        raise PipelineError(f"{path} {error}") from error
    excluded[NO_JSON] += len(broken)
    unread = excluded[NO_JSON] + excluded[NO_ANSWER]
    if 2 * unread > objects + excluded[NO_JSON]:
        form = other_keys if excluded[NO_ANSWER] > excluded[NO_JSON] else ""
        place = f" (line {broken[0]})" if broken else ""
        raise PipelineError(
            f"{path} holds {printable(form or form_of(text))}, and no answers that can be read, or "
            f"few: {counted(+excluded)}{place}: give one answer of the engine a line, as it came"
        )


def _with_own_name(part: AnswerPart, number: int) -> AnswerPart:
    """Number the answers of one line that have no id."""
    by_line = f"line-{part.line}"
    if number == 0 or part.name.partition("#")[0] != by_line:
        return part
    return part._replace(name=part.name.replace(by_line, f"{by_line}.{number}", 1))
