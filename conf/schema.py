"""Types and ranges of the configuration; the values are in the YAML files beside this one.

No field has a default: a value that no YAML file sets is an error that names it. Ranges are in the
metadata of a field; `analysis.fields.check_fields` checks them before anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

STAGE_NAMES = (  # each after its inputs
    "prompts",
    "distributions",
    "certificates",
    "run_lengths",
    "drafts",
    "acceptance",
    "decoding",
    "accuracy",
    "report",
)


LOOKUP_MATCHES = ("latest", "earliest")  # of analysis.decoding.lookup


def _ranged(allowed: str, test: Callable[[Any], bool], *, optional: bool = False) -> Any:
    if optional:
        may_be_null = {"allowed": f"null or {allowed}", "test": lambda v: v is None or test(v)}
        return field(default=MISSING, metadata=may_be_null)
    return field(default=MISSING, metadata={"allowed": allowed, "test": test})


def _one_of(*values: str, optional: bool = False) -> Any:
    return _ranged(f"one of {', '.join(values)}", lambda v: v in values, optional=optional)


def _at_least(low: float, kind: str = "an integer", *, optional: bool = False) -> Any:
    return _ranged(f"{kind} of at least {low}", lambda v: v >= low, optional=optional)


def _different(kind: str, test: Callable[[Any], bool]) -> Any:
    return _ranged(
        f"a list of different {kind}", lambda v: len(v) == len(set(v)) and all(map(test, v))
    )


LONGEST_NAME = 100  # bytes; file names have at most 255, and the project adds to the name


def is_name(value: str) -> bool:
    """Whether a value may name a study or a model, in print and in file names."""
    return (
        re.fullmatch(r"[^\W_][^/]*", value) is not None
        and value.isprintable()  # on one line, without control characters
        and len(value.encode()) <= LONGEST_NAME
    )


A_NAME = (
    "a name that begins with a letter or digit, on one line, without / and of at most "
    f"{LONGEST_NAME} bytes"
)


def _name(*, optional: bool = False) -> Any:
    return _ranged(A_NAME, is_name, optional=optional)


def _text(allowed: str) -> Any:
    return _ranged(allowed, lambda value: value.strip() != "")


@dataclass
class ModelConfig:
    """A causal language model in a directory or on the hub."""

    path: str = _text("a directory or a hub id")
    revision: str | None = MISSING
    label: str = _name()
    dtype: str = _one_of("float32", "bfloat16", "float16")
    head_dtype: str = _one_of("float32", "bfloat16", "float16")
    attention: str = _one_of("sdpa", "eager", "flash_attention_2")


@dataclass
class HeadConfig:
    """Settings of a drafter that reads its target's hidden states."""

    depths: int = _at_least(1)  # of a draft, compared by stage drafts


@dataclass
class DrafterConfig(ModelConfig):
    """A language model, or a head on the target."""

    head: HeadConfig | None = MISSING


@dataclass
class Prompts:
    """The source of the prompts and their sample."""

    source: str = _text("a file, a directory or a hub id")
    revision: str | None = MISSING
    split: str | None = MISSING
    count: int = _at_least(1)
    min_tokens: int = _at_least(1)
    max_tokens: int = _at_least(1)
    seed: int = _at_least(0)
    template: str = _one_of("chat", "none")
    enable_thinking: bool = MISSING


@dataclass
class Log:
    """Properties of an engine's log; its file is the path of a target."""

    vocab_size: int | None = _at_least(1, optional=True)
    part: str = _one_of("generated", "prompt")
    error: float | None = _at_least(0, "a number", optional=True)


@dataclass
class Distributions:
    """The source of the distributions, and the part of each that is stored.

    `source` model decodes the prompts. `source` logs reads an engine's log; steps and
    the sampling keys are then ignored.
    """

    source: str = _one_of("model", "logs")
    log: Log = MISSING
    steps: int = _at_least(1)
    k: int = _at_least(1)
    temperature: float = _at_least(0, "a number")
    seed: int = _at_least(0)


