"""Checks of arguments and of mappings, with one-line errors that name the key and the value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, TypeVar

import pydantic

from . import RuleError

T = TypeVar("T")


def checked(kind: Callable[..., T], values: Mapping[str, Any], where: str) -> T:
    """Make a pydantic dataclass from a mapping, or raise one error for all that is wrong.

    Raises:
        ValueError: all that is wrong with `values`, in one line that begins with `where`.
    """
    names = [spec.name for spec in fields(kind)]  # type: ignore[arg-type]
    check_keys(values, names, where)
    try:
        return kind(**values)
    except RuleError:  # its message is complete
        raise
    except pydantic.ValidationError as error:
        raise ValueError(f"{where}: {what_is_wrong(error, names)}") from None
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


def what_is_wrong(error: pydantic.ValidationError, names: Sequence[str]) -> str:
    """Return all that pydantic found, in one line; `names` are the parameters that there are."""
    faults = dict.fromkeys(_fault(fault, names) for fault in error.errors())
    return "; ".join(faults)


def _fault(fault: Any, names: Sequence[str]) -> str:
    reason = fault["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    if not fault["loc"]:
        return str(reason)
    key = fault["loc"][0]
    value = " ".join(f"{fault['input']!r:.80}".split())
    if fault["type"] == "missing":
        return f"the key {key!r} is missing"
    if fault["type"].startswith("unexpected"):
        surplus = f"a further value, {value}," if isinstance(key, int) else f"{key}={value}"
        allowed = f"give {', '.join(names)}" if names else "there are no parameters"
        return f"{surplus} is not allowed: {allowed}"
    if isinstance(key, int):  # of a value without a name
        key = names[key]
    return f"{key}={value} is not allowed: {reason}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint at the closest name, for the end of an error.

    >>> nearest("tempature", ["seed", "temperature"])
    ' (did you mean temperature?)'
    """
    matches = get_close_matches(name, list(names), n=1)
    return f" (did you mean {matches[0]}?)" if matches else ""


def checked_integer(name: str, value: Any, least: int = 1, most: float = math.inf) -> int:
    """Return `value` as an integer in [least, most]; a ValueError names one that is not."""
    if (
        isinstance(value, bool)
        or not isinstance(value, Integral)
        or not least <= int(value) <= most
    ):
        allowed = f"of at least {least}" if most == math.inf else f"in [{least}, {most}]"
        raise ValueError(f"{name}={described(value)} is not allowed: give an integer {allowed}")
    return int(value)


def checked_number(name: str, value: Any, low: float, high: float = math.inf) -> float:
    """Return `value` as a number in (low, high); a ValueError names one that is not."""
    if isinstance(value, bool) or not isinstance(value, Real) or not low < float(value) < high:
        allowed = f"above {low:g}" if high == math.inf else f"in ({low:g}, {high:g})"
        raise ValueError(f"{name}={described(value)} is not allowed: give a number {allowed}")
    return float(value)


def described(value: Any) -> str:
    """Return a value in one line: an array, a tensor or a frame by its type and shape."""
    shape = tuple(getattr(value, "shape", ()))
    text = f"{type(value).__name__} of shape {shape}" if shape else repr(value)
    return " ".join(f"{text:.80}".split())
