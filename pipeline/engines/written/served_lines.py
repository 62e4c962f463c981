"""The fields of a request, or of an answer, that served answers are read from, and their types.

A body is a JSON object in one of the forms of `answers` and `served`. `typed_body`
checks the fields named here and leaves the others alone: a body that passes holds token ids from 0
to 2^31 - 1, texts, and numbers where numbers belong. Content parts are joined to their text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, PlainValidator, TypeAdapter
from pydantic import ValidationError as FieldsError
from typing_extensions import TypedDict

from pipeline.engines.written.steps import logged_id
from pipeline.formats.prompt_files import is_text

LARGEST = 2**31 - 1  # a token id is stored as int32


def logged_ids(logprobs: Mapping[str, Any]) -> list[int] | None:
    """Return the ids of the tokens whose log-probabilities an answer has, None without all ids."""
    texts = logprobs.get("tokens") or []  # of completions
    entries = logprobs.get("content") or [{"token": text} for text in texts]
    ids = [logged_id(entry) for entry in entries]
    return [token for token in ids if token is not None] if None not in ids else None


def _ids(value: Any) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.40} is no list of token ids")
    for token in value:
        if type(token) is not int or not 0 <= token <= LARGEST:
            raise ValueError(f"{token!r:.40} is no token id")
    return value


def _text(value: Any) -> str | None:
    """Return a text, or that of its content parts; None if a part is an image or the like."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(
        isinstance(part, Mapping)
        and isinstance(part.get("type"), str)
        and (part["type"] != "text" or isinstance(part.get("text"), str))
        for part in value
    ):
        texts = [part["text"] for part in value if part["type"] == "text"]
        return "".join(texts) if len(texts) == len(value) else None
    raise ValueError(f"{value!r:.40} is neither a text nor a list of content parts")


def _prompt(value: Any) -> str | list[int] | None:
    """Return one prompt, as a text or as token ids; engines take a list of one, too."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        return _prompt(value[0])
    if isinstance(value, list) and not any(isinstance(part, str | list | dict) for part in value):
        return _ids(value)
    return _text(value)


def _name(value: Any) -> str | int | None:
    if value is None or type(value) is int or is_text(value):
        return value
    raise ValueError(f"{value!r:.40} is no name")


def _logprobs(value: Any) -> Any:
    try:
        _ids(logged_ids(value or {}))
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("a token is not described") from error
    return value


Ids = Annotated[list[int] | None, PlainValidator(_ids)]
Text = Annotated[str | None, PlainValidator(_text)]
Prompt = Annotated[str | list[int] | None, PlainValidator(_prompt)]
Name = Annotated[str | int | None, PlainValidator(_name)]
Number = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] | None
Count = Annotated[int, Field(strict=True, ge=-1, le=LARGEST)] | None
Flag = Annotated[bool, Field(strict=True)] | None


class Fields(TypedDict, total=False):
    """Fields of an object, each of which may be missing or null; others are kept as they are."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]


class Message(Fields, total=False):
    """A message of a conversation, or the new text of a stream's event."""

    role: Annotated[str | None, Field(strict=True)]
    content: Text
    text: Text


class Choice(Fields, total=False):
    """An answer of vLLM, SGLang, TensorRT-LLM or llama.cpp, or an event of its stream."""

    index: Count
    message: Message | None
    delta: Message | None
    text: Text
    token_ids: Ids
    prompt_token_ids: Ids
    logprobs: Annotated[Any, PlainValidator(_logprobs)]


class Finish(Fields, total=False):
    """Why an answer of SGLang's /generate ended."""

    type: Annotated[str | None, Field(strict=True)]


class Info(Fields, total=False):
    """The fields of an answer of SGLang's /generate, beside its text."""

    id: Name
    finish_reason: Finish | None


class Sampling(Fields, total=False):
    """How an answer was sampled."""

    temperature: Number
    top_p: Number
    top_k: Count


class Template(Fields, total=False):
    """Arguments of the chat template."""

    enable_thinking: Flag


class Body(Sampling, total=False):
    """A request or an answer."""

    id: Name
    prompt_id: Name
    model: Name
    messages: list[Message] | None
    prompt: Prompt
    text: Prompt
    input_ids: Ids
    sampling_params: Sampling | None
    chat_template_kwargs: Template | None
    answer: Prompt
    choices: list[Choice] | None
    prompt_token_ids: Ids
    meta_info: Info | None
    output_ids: Ids
    content: Text
    tokens: Ids


class Line(Fields, total=False):
    """An object of a file: a body, or its envelope."""

    custom_id: Name
    request: Body | None


T = TypeVar("T")
BODY, LINE = TypeAdapter(Body), TypeAdapter(Line)


class WrongFieldError(ValueError):
    """A field has a wrong type or value.

    Attributes:
        field: its place, such as choices[].token_ids.
        problem: the value, and what it should be.
    """

    def __init__(self, error: FieldsError) -> None:
        """Take the first error that pydantic names."""
        first = error.errors(include_url=False)[0]
        places = ["[]" if isinstance(at, int) else f".{at}" for at in first["loc"]]
        self.field = "".join(places).removeprefix(".")
        own = first.get("ctx", {}).get("error")
        self.problem = f"{own}" if own else f"{first['input']!r:.40}: {first['msg'].lower()}"
        super().__init__(self.field)


def typed_body(body: Mapping[str, Any]) -> Body:
    """Return a body with its fields checked, texts joined.

    Raises:
        WrongFieldError: a field is of another type.
    """
    return _checked(BODY, body)


def typed_line(value: Mapping[str, Any]) -> Line:
    """Return an object of a file with its name and request checked.

    Raises:
        WrongFieldError: a field is of another type.
    """
    return _checked(LINE, value)


def _checked(kind: TypeAdapter[T], value: Mapping[str, Any]) -> T:
    try:
        return kind.validate_python(value)
    except FieldsError as error:
        raise WrongFieldError(error) from None
