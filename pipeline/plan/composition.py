"""The composed configuration as typed, checked settings; its errors in one line."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml  # type: ignore[import-untyped]
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import CompactHydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from analysis.fields import FieldError, check, nearest
from conf.schema import LONGEST_NAME, Config, is_name
from pipeline.errors import PipelineError
from pipeline.paths import CONF, ROOT
from pipeline.store.node import fingerprint, slug

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
NOT_OF_REPORT = ("study", "study_name", "note", "stage", "outputs", "device", "execution")
RULES = ROOT / "analysis" / "rules"  # of the project
READABLE = 60  # characters that say how a report differs from its study's


def check_groups(overrides: Iterable[str]) -> None:
    """Check that groups of configuration files are overridden by names: Hydra ends in a traceback.

    Raises:
        PipelineError: null or a list with something else is given; names it and the files.
    """
    for override in overrides:
        name, _, value = override.partition("=")
        files = sorted(path.stem for path in (CONF / name.lstrip("+")).glob("*.yaml"))
        if not (name and files and (value == "null" or value.startswith("["))):
            continue
        found = OverridesParser.create().parse_override(override).value()
        if not (isinstance(found, list) and all(isinstance(item, str) for item in found)):
            raise PipelineError(f"{override} is not allowed: give one of {', '.join(files)}")


def composed(overrides: Iterable[str]) -> DictConfig:
    """Compose the configuration as ``python -m pipeline`` does.

    Raises:
        PipelineError and the other EXPECTED_ERRORS: an override or a file is wrong.
    """
    overrides = list(overrides)
    check_groups(overrides)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides)


@contextmanager
def errors_of_rules() -> Iterator[None]:
    """Name the line of a user's own rule that raises an error or ends the process.

    Raises:
        PipelineError: one does; names the file and the line, and what was raised.
    """
    try:
        yield
    except EXPECTED_ERRORS:
        raise
    except (Exception, SystemExit) as error:
        from analysis.rules.rule import REGISTRY

        modules = (sys.modules.get(rule.__module__) for rule in REGISTRY.values())
        own = {getattr(module, "__file__", None) for module in modules if module}
        frames = traceback.extract_tb(error.__traceback__)
        own = {path for path in own if path and Path(path).parent != RULES}
        place = next((frame for frame in reversed(frames) if frame.filename in own), None)
        if place is None:
            raise
        raise PipelineError(
            f"{place.filename}, line {place.lineno}: a rule raised {type(error).__name__}: {error}"
        ) from error


def settings_of(config: DictConfig, problems: Problems | None = None) -> Config:
    """Return a composed configuration as typed settings.

    Raises:
        PipelineError: a key is unknown or not set, or a value out of range; a line for each, with
            its key. Where `problems` are collected, values out of range are noted there.
    """
    if missing := sorted(unset(config)):
        raise PipelineError(f"{', '.join(missing)} must be given: for instance {missing[0]}=VALUE")
    settings = OmegaConf.to_object(config)
    assert isinstance(settings, Config)
    found = Problems() if problems is None else problems
    with found():
        check(settings)
    for name in ("workers", "address"):
        value = getattr(settings.execution, name)
        if value is not None and settings.execution.engine == "inline":
            found.note(
                f"execution.{name}={value} means nothing with execution.engine=inline: give "
                "execution.engine=ray as well"
            )
    if problems is None:
        found.say()
    return settings


class Problems:
    """Collects errors of a user's making, so that all are said at once."""

    def __init__(self) -> None:
        """Begin without any."""
        self._found: list[str] = []

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Note an expected error of what is done inside, and go on behind it."""
        try:
            yield
        except EXPECTED_ERRORS as error:
            self._found.append(explain(error))

    def note(self, problem: str) -> None:
        """Note one."""
        self._found.append(problem)

    def say(self) -> None:
        """End with all that was noted.

        Raises:
            PipelineError: something was; a line each.
        """
        if self._found:
            raise PipelineError("\n".join(dict.fromkeys(self._found)))


def report_name(config: DictConfig) -> str:
    """Return the name of the directory of a report: that of its study and of nothing else.

    A configuration that differs from the study's own in what is content has a name that says
    how, and a hash of all that differs. `study_name` decides before anything else.

    Raises:
        PipelineError: the study is not named as its file.
    """
    if config.study_name is not None:
        return str(config.study_name)
    study = str(config.study)
    try:
        plain = _composed(f"study={quoted(study)}")
    except MissingConfigException:
        raise PipelineError(
            f"study: {study} is set in a file of another name: name the file {study}.yaml, or "
            "call the report with study_name=NAME"
        ) from None
    ours, theirs = _content(config), _content(plain)
    given = {key: ours[key] for key in ours if key not in theirs or ours[key] != theirs[key]}
    taken = sorted(set(theirs) - set(ours))
    if not given and not taken:
        return study
    parts = [study]
    for key, value in given.items():  # the first ones, as far as they fit; the hash is of all
        text = slug(f"{key}={value}")
        if sum(map(len, parts[1:])) + len(text) <= READABLE:
            parts.append(text)
    return "-".join([*parts, fingerprint([given, taken])[:8]])


def _composed(override: str) -> DictConfig:
    if GlobalHydra.instance().is_initialized():  # it knows of directories that were added
        return compose("config", [override])
    return composed([override])


def _content(config: DictConfig) -> dict[str, Any]:
    """Return what a report may show, by full key: numbers, texts and lists."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return dict(_leaves({key: values[key] for key in values if key not in NOT_OF_REPORT}))


