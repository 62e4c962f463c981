"""The composed configuration as typed, checked settings; its errors in one line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Quote, QuotedString
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf

from analysis.fields import check_fields
from analysis.rules.build import nearest
from conf import schema
from conf.schema import LONGEST_NAME, Config, is_name
from pipeline.errors import PipelineError
from pipeline.files import json_digest
from pipeline.paths import CONF, ROOT
from pipeline.plan.explain import noted, say

schema.register_schema()
OmegaConf.register_new_resolver("root", lambda: str(ROOT), replace=True)
OVERRIDE = re.compile(r"~|[+]*[\w.@/]+=")
CONFIG_DIR = "--config-dir"
# a quoted text as a whole; or a bracket or comma, with the key behind it
BRACKET_OR_KEY = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|(\$?\{|[}\[\],])(?:\s*([\w./-]+)\s*:)?"""
)
NOT_OF_REPORT = ("study", "study_name", "note", "stage", "outputs", "device", "execution")


def check_overrides(overrides: Iterable[str]) -> None:
    """Check that a group of configuration files is given names, and each mapping its keys once.

    Hydra ends in a traceback on the first, and takes the last value of a key given twice.

    Raises:
        PipelineError: names the override, and the files or the key.
    """
    for override in overrides:
        name, _, value = override.partition("=")
        if (key := _repeated_key(value)) is not None:
            raise PipelineError(f"{override} gives {key} twice: give it once")
        files = sorted(path.stem for path in (CONF / name.lstrip("+")).glob("*.yaml"))
        if not (name and files):
            continue
        parsed = OverridesParser.create().parse_override(override).value()
        choices = parsed.list if isinstance(parsed, ChoiceSweep) else [parsed]
        items = [item for part in choices for item in (part if isinstance(part, list) else [part])]
        if not all(isinstance(item, str | QuotedString | Glob | dict) for item in items):
            raise PipelineError(f"{override} is not allowed: give one of {', '.join(files)}")


def _repeated_key(value: str) -> str | None:
    """Return a key that a mapping in a value gives twice.

    >>> _repeated_key("[{rule: additive, t: 0.1}, {t: 0.1, rule: 't: {', t: 0.2}]")
    't'
    """
    keys = list[set[str] | None]()  # of each open mapping; None of a list or an interpolation
    for match in BRACKET_OR_KEY.finditer(value):
        bracket, key = match.groups()
        if bracket in ("{", "[", "${"):
            keys.append(set() if bracket == "{" else None)
        elif bracket in ("}", "]") and keys:
            keys.pop()
        if key and keys and keys[-1] is not None:
            if key in keys[-1]:
                return str(key)
            keys[-1].add(key)
    return None


def joined(words: Iterable[str]) -> list[str]:
    """Words of a command line with `--config-dir DIR` as one word.

    >>> joined(["--config-dir", "my_conf", "study=mini"])
    ['--config-dir=my_conf', 'study=mini']
    """
    rest = iter(words)
    return [f"{word}={next(rest, '')}" if word == CONFIG_DIR else word for word in rest]


