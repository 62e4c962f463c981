"""Dataclass fields with a range, declared in words and as a test, and the check of all of them.

The metadata of a field holds its range: `allowed` in words, `test` as a function.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

SCALARS = (bool, int, float, str)


class FieldError(ValueError):
    """A key is unknown or missing, or a value has the wrong type or is out of range."""


def refused(key: str, value: Any, allowed: str, *, exact: bool = False) -> FieldError:
    """Return the error for a value that is not allowed; `exact` shows the string '1' in quotes.

    Examples:
        >>> str(refused("t", 2.0, "a number in [0, 1]"))
        't=2.0 is not allowed: give a number in [0, 1]'
    """
    text = str(value)
    shown = repr(value) if exact else text if text.isprintable() else ascii(value)
    return FieldError(f"{key}={shown} is not allowed: give {allowed}")


def check_fields(instance: Any, where: str = "") -> None:
    """Check every field of a dataclass instance, and of the dataclasses below it.

    A field of a plain type (bool, int, float, str, any of them or None) must hold that type.
    Integers become floats where the type is float. NaN and infinity are never allowed.

    Args:
        instance: a dataclass. Its fields may hold dataclasses, or dictionaries of them.
        where: printed before the name of a field: "prompts.", "rule additive: ".

    Raises:
        FieldError: one line for each wrong field: its name, its value and the allowed values.
    """
    if messages := [str(error) for error in _problems(instance, where)]:
        raise FieldError("\n".join(messages))


def _problems(instance: Any, where: str) -> Iterator[FieldError]:
    """Yield the errors of `check_fields`."""
    kind: Any = type(instance)
    hints = _hints(kind)
    for spec in fields(instance):
        key = f"{where}{spec.name}"
        try:
            value = _checked(key, spec, hints[spec.name], getattr(instance, spec.name))
        except FieldError as error:
            yield error
            continue
        object.__setattr__(instance, spec.name, value)
        items = value if isinstance(value, dict) else {}
        for name in items:
            if "names" in spec.metadata and not spec.metadata["names"](name):
                yield FieldError(f"{key}: {name!a} is not allowed: give {spec.metadata['a_name']}")
        inner = {key: value} | {f"{key}.{name}": item for name, item in items.items()}
        for place, content in inner.items():
            if is_dataclass(content):
                yield from _problems(content, f"{place}.")


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the field types of a dataclass, cached: evaluating them dominates a check."""
    return get_type_hints(kind)


def _checked(key: str, spec: Any, hint: Any, given: Any) -> Any:
    kinds, value = _scalars(hint), given
    named = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
    allowed = spec.metadata.get("allowed", f"a value of type {named}")
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()  # a NumPy scalar
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            raise refused(key, given, allowed) from None
    if kinds and type(value) not in kinds:
        raise refused(key, value, allowed, exact=True)
    if not _finite(value) or not spec.metadata.get("test", _any)(value):
        raise refused(key, given, allowed)
    return value


def _any(_: Any) -> bool:
    return True


def _scalars(hint: Any) -> tuple[type, ...]:
    """Return the plain types that a field may hold; empty for a field of any other type."""
    union = get_origin(hint) in (Union, types.UnionType)
    kinds = get_args(hint) if union else (hint,)
    return kinds if all(kind in (*SCALARS, type(None)) for kind in kinds) else ()


def _finite(value: Any) -> bool:
    numbers = value if isinstance(value, list) else [value]
    return all(math.isfinite(number) for number in numbers if isinstance(number, float))
