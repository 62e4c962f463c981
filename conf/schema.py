"""Types and ranges of the configuration; the values are in the YAML files beside this one.

No field has a default: a value that no YAML file sets is an error that names it. Types are strict:
'1' is no number, and true is no integer; an integer becomes a float where a number is wanted.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from annotated_types import Len
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

StageName = Literal[  # each after its inputs
    "prompts",
    "distributions",
    "certificates",
    "run_lengths",
    "drafts",
    "acceptance",
    "decoding",
    "accuracy",
    "report",
]
STAGE_NAMES: tuple[StageName, ...] = get_args(StageName)
LookupMatch = Literal["latest", "earliest"]
Dtype = Literal["float32", "bfloat16", "float16"]
MAX_NAME_BYTES = 100  # bytes; file names have at most 255, and the project adds to the name
# Of a branch, a tag or a commit, by the rules of Git: it becomes the name of a file of the cache.
REVISION = re.compile(
    r"(?!.*(?:\.\.|//|@\{|/\.|[/.]$|\.lock(?:/|$)))[^\x00-\x20\x7f~^:?*\[\\/.]"
    r"[^\x00-\x20\x7f~^:?*\[\\]{0,199}"
)
T = TypeVar("T")


def is_name(value: str) -> bool:
    """Whether a value may name a study or a model, in print and in file names."""
    return (
        re.fullmatch(r"[^\W_][^/]*", value) is not None
        and value.isprintable()  # on one line, without control characters
        and len(value.encode()) <= MAX_NAME_BYTES
    )


def _name(value: str) -> str:
    if not is_name(value):
        raise ValueError(
            "should be a name that begins with a letter or digit, on one line, without / and of "
            f"at most {MAX_NAME_BYTES} bytes"
        )
    return value


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("should not be empty")
    return value


def _revision(value: str) -> str:
    if not (REVISION.fullmatch(value) and value.isprintable()):
        raise ValueError("should be the name of a branch or tag, or a commit")
    return value


def _place(value: str) -> str:
    path = os.path.expanduser(_text(value))  # noqa: PTH111  as it is for a user that is not known
    if path.startswith("~"):
        raise ValueError("begins with ~ and no user of this machine: give the whole path")
    return path


def _device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError("should be auto, cpu, cuda or cuda:N")
    return value


def _loads(value: Any) -> Any:
    loads = value if isinstance(value, list) else [value]
    whole = all(type(load) is int and 1 <= load < 1 << 31 for load in loads)
    if not loads or not whole or len(set(loads)) < len(loads):
        raise ValueError(
            "should be a whole number from 1 on, below 2^31, or a list of different ones"
        )
    return value


def _different(values: list[T]) -> list[T]:
    if len(values) != len(set(values)):
        raise ValueError("should have no value twice")
    return values


Name = Annotated[str, AfterValidator(_name)]
PathOrHubId = Annotated[str, AfterValidator(_text)]
Revision = Annotated[str, AfterValidator(_revision)]
Place = Annotated[str, AfterValidator(_place)]  # a directory that is made where it is missing
Count = Annotated[int, Field(ge=1, lt=1 << 31)]
NonNegativeInt = Annotated[int, Field(ge=0, lt=1 << 63)]
Seed = NonNegativeInt
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
Different = AfterValidator(_different)
Loads = Annotated[int | list[int], BeforeValidator(_loads)]  # requests at once


class Section(BaseModel):
    """A part of the configuration: it has all its keys, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ModelConfig(Section):
    """A causal language model in a directory or on the hub."""

    path: PathOrHubId
    revision: Revision | None
    label: Name
    dtype: Dtype
    head_dtype: Dtype
    attention: Literal["sdpa", "eager", "flash_attention_2"]


class HeadConfig(Section):
    """Settings of a drafter that reads its target's hidden states."""

    depths: Count  # of a draft, compared by stage drafts
    layer_ids: Literal["after", "output"] | None  # what its files count; None where they tell