def files_and_overrides(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the files or addresses among the words of a command line, and the overrides.

    An existing file is no override, though its name may hold "=", as answers of stage decoding do.
    """
    files, overrides = list[str](), list[str]()
    for word in joined(words):
        override = word.startswith(f"{CONFIG_DIR}=") or OVERRIDE.match(word)
        exists = os.path.exists(word)  # noqa: PTH110  Path.exists raises for a long word
        (overrides if override and not exists else files).append(word)
    return files, overrides


def composed(words: Iterable[str]) -> DictConfig:
    """Compose the configuration as ``python -m pipeline`` does.

    Args:
        words: overrides, and `--config-dir DIR` for a directory with more files.

    Raises:
        PipelineError and the other EXPECTED_ERRORS: an override or a file is wrong.
    """
    words = joined(words)
    overrides = [word for word in words if not word.startswith(CONFIG_DIR)]
    folders = [word.partition("=")[2] for word in words if word.startswith(CONFIG_DIR)]
    for folder in folders:
        if not Path(folder).is_dir():
            raise PipelineError(f"{CONFIG_DIR} {folder} is no directory: give one that exists")
    check_overrides(overrides)
    if folders:
        places = ",".join(quoted(f"file://{Path(folder).resolve()}") for folder in folders)
        overrides.append(f"hydra.searchpath=[{places}]")
    if GlobalHydra.instance().is_initialized():  # it knows of directories that were added
        return compose("config", overrides)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides)


def settings_of(config: DictConfig, problems: list[str] | None = None) -> Config:
    """Return a composed configuration as typed settings.

    Raises:
        PipelineError: a key is unknown or not set, or a value out of range; a line for each, with
            its key. Where `problems` are collected, values out of range are noted there.
    """
    if missing := sorted(unset(config)):
        raise PipelineError(f"{', '.join(missing)} must be given: for instance {missing[0]}=VALUE")
    settings = OmegaConf.to_object(config)
    assert isinstance(settings, Config)
    collected = [] if problems is None else problems
    with noted(collected):
        check_fields(settings)
    workers = settings.execution.workers
    if workers is not None and settings.execution.engine == "inline":
        collected.append(
            f"execution.workers={workers} means nothing with execution.engine=inline: give "
            "execution.engine=ray as well"
        )
    if problems is None:
        say(collected)
    return settings


def report_name(config: DictConfig) -> str:
    """Return the name of the directory of a report: that of its study and of nothing else.

    That of a configuration that differs from the study's own in what is content has a hash of it
    behind. `study_name` decides before anything else.

    Raises:
        PipelineError: the study is not named as its file.
    """
    if config.study_name is not None:
        return str(config.study_name)
    study = str(config.study)
    try:
        plain = composed([f"study={quoted(study)}"])
    except MissingConfigException:
        raise PipelineError(
            f"study: {study} is set in a file with another name: rename the file to {study}.yaml, "
            "or name the report with study_name=NAME"
        ) from None
    ours, theirs = _content(config), _content(plain)
    return study if ours == theirs else f"{study}-{json_digest(ours)[:8]}"


def _content(config: DictConfig) -> dict[str, Any]:
    """Return the settings that a report may show."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): values[key] for key in values if key not in NOT_OF_REPORT}


def given(arguments: Sequence[str], key: str) -> str | None:
    """Return the value that command-line arguments give `key`, None where they give no one text."""
    matches = [argument for argument in arguments if argument.lstrip("+").startswith(f"{key}=")]
    override = OverridesParser.create().parse_override(matches[-1]) if matches else None
    if override is None or override.is_sweep_override() or override.value() is None:
        return None
    return str(OmegaConf.create({"value": override.value()})["value"])


def name_of(path: str) -> str:
    """Return the printed name of a model: that of its directory, or of its hub id.

    >>> name_of("~/models/Qwen3-0.6B/"), name_of("..")
    ('Qwen3-0.6B', 'local')
    """
    name = re.sub(r"^[\W_]+|[^ -~]", "", Path(path).name)[:LONGEST_NAME]
    return name if is_name(name) else "local"


OmegaConf.register_new_resolver("name_of", name_of, replace=True)


def quoted(text: str) -> str:
    r"""Return a text as the value of an override, whatever characters it has.

    >>> print(quoted("/home/o'brien/outputs"))
    '/home/o\'brien/outputs'
    """
    literal = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # no interpolation
    return QuotedString(literal, Quote.single).with_quotes()


def unset(task: DictConfig, at: str = "") -> Iterator[str]:
    """Yield the keys without a value, and those that `~key` took away.

    Raises:
        PipelineError: `+key` added one that is not known.
    """
    kind = OmegaConf.get_type(task)
    if is_dataclass(kind):
        names = {spec.name for spec in fields(kind)}
        for key in map(str, task):
            if key not in names:
                allowed = ", ".join(sorted(names))
                near = nearest(key, names)
                raise PipelineError(f"{at}{key} is not known{near}: give one of {allowed}")
        yield from (f"{at}{name}" for name in names - set(task))
    for key in map(str, task):
        if OmegaConf.is_interpolation(task, key):
            continue
        if OmegaConf.is_missing(task, key):
            yield f"{at}{key}"
        elif isinstance(task[key], DictConfig):
            yield from unset(task[key], f"{at}{key}.")
