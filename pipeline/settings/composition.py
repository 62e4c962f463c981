"""The configuration: composed by Hydra from conf/, checked by conf/schema.py."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import ValidationError

from conf.schema import MAX_NAME_BYTES, Config, is_name
from pipeline.core.errors import PipelineError, first_line, one_line
from pipeline.core.paths import CONF, ROOT

OVERRIDE = re.compile(r"~|[+]*[\w.@/]+=")


def name_of(path: str) -> str:
    """Return the printed name of a model, from its directory or hub id.

    >>> name_of("~/models/Qwen3-0.6B/"), name_of("..")
    ('Qwen3-0.6B', 'local')
    """
    name = re.sub(r"^[\W_]+|[^ -~]", "", Path(path).name)[:MAX_NAME_BYTES]
    return name if is_name(name) else "local"


OmegaConf.register_new_resolver("root", lambda: str(ROOT), replace=True)
OmegaConf.register_new_resolver("home", os.path.expanduser, replace=True)
OmegaConf.register_new_resolver("name_of", name_of, replace=True)


def config_dirs(words: Iterable[str]) -> tuple[list[Path], list[str]]:
    """Split the words of a command line into the directories of `--config-dir` and the rest."""
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--config-dir", "-cd", action="append", default=[], type=Path)
    parsed, rest = options.parse_known_args(list(words))
    for folder in parsed.config_dir:
        if not folder.is_dir():
            raise PipelineError(f"--config-dir {folder} is no directory: give one that exists")
        for file in folder.rglob("*.yaml"):
            if (CONF / file.relative_to(folder)).exists() and not folder.samefile(CONF):
                raise PipelineError(f"{file} has the name of one of the project's: rename it")
    return parsed.config_dir, rest


def files_and_overrides(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split a command line into files (whose names may have "=") or addresses, and overrides."""
    folders, rest = config_dirs(words)
    files = [word for word in rest if not OVERRIDE.match(word) or os.path.exists(word)]  # noqa: PTH110
    overrides = [word for word in rest if word not in files]
    return files, [*overrides, *map("--config-dir={}".format, folders)]


def composed(words: Iterable[str]) -> DictConfig:
    """Compose the configuration from the words that follow ``python -m pipeline``."""
    folders, overrides = config_dirs(words := list(words))
    if folders:
        quoted = [QuotedString(f"file://{folder.resolve()}", Quote.single) for folder in folders]
        joined = ",".join(address.with_quotes() for address in quoted)
        overrides.append(f"hydra.searchpath=[{joined}]")
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose("config", overrides)
    except Exception as error:
        refuse(error, words)


def refuse(error: Exception, words: Iterable[str]) -> NoReturn:
    """Raise an error of Hydra or OmegaConf as one line with a hint."""
    from analysis.validation import nearest  # which imports numpy: only where it is needed

    cause = error.__cause__ or error
    key = str(getattr(cause, "full_key", ""))
    parent = getattr(cause, "parent_node", None)
    if isinstance(error, MissingConfigException) and "/" in str(error.missing_cfg_file):
        group, _, name = str(error.missing_cfg_file).partition("/")
        options = error.options or sorted(path.stem for path in (CONF / group).glob("*.yaml"))
        message = f"there is no {group}={name}{nearest(name, options)}: give one of "
        message += ", ".join(options)
        if path := {"target": "targets.local.path", "drafter": "drafter.path"}.get(group):
            message += f", or {group}=local {path}=PATH for a model of your own"
    elif isinstance(error, OverrideParseException):
        message = f"{error.override!r} can't be read: {first_line(error)} (other characters than "
        message += "letters, digits and /-+.,:%@_ are quoted: \"key='VALUE'\")"
    elif "--multirun" in str(error):
        message = f"{first_line(error)}: give -m as well, to run once for each value"
    elif key and isinstance(parent, DictConfig):
        names = list(map(str, parent))
        message = f"{key} is not known{nearest(key.rpartition('.')[2], names)}: "
        message += f"give one of {', '.join(names)}" if names else "nothing is set there"
        if key.startswith("criteria."):
            message += ", or a rule as well: criteria=additive"
    else:
        message = key or (str(error) if isinstance(error, HydraException) else one_line(error))
        message = f"{' '.join(message.split())} ({' '.join(words)})"
    raise PipelineError(message) from error


def settings_of(config: DictConfig) -> Config:
    """Return the settings of a composed configuration; PipelineError names every wrong key."""
    try:
        OmegaConf.to_container(config, throw_on_missing=True)
        values: Any = OmegaConf.to_container(config, resolve=True)
        return Config.model_validate(values)
    except ValidationError as error:
        problems = [_problem(dict(one), values) for one in error.errors(include_url=False)]
        raise PipelineError("\n".join(dict.fromkeys(problems))) from error
    except MissingMandatoryValue as error:
        raise PipelineError(f"{error.full_key} must be given") from error
    except OmegaConfBaseException as error:
        raise PipelineError(f"{error.full_key}: {first_line(error)}") from error


def _problem(error: Mapping[str, Any], values: Any) -> str:
    """Return an error of pydantic on `values` as `key=value: what is allowed`."""
    from analysis.validation import nearest

    path = [part for part in error["loc"] if part != "[key]"]
    texts = (text if (text := str(part)).isprintable() else ascii(text) for part in path)
    key = ".".join(texts)
    value = error["input"]
    reason = re.sub(r"^(Value error, |Input |List |Dictionary )", "", error["msg"])
    if error["type"] == "missing":
        return f"{key} must be given"
    if error["type"] == "extra_forbidden":
        names = [name for name in reduce(getitem, path[:-1], values) if name != path[-1]]
        return f"{key} is not known{nearest(str(path[-1]), names)}: give one of {', '.join(names)}"
    if error["type"] == "model_type":
        reason = f"has keys of its own: give {key}.KEY=VALUE"
    if error["type"] == "string_type":
        reason += f", so quote it: \"{key}='{value}'\""
    if error["type"] == "literal_error":
        reason += nearest(str(value), re.findall(r"'(.*?)'", reason))
    return f"{key}={value!r:.80}: {reason}"


def report_name(config: Config) -> str:
    """Return the name of a report's directory."""
    local = config.targets.get("local")
    name = config.study if local is None else f"{config.study}-{local.label}"
    return config.study_name or name
