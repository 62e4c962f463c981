"""Explains the errors of users and of the machine in one line each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from io import TextIOWrapper
from traceback import walk_tb
from typing import Any, get_args, get_origin, get_type_hints

import yaml  # type: ignore[import-untyped]
from hydra.errors import CompactHydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from analysis.fields import FieldError
from analysis.rules.build import nearest
from conf.schema import Config
from pipeline.errors import PipelineError, first_line

# errors of a user's making, or of the machine's: printed without a traceback
EXPECTED_ERRORS = (
    PipelineError,
    FieldError,
    CompactHydraException,
    OmegaConfBaseException,
    OSError,
    yaml.YAMLError,
    UnicodeDecodeError,
)


@contextmanager
def noted(problems: list[str]) -> Iterator[None]:
    """Collect expected errors, so that all are reported together."""
    try:
        yield
    except BrokenPipeError:
        raise
    except EXPECTED_ERRORS as error:
        problems.append(explain(error))


def say(problems: list[str]) -> None:
    """Raise the collected problems as one error, if there are any.

    Raises:
        PipelineError: a line for each problem.
    """
    if problems:
        raise PipelineError("\n".join(dict.fromkeys(problems)))


def explain(error: BaseException) -> str:
    """Return an error of a user's making as printed.

    Examples:
        >>> explain(PipelineError("no target"))
        'no target'
    """
    if isinstance(error, MissingConfigException) and error.options:
        wanted = str(error.missing_cfg_file).rpartition("/")[2]
        near = nearest(wanted, error.options)
        group = str(error.missing_cfg_file).partition("/")[0]
        key = {"target": "targets.local.path", "drafter": "drafter.path"}.get(group)
        if key and "/" in str(error.missing_cfg_file).partition("/")[2]:
            near = f": {group}=local {key}=PATH takes a model of your own"
        return f"{first_line(error)}{near}: give one of {', '.join(error.options)}"
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override!r} can't be read as an override: {first_line(error)} (a value with "
            "other characters than letters, digits and /-+.,:%@_ is quoted: \"key='VALUE'\")"
        )
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        place = f"{mark.name}, line {mark.line + 1}: " if mark else ""
        return f"{place}no YAML that can be read: {error.problem}"
    if isinstance(error, UnicodeDecodeError):
        return f"{_undecoded(error)} is not in UTF-8 ({first_line(error)}): save it in UTF-8"
    if isinstance(error, OSError):  # outputs that can't be written, a full disk
        return f"{error.filename}: {error.strerror}" if error.filename else first_line(error)
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(error, PipelineError | FieldError):  # a line for each problem
        return "\n".join(" ".join(line.split()) for line in str(error).splitlines())
    if not isinstance(cause, OmegaConfBaseException):
        return " ".join(str(error).split())  # some of Hydra's have several lines
    allowed = _allowed(cause.full_key or "")
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        parent = cause.parent_node
        if isinstance(parent, DictConfig):
            names = sorted(map(str, parent))
            near = nearest(str(cause.key), names)
            allowed = f"{near}: give one of {', '.join(names)}"
        allowed += _rules_with(cause.full_key or "")
    place = f" at {cause.full_key}" if cause.full_key else ""
    context = "" if cause is error else f"{first_line(error)}: "
    return f"{context}{first_line(cause)}{place}{allowed}"


def _undecoded(error: UnicodeDecodeError) -> str:
    """Return the file that was read: the error does not name it, the frames have it open."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    values = [value for frame in frames[::-1] for value in frame.f_locals.values()]
    return next((str(file.name) for file in values if isinstance(file, TextIOWrapper)), "a file")


def _rules_with(key: str) -> str:
    """Return a hint at the criteria that take a key which the chosen ones do not take."""
    group, _, parameter = key.partition(".")
    if group != "criteria":
        return ""
    from analysis.rules import BUILT_IN

    takers = {name: [spec.name for spec in fields(rule)] for name, rule in BUILT_IN.items()}
    takers = {name: keys for name, keys in takers.items() if parameter in keys}
    if not takers:
        return ""
    first = min(takers, key=lambda name: len(takers[name]))
    others = [name for name in takers if name != first]
    return f"; add criteria={first}" + (f" (or {', '.join(others)})" if others else "")


def _allowed(key: str) -> str:
    """Return the allowed values of a key of the schema, as the end of a sentence."""
    kind: Any = Config
    allowed = None
    parts = iter(key.split("."))
    for part in parts:
        spec = next((spec for spec in fields(kind) if spec.name == part), None)
        if spec is None:
            return ""
        allowed, kind = spec.metadata.get("allowed"), get_type_hints(kind)[part]
        inner = [item for item in get_args(kind) if is_dataclass(item)]
        if get_origin(kind) is dict:
            next(parts, None)  # the name of a target
        if not is_dataclass(kind):
            if not inner:
                break
            kind = inner[0]
    return f": give {allowed}" if allowed else ""
