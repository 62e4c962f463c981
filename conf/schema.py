"""Types and ranges of the configuration; the values are in the YAML files beside this one.

No field has a default: what a YAML file does not set is missing, and named as such. Ranges
stand in the metadata of a field; `analysis.fields.check` checks them, before any work is done.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

STAGES = (  # each behind those it is made from
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


ENGINES = ("vllm", "sglang", "tensorrt_llm", "medusa", "llama_cpp")  # that settings are written for
MEASURED = ("kl", "tv", "hellinger", "reverse_kl")  # divergences that stage drafts measures


def _ranged(allowed: str, test: Callable[[Any], bool]) -> Any:
    return field(default=MISSING, metadata={"allowed": allowed, "test": test})


def _one_of(*values: str) -> Any:
    return _ranged("one of " + ", ".join(values), lambda value: value in values)


def _at_least(low: int) -> Any:
    return _ranged(f"an integer of at least {low}", lambda value: value >= low)


def _optional_at_least(low: int) -> Any:
    return _ranged(f"null or an integer of at least {low}", lambda v: v is None or v >= low)


LONGEST_NAME = 100  # bytes: a file name has at most 255, a part of which is ours


def is_name(value: str) -> bool:
    """Whether a value may name a study or a model, in what is printed and in file names."""
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
    return _ranged(
        f"{'null or ' if optional else ''}{A_NAME}",
        lambda value: (optional and value is None) or is_name(value),
    )


def _text(allowed: str) -> Any:
    return _ranged(allowed, lambda value: value.strip() != "")


@dataclass
class Model:
    """A causal language model in a directory or on the hub."""

    path: str = _text("a directory or a hub id")
    revision: str | None = MISSING
    label: str = _name()
    dtype: str = _one_of("float32", "bfloat16", "float16")
    head_dtype: str = _one_of("float32", "bfloat16", "float16")
    attention: str = _one_of("sdpa", "eager", "flash_attention_2")


@dataclass
class Head:
    """What is asked of a drafter that reads its target's hidden states."""

    vocabulary: str = _one_of("full", "reduced")  # reduced: the tokens that its files name
    depths: int = _at_least(1)  # of a draft, at which stage drafts compares it


@dataclass
class Drafter(Model):
    """A language model, or a head on the target."""

    head: Head | None = MISSING


@dataclass
class Prompts:
    """Which prompts are sampled, and from where."""

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
    """What is said of the log of an engine besides its file, the path of a target."""

    vocab_size: int | None = _optional_at_least(1)
    part: str = _one_of("generated", "prompt")
    draft_part: str = _one_of("generated", "prompt")
    error: float | None = _ranged(
        "null or a number of at least 0", lambda value: value is None or value >= 0
    )


@dataclass
class Distributions:
    """Where distributions come from, and how much of each is stored.

    `source` logs takes what an engine logged; steps, temperatures and all that chooses the emitted
    token then mean nothing. `source` answers scores the answers of the files `answers` with the
    target; temperature, top_p and top_k then say how these were sampled.
    """

    source: str = _one_of("model", "logs", "answers")
    answers: list[str] = MISSING
    log: Log = MISSING
    steps: int = _at_least(1)
    k: int = _at_least(1)
    temperatures: list[float] = _ranged(
        "a list of different numbers of at least 0.01",
        lambda values: len(values) == len(set(values)) and all(v >= 0.01 for v in values),
    )
    temperature: float = _ranged("a number of at least 0", lambda value: value >= 0)
    top_p: float = _ranged("a number in (0, 1]", lambda value: 0 < value <= 1)
    top_k: int = _at_least(0)
    seed: int = _at_least(0)


@dataclass
class Certificates:
    """Which distribution is certified, and in which divergence of target and draft."""

    temperature: float = _ranged("a number of at least 0.01", lambda value: value >= 0.01)
    divergence: str = _text("kl, tv, hellinger, reverse_kl or renyi:a")


@dataclass
class RunLengths:
    """KL levels of the certifiable run lengths, in nats."""

    eps: list[float] = _ranged(
        "a non-empty list of different numbers of at least 0",
        lambda values: 0 < len(values) == len(set(values)) and min(values) >= 0,
    )
    window: int = _at_least(1)


@dataclass
class Acceptance:
    """What is asked of a target and a drafter besides the rules of `criteria`."""

    presets: dict[str, Any] = MISSING  # rules as inference engines ship them, by printed name
    dials: list[Any] = MISSING  # rules with lists of values: what each relaxation costs and gains
    draft_length: int = _at_least(1)  # of the calls that a mean KL certifies
    divergences: list[str] = _ranged(
        f"a non-empty list of different ones of {', '.join(MEASURED)}",
        lambda values: 0 < len(values) == len(set(values)) and set(values) <= set(MEASURED),
    )


