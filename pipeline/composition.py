"""The composed configuration as typed, checked settings; its errors in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from hydra.errors import CompactHydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from conf.schema import Config, ConfigError, check
from pipeline.errors import PipelineError
from pipeline.paths import CONF

# errors of a user's making: printed without a traceback
EXPECTED = (PipelineError, ConfigError, CompactHydraException, OmegaConfBaseException)


def check_groups(overrides: Iterable[str]) -> None:
    """Check that no group of configuration files is overridden by null: Hydra ends in a traceback.

    Raises:
        PipelineError: one is; names it and its files.
    """
    for override in overrides:
        name, _, value = override.partition("=")
        files = sorted(path.stem for path in (CONF / name.lstrip("+")).glob("*.yaml"))
        if value == "null" and name and files:
            raise PipelineError(f"{override} is not allowed: give one of {', '.join(files)}")


def settings_of(config: DictConfig) -> Config:
    """Return a composed configuration as typed settings.

    Raises:
        PipelineError, ConfigError: a key is unknown or not set, or a value out of range; the
            message names the key.
    """
    unset = sorted({*OmegaConf.missing_keys(config), *_deleted(config)})
    if unset:
        raise PipelineError(f"{', '.join(unset)} must be given: for instance {unset[0]}=VALUE")
    settings = OmegaConf.to_object(config)
    assert isinstance(settings, Config)
    check(settings)
    return settings


def _deleted(node: DictConfig, at: str = "") -> Iterator[str]:
    """Yield the keys that `~key` took away; an error for one that `+key` added."""
    kind = OmegaConf.get_type(node)
    if is_dataclass(kind):
        names = {spec.name for spec in fields(kind)}
        for key in map(str, node):
            if key not in names:
                known = ", ".join(sorted(names))
                raise PipelineError(f"{at}{key} is not known: known there are {known}")
        yield from (f"{at}{name}" for name in names - set(node))
    for key in map(str, node):
        if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
            yield from _deleted(node[key], f"{at}{key}.")


def explain(error: BaseException) -> str:
    """Return an error of a user's making as printed.

    Example:
        >>> explain(PipelineError("no target"))
        'no target'
    """
    if isinstance(error, MissingConfigException) and error.options:
        return f"{_first_line(error)}: give one of {', '.join(error.options)}"
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} can't be read as an override: {_first_line(error)}"
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if not isinstance(cause, OmegaConfBaseException):
        return str(error)
    known = _allowed(cause.full_key or "")
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        parent = cause.parent_node
        if isinstance(parent, DictConfig):
            known = f": known there are {', '.join(sorted(map(str, parent)))}"
    place = f" at {cause.full_key}" if cause.full_key else ""
    said = "" if cause is error else f"{_first_line(error).rstrip('.')}: "
    return f"{said}{_first_line(cause)}{place}{known}"


def _allowed(key: str) -> str:
    """Return what is allowed at a key of the schema, as the end of a sentence."""
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


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