class DrafterConfig(ModelConfig):
    """A language model, or a head on the target."""

    head: HeadConfig | None


class Prompts(Section):
    """The source of the prompts and their sample."""

    source: PathOrHubId
    revision: Revision | None
    split: str | None
    count: Count
    min_tokens: Count
    max_tokens: Count
    seed: Seed
    template: Literal["chat", "none"]
    enable_thinking: bool


class Log(Section):
    """Properties of an engine's log; its file is the path of a target."""

    vocab_size: Count | None
    error: NotNegative | None


class Distributions(Section):
    """The source of the distributions, and the part of each that is stored.

    `source` model decodes the prompts. `source` logs reads an engine's log; steps and
    the sampling keys are then ignored.
    """

    source: Literal["model", "logs"]
    log: Log
    steps: Count
    k: Count
    temperature: NotNegative
    seed: Seed


class CertificatesConfig(Section):
    """The temperature of the certified distribution."""

    temperature: Annotated[float, Field(ge=0.01)]


class RunLengths(Section):
    """KL levels of the certifiable run lengths, in nats."""

    eps: Annotated[list[NotNegative], Len(1), Different]


class Solve(Section):
    """Goals of `python -m pipeline.solve`."""

    eps: NotNegative
    share: Annotated[float, Field(gt=0, le=1)]
    tokens: Annotated[float, Field(ge=1)]
    draft_lengths: Annotated[list[Count], Different]
    rules: list[Any]


class Ask(Section):
    """How `python -m pipeline.ask` asks a server."""

    name: Name | None  # of the files
    model: str | None
    log_probs: NonNegativeInt
    concurrent: Loads
    timeout: Annotated[float, Field(ge=1)]


class WhatIf(Section):
    """What `python -m pipeline.engine` predicts, beside what was measured."""

    acceptance: Annotated[float, Field(ge=0, le=1)] | None  # at each position of a draft
    concurrent: Count | None  # requests at once


class Decoding(Section):
    """Decoding with a drafter; `methods` is checked by `pipeline.settings.methods`."""

    prompts: Count
    # the first comes with the prompt, the last is never tested
    steps: Annotated[int, Field(ge=3, lt=1 << 31)]
    seed: Seed
    lookup: Count
    lookup_match: LookupMatch
    draft_length: Count | None
    report: bool
    methods: Any


class Accuracy(Section):
    """Tasks whose answers are scored, for every method of `Decoding`."""

    tasks: Annotated[list[str], Len(1), Different]
    items: Count | None
    seed: Seed
    margin: Share


class Statistics(Section):
    """The bootstrap over prompts."""

    resamples: Annotated[int, Field(ge=1, le=100_000)]
    confidence: Share
    seed: Seed


class Report(Section):
    """The report's files for a paper."""

    table_intervals: bool  # in the LaTeX of Tables 2 and 7
    figure_titles: bool  # in the PDF of figures


class Device(Section):
    """The device that models run on; never part of a key."""

    name: Annotated[str, AfterValidator(_device)]
    threads: Count | None
    batch: Count | None
    timings: Literal["any", "here"]


class Execution(Section):
    """The workers that compute the long stages; never part of a key."""

    engine: Literal["inline", "ray"]
    workers: Count | None

    @model_validator(mode="after")
    def _of_workers(self) -> Self:
        if self.workers is not None and self.engine == "inline":
            raise ValueError("workers means nothing with engine=inline: give engine=ray as well")
        return self


class Config(Section):
    """The whole configuration of a run."""

    study: Name
    study_name: Name | None
    note: str | None
    stage: StageName
    outputs: Place
    targets: dict[Name, ModelConfig]
    drafter: DrafterConfig | None
    prompts: Prompts
    criteria: Any
    distributions: Distributions
    certificates: CertificatesConfig
    run_lengths: RunLengths
    decoding: Decoding
    solve: Solve
    ask: Ask
    what_if: WhatIf
    accuracy: Accuracy
    statistics: Statistics
    report: Report
    device: Device
    execution: Execution
