"""Dataclass fields with a range, declared in words and as a test, and the check of all of them.

The metadata of a field holds its range: `allowed` in words, `test` as a function. Rules, decoding
methods, draft trees and the configuration's types all declare their fields this way. Only
`from_mapping` and `check_fields` read the metadata.
"""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
SCALARS = (bool, int, float, str)


class FieldError(ValueError):
    """A key is unknown or missing, or a value has the wrong type or is out of range."""


def ranged(allowed: str, test: Callable[[Any], bool], default: Any = MISSING) -> Any:
    """Declare a dataclass field with its allowed values, in words and as a test."""
    metadata = {"allowed": allowed, "test": test}
    return field(default=default, metadata=metadata)


def part(kind: type) -> Any:
    """Declare an optional dataclass whose keys stand beside those of its owner.

    The name of the field is the key of the part's first field: with ``tree: DraftTree = part(...)``
    the mapping ``{tree: batch, width: 2}`` gives ``DraftTree("batch", width=2)``.
    """
    return field(default=None, metadata={"part": kind})


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


def _problems(instance: Any, where: str, tag: str | None = None) -> Iterator[FieldError]:
    """Yield the errors of `check_fields`; `tag` is the printed key of a part's first field."""
    kind: Any = type(instance)
    hints = _hints(kind)
    for spec in fields(instance):
        key = f"{where}{spec.name if tag is None else tag}"
        tag = None
        try:
            value = _checked(key, spec, hints[spec.name], getattr(instance, spec.name))
        except FieldError as error:
            yield error
            continue
        object.__setattr__(instance, spec.name, value)
        if "part" in spec.metadata:
            if value is not None:
                yield from _problems(value, where, spec.name)
            continue
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


def from_mapping(kind: type[T], mapping: Mapping[str, Any], where: str, name: str) -> T:
    """Make a dataclass from plain configuration; keys are checked, values by `check_fields`.

    Args:
        kind: a dataclass.
        mapping: its fields by name.
        where: printed before a key in errors.
        name: of the result, for errors: "additive".

    Raises:
        FieldError: a key is unknown or missing.
    """
    specs = _configured(kind)
    given = dict(mapping)
    for tag, spec in specs.items():
        if "part" in spec.metadata:
            given[tag] = _part(spec.metadata["part"], tag, given, where)
    check_keys(given, specs, where, name)
    for key, spec in specs.items():
        if key not in given and spec.default is MISSING and spec.default_factory is MISSING:
            allowed = spec.metadata.get("allowed", "its value")
            raise key_missing(key, where, f"give {allowed}")
    return kind(**given)


def _configured(kind: type) -> dict[str, Field[Any]]:
    """Return the fields of a dataclass that a mapping may set, by name."""
    return {spec.name: spec for spec in fields(kind) if spec.metadata.get("configured", True)}


def keys_of(kind: type) -> set[str]:
    """Return the keys of a mapping that `from_mapping` takes, those of parts included.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Tree:
        ...     shape: str
        ...     width: int
        >>> @dataclass
        ... class Method:
        ...     drafter: str
        ...     tree: Tree | None = part(Tree)
        >>> sorted(keys_of(Method))
        ['drafter', 'tree', 'width']
    """
    specs = _configured(kind)
    parts = [spec.metadata["part"] for spec in specs.values() if "part" in spec.metadata]
    return set(specs).union(*([*_configured(inner)][1:] for inner in parts))


def _part(kind: type, tag: str, given: dict[str, Any], where: str) -> Any:
    """Take the keys of a part out of `given`; return the part, or None where its tag is absent.

    Raises:
        FieldError: a key of the part stands without its tag, or is missing.
    """
    first, *others = _configured(kind)
    value = given.pop(tag, None)
    own = {key: given.pop(key) for key in others if key in given}
    if value is not None:
        return from_mapping(kind, {first: value, **own}, where, f"{tag}: {value}")
    if own:
        key = next(iter(own))
        raise refused(f"{where}{key}", own[key], f"nothing, or {tag} as well, whose key it is")
    return None


def alternatives(mapping: Mapping[str, Any], whole: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Return one mapping for each combination of the values that are lists.

    The value of a key in `whole` is itself a list of numbers. Several values are a list of lists.

    Raises:
        FieldError: a list is empty.

    Examples:
        >>> alternatives({"rule": "tree", "m": [2, 4]})
        [{'rule': 'tree', 'm': 2}, {'rule': 'tree', 'm': 4}]
    """
    axes = []
    for key, value in mapping.items():
        several = isinstance(value, list | tuple)
        if several and key in whole:
            several = any(isinstance(item, list | tuple) for item in value)
        if several and not value:
            raise refused(key, value, "a value, or a list of at least one")
        axes.append(value if several else [value])
    return [dict(zip(mapping, point, strict=True)) for point in itertools.product(*axes)]


def check_keys(mapping: Iterable[str], allowed: Iterable[str], where: str, name: str) -> None:
    """Check that all keys are allowed.

    Raises:
        FieldError: names the first key that is not allowed, and those that are.
    """
    names = list(allowed)
    unknown = sorted(set(mapping) - set(names))
    if unknown:
        takes = f"{name} takes {', '.join(names)}" if names else f"{name} takes no parameters"
        near = nearest(unknown[0], names)
        raise FieldError(f"{_sentence(where)}the key {unknown[0]!r} is not known{near}: {takes}")


def key_missing(key: str, where: str, advice: str) -> FieldError:
    """Return the error for a missing key.

    Examples:
        >>> str(key_missing("m", "methods[0].", "give an integer"))
        "methods[0]: the key 'm' is missing: give an integer"
    """
    return FieldError(f"{_sentence(where)}the key {key!r} is missing: {advice}")


def _sentence(where: str) -> str:
    """Return the prefix of a field name as the beginning of a sentence."""
    return f"{where[:-1]}: " if where.endswith(".") else where


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint at the closest name, for the end of an error.

    Examples:
        >>> nearest("tempature", ["seed", "temperature"])
        ' (did you mean temperature?)'
    """
    matches = get_close_matches(name, list(names), n=1)
    return f" (did you mean {matches[0]}?)" if matches else ""


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
