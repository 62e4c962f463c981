"""What is wrong with a mapping of keys and values, in one line that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypeVar

import pydantic

T = TypeVar("T")


def checked(kind: Callable[..., T], values: Mapping[str, Any], where: str) -> T:
    """Make a pydantic dataclass.

    Raises:
        ValueError: all that is wrong with `values`, in one line that begins with `where`.
    """
    check_keys(values, [spec.name for spec in fields(kind)], where)  # type: ignore[arg-type]
    try:
        return kind(**values)
    except pydantic.ValidationError as error:
        faults = dict.fromkeys(_fault(fault) for fault in error.errors())
        raise ValueError(f"{where}: {'; '.join(faults)}") from None
    except (Exception, SystemExit) as error:  # of a user's class
        raise ValueError(f"{where}: {type(error).__name__}: {error}") from error


def check_keys(keys: Iterable[str], allowed: Iterable[str], where: str) -> None:
    """Check that all keys are allowed; else a ValueError names the first that is not."""
    names = list(allowed)
    for key in keys:
        if key not in names:
            raise ValueError(
                f"{where}: the key {key!r} is not known{nearest(str(key), names)}: "
                + (f"give {', '.join(names)}" if names else "there are no parameters")
            )


def _fault(fault: Any) -> str:
    said = fault["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    if not fault["loc"]:
        return str(said)
    key = fault["loc"][0]
    if fault["type"] == "missing":
        return f"the key {key!r} is missing"
    return f"{key}={fault['input']!r:.80} is not allowed: {said}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint at the closest name, for the end of an error.

    >>> nearest("tempature", ["seed", "temperature"])
    ' (did you mean temperature?)'
    """
    matches = get_close_matches(name, list(names), n=1)
    return f" (did you mean {matches[0]}?)" if matches else ""
