"""Dataclasses as plain values, and back: specifications of artifacts and the facts of records.

A dataclass becomes a mapping of its fields. An entry that equals the default of its field is left
out. `Annotated[kind, As(...)]` declares a field that is written in its own way.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Plain = dict[str, Any]  # of JSON's types


@dataclass(frozen=True)
class As:
    """How a field is written.

    Attributes:
        inline: its entries stand beside those of its owner.
        plain: gives its plain value; None is `to_plain`.
        read: makes it from that, of an inline field from all entries of its owner.
        apart: it is not written: no result depends on it.
    """

    inline: bool = False
    plain: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None
    apart: bool = False


def to_plain(value: Any) -> Any:
    """Return a value without dataclasses and tuples.

    Examples:
        >>> from pipeline.hub import Identity
        >>> to_plain((Identity(hub="owner/name", commit="1b"),))
        [{'hub': 'owner/name', 'commit': '1b'}]
    """
    if is_dataclass(value) and not isinstance(value, type):
        mapping: Plain = {}
        for spec in fields(value):
            own, (_, written) = getattr(value, spec.name), _hints(type(value))[spec.name]
            if written.apart or own == spec.default:
                continue
            content = (written.plain or to_plain)(own)
            mapping |= content if written.inline else {spec.name: content}
        return mapping
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[T], mapping: Mapping[str, Any]) -> T:
    """Make a dataclass from the mapping that `to_plain` wrote; other entries are ignored.

    Raises:
        KeyError: an entry is missing.
    """
    values: Plain = {}
    hints: Any = _hints(kind)  # type: ignore[arg-type]
    for spec in fields(kind):  # type: ignore[arg-type]  # a dataclass
        hint, written = hints[spec.name]
        content = mapping if written.inline else mapping.get(spec.name, spec.default)
        if content is MISSING:
            raise KeyError(spec.name)
        values[spec.name] = written.read(content) if written.read else _typed(hint, content)
    return kind(**values)


@cache
def _hints(kind: type) -> dict[str, tuple[Any, As]]:
    """Return the type of each field of a dataclass, and how it is written."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, As())
        for name, hint in hints.items()
    }


def _typed(hint: Any, value: Any) -> Any:
    """Return a plain value with dataclasses where a type has them."""
    if is_dataclass(hint) and isinstance(value, Mapping):
        return from_plain(hint, value)  # type: ignore[arg-type]
    arguments = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return _typed(arguments[0], value)
    if arguments and isinstance(value, list):
        return [_typed(arguments[0], item) for item in value]
    if arguments and isinstance(value, dict):
        return {key: _typed(arguments[1], item) for key, item in value.items()}
    return value