@dataclass
class CertificatesConfig:
    """The temperature of the certified distribution."""

    temperature: float = _at_least(0.01, "a number")


@dataclass
class RunLengths:
    """KL levels of the certifiable run lengths, in nats."""

    eps: list[float] = _ranged(
        "a non-empty list of different numbers of at least 0",
        lambda values: 0 < len(values) == len(set(values)) and min(values) >= 0,
    )


@dataclass
class Solve:
    """Goals of `python -m pipeline.solve`."""

    eps: float = _at_least(0, "a number")
    share: float = _ranged("a number in (0, 1]", lambda value: 0 < value <= 1)
    tokens: float = _at_least(1, "a number")
    draft_lengths: list[int] = _different("integers of at least 1", lambda v: v >= 1)
    rules: list[Any] = MISSING


@dataclass
class Ask:
    """How `python -m pipeline.ask` asks a server."""

    name: str | None = _name(optional=True)  # of the files
    model: str | None = MISSING
    log_probs: int = _at_least(0)
    concurrent: int = _at_least(1)
    timeout: float = _at_least(1, "a number")


@dataclass
class Decoding:
    """Decoding with a drafter; `methods` is checked by `pipeline.methods`."""

    prompts: int = _at_least(1)
    steps: int = _at_least(3)  # the first token comes with the prompt, the last is never tested
    seed: int = _at_least(0)
    lookup: int = _at_least(1)
    lookup_match: str = _one_of(*LOOKUP_MATCHES)
    draft_length: int | None = _at_least(1, optional=True)
    report: bool = MISSING
    methods: Any = MISSING


@dataclass
class Accuracy:
    """Tasks whose answers are scored, for every method of `Decoding`."""

    tasks: list[str] = _ranged(
        "a non-empty list of different tasks", lambda names: 0 < len(names) == len(set(names))
    )
    items: int | None = _at_least(1, optional=True)
    seed: int = _at_least(0)
    margin: float = _ranged("a number in (0, 1)", lambda value: 0 < value < 1)


@dataclass
class Statistics:
    """The bootstrap over prompts."""

    resamples: int = _ranged("an integer from 1 to 100000", lambda value: 1 <= value <= 100_000)
    confidence: float = _ranged("a number in (0, 1)", lambda value: 0 < value < 1)
    seed: int = _at_least(0)


@dataclass
class Device:
    """The device that models run on; never part of a fingerprint."""

    name: str = _ranged(
        "auto, cpu, cuda or cuda:N",
        lambda value: re.fullmatch(r"auto|cpu|cuda(:\d+)?", value) is not None,
    )
    threads: int | None = _at_least(1, optional=True)
    batch: int | None = _at_least(1, optional=True)


@dataclass
class Execution:
    """The workers that compute the long stages; never part of a fingerprint."""

    engine: str = _one_of("inline", "ray")
    workers: int | None = _at_least(1, optional=True)


@dataclass
class Config:
    """The whole configuration of a run."""

    study: str = _name()
    study_name: str | None = _name(optional=True)
    note: str | None = MISSING
    stage: str = _one_of(*STAGE_NAMES)
    outputs: str = _text("a directory")
    targets: dict[str, ModelConfig] = field(
        default_factory=dict, metadata={"names": is_name, "a_name": A_NAME}
    )
    drafter: DrafterConfig | None = MISSING
    prompts: Prompts = MISSING
    criteria: Any = MISSING
    distributions: Distributions = MISSING
    certificates: CertificatesConfig = MISSING
    run_lengths: RunLengths = MISSING
    decoding: Decoding = MISSING
    solve: Solve = MISSING
    ask: Ask = MISSING
    accuracy: Accuracy = MISSING
    statistics: Statistics = MISSING
    device: Device = MISSING
    execution: Execution = MISSING


def register_schema() -> None:
    """Register the types with Hydra, as the groups `schema` and `schema/model`."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    store.store(group="schema", name="model", node=ModelConfig)
    store.store(group="schema", name="drafter", node=DrafterConfig)