@dataclass
class Solve:
    """What `python -m pipeline.solve` looks for."""

    eps: float = _ranged("a number of at least 0", lambda value: value >= 0)
    share: float = _ranged("a number in (0, 1]", lambda value: 0 < value <= 1)
    tokens: float = _ranged("a number of at least 1", lambda value: value >= 1)
    draft_lengths: list[int] = _ranged(
        "a list of different integers of at least 1",
        lambda values: len(values) == len(set(values)) and all(v >= 1 for v in values),
    )
    dials: list[Any] = MISSING  # rules with the range of one parameter: [strict, relaxed]
    engine: str | None = _ranged(
        "null or one of " + ", ".join(ENGINES), lambda value: value is None or value in ENGINES
    )


@dataclass
class Engine:
    """What `python -m pipeline.reconcile` reads besides its file."""

    since: str | None = MISSING
    draft_length: int | None = _optional_at_least(1)


@dataclass
class Decoding:
    """Decoding with a drafter; `methods` is checked by `pipeline.plan.methods`."""

    prompts: int = _at_least(1)
    steps: int = _at_least(3)  # the first token comes with the prompt, the last is never tested
    seed: int = _at_least(0)
    lookup: int = _at_least(1)
    draft_length: int | None = _optional_at_least(1)
    batches: list[int] = _ranged(
        "a list of different integers of at least 1",
        lambda sizes: all(size >= 1 for size in sizes) and len(sizes) == len(set(sizes)),
    )
    report: bool = MISSING
    methods: Any = MISSING


@dataclass
class Accuracy:
    """Tasks whose answers are scored, decoded with every method; `methods` as of `Decoding`."""

    tasks: list[str] = _ranged(
        "a non-empty list of different tasks", lambda names: 0 < len(names) == len(set(names))
    )
    items: int | None = _optional_at_least(1)
    seed: int = _at_least(0)
    lookup: int = _at_least(1)
    margin: float = _ranged("a number in (0, 1)", lambda value: 0 < value < 1)
    include: str | None = MISSING
    foreign_code: bool = MISSING
    methods: Any = MISSING


@dataclass
class Statistics:
    """The bootstrap over prompts."""

    resamples: int = _ranged("an integer from 1 to 100000", lambda value: 1 <= value <= 100_000)
    confidence: float = _ranged("a number in (0, 1)", lambda value: 0 < value < 1)
    seed: int = _at_least(0)


@dataclass
class Device:
    """Where models run; never part of what is computed."""

    name: str = _ranged(
        "auto, cpu, cuda or cuda:N",
        lambda value: re.fullmatch(r"auto|cpu|cuda(:\d+)?", value) is not None,
    )
    threads: int | None = _optional_at_least(1)
    batch: int | None = _optional_at_least(1)


@dataclass
class Execution:
    """Who computes the long stages; never part of what is computed."""

    engine: str = _one_of("inline", "ray")
    workers: int | None = _optional_at_least(1)
    address: str | None = _ranged(
        "null, auto or HOST:PORT",
        lambda value: value is None or re.fullmatch(r"auto|[^\s/:]+:\d+", value) is not None,
    )


@dataclass
class Config:
    """The whole configuration of a run."""

    study: str = _name()
    study_name: str | None = _name(optional=True)
    note: str | None = MISSING
    stage: str = _one_of(*STAGES)
    outputs: str = _text("a directory")
    targets: dict[str, Model] = field(
        default_factory=dict, metadata={"names": is_name, "a_name": A_NAME}
    )
    drafter: Drafter | None = MISSING
    prompts: Prompts = MISSING
    criteria: Any = MISSING
    distributions: Distributions = MISSING
    certificates: Certificates = MISSING
    run_lengths: RunLengths = MISSING
    acceptance: Acceptance = MISSING
    decoding: Decoding = MISSING
    solve: Solve = MISSING
    engine: Engine = MISSING
    accuracy: Accuracy = MISSING
    statistics: Statistics = MISSING
    device: Device = MISSING
    execution: Execution = MISSING


def register() -> None:
    """Make the types known to Hydra as the groups `schema` and `schema/model`."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    store.store(group="schema", name="model", node=Model)
    store.store(group="schema", name="drafter", node=Drafter)