def _leaves(node: Mapping[Any, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


def given(arguments: Sequence[str], key: str) -> str | None:
    """Return the value that command-line arguments give `key`, None where they give no one text."""
    found = [argument for argument in arguments if argument.lstrip("+").startswith(f"{key}=")]
    override = OverridesParser.create().parse_override(found[-1]) if found else None
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


def quoted(text: str) -> str:
    r"""Return a text as the value of an override, whatever characters it has.

    >>> print(quoted("/home/o'brien/outputs"))
    '/home/o\'brien/outputs'
    """
    literal = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # no interpolation
    return QuotedString(literal, Quote.single).with_quotes()


def unset(node: DictConfig, at: str = "") -> Iterator[str]:
    """Yield the keys without a value, and those that `~key` took away.

    Raises:
        PipelineError: `+key` added one that is not known.
    """
    kind = OmegaConf.get_type(node)
    if is_dataclass(kind):
        names = {spec.name for spec in fields(kind)}
        for key in map(str, node):
            if key not in names:
                known = ", ".join(sorted(names))
                near = nearest(key, names)
                raise PipelineError(f"{at}{key} is not known{near}: known there are {known}")
        yield from (f"{at}{name}" for name in names - set(node))
    for key in map(str, node):
        if OmegaConf.is_interpolation(node, key):
            continue
        if OmegaConf.is_missing(node, key):
            yield f"{at}{key}"
        elif isinstance(node[key], DictConfig):
            yield from unset(node[key], f"{at}{key}.")


def explain(error: BaseException) -> str:
    """Return an error of a user's making as printed.

    Example:
        >>> explain(PipelineError("no target"))
        'no target'
    """
    if isinstance(error, MissingConfigException) and error.options:
        wanted = str(error.missing_cfg_file).rpartition("/")[2]
        near = nearest(wanted, error.options)
        return f"{_first_line(error)}{near}: give one of {', '.join(error.options)}"
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override!r} can't be read as an override: {_first_line(error)} (a value with "
            "other characters than letters, digits and /-+.,:%@_ is quoted: \"key='VALUE'\")"
        )
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        place = f"{mark.name}, line {mark.line + 1}: " if mark else ""
        return f"{place}no YAML that can be read: {error.problem}"
    if isinstance(error, UnicodeDecodeError):
        place = ", ".join(map(str, _not_utf8())) or "a file"
        return f"{place}: not in UTF-8 ({_first_line(error)}): save it in UTF-8"
    if isinstance(error, OSError):  # outputs that can't be written, a full disk
        return f"{error.filename}: {error.strerror}" if error.filename else _first_line(error)
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(error, PipelineError | FieldError):  # a line for each problem
        return "\n".join(" ".join(line.split()) for line in str(error).splitlines())
    if not isinstance(cause, OmegaConfBaseException):
        return " ".join(str(error).split())  # some of Hydra's have several lines
    known = _allowed(cause.full_key or "")
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        parent = cause.parent_node
        if isinstance(parent, DictConfig):
            names = sorted(map(str, parent))
            near = nearest(str(cause.key), names)
            known = f"{near}: known there are {', '.join(names)}"
        known += _rules_with(cause.full_key or "")
    place = f" at {cause.full_key}" if cause.full_key else ""
    said = "" if cause is error else f"{_first_line(error).rstrip('.')}: "
    return f"{said}{_first_line(cause)}{place}{known}"


def _not_utf8() -> Iterator[Path]:
    """Yield the files of the configuration, a directory of the user's own included, that are not.

    The error that reading one raises does not name it.
    """
    words = [part for argument in sys.argv[1:] for part in argument.split("=", 1)]
    given = [after for word, after in pairwise(words) if word in ("--config-dir", "-cd")]
    for directory in [CONF, *map(Path, given)]:
        for path in sorted(directory.rglob("*.yaml")):
            try:
                path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                yield path


def _rules_with(key: str) -> str:
    """Return which criteria take a key of `criteria` that those at hand do not, as a hint."""
    group, _, parameter = key.partition(".")
    if group != "criteria":
        return ""
    import analysis.rules  # noqa: F401  registers the built-in rules
    from analysis.rules.rule import REGISTRY

    takers = {name: [spec.name for spec in fields(rule)] for name, rule in REGISTRY.items()}
    takers = {name: keys for name, keys in takers.items() if parameter in keys}
    if not takers:
        return ""
    first = min(takers, key=lambda name: len(takers[name]))
    others = [name for name in takers if name != first]
    return f"; add criteria={first}" + (f" (or {', '.join(others)})" if others else "")


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
