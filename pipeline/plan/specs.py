"""Specifications: all that a stage needs to make an artifact, one dataclass a stage.

An artifact's key is made from the plain values of its specification. Fields that no result
depends on (paths, labels, devices, statistics that are printed only) are marked `APART`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from analysis.rule_config import to_mapping
from analysis.rules import Rule
from analysis.statistics.bootstrap import Resampling
from conf.schema import Device, Dtype, Execution, HeadConfig, ModelConfig, Prompts
from pipeline.files import file_digest
from pipeline.hub import Identity
from pipeline.methods import Method
from pipeline.plan.plain import As, Plain


def rule_entries(rule: Rule) -> Plain:
    """Return a rule as plain values; of a user's own with the digest of its file."""
    if not rule.own:
        return {"rule": to_mapping(rule)}
    return {"rule": to_mapping(rule), "source": file_digest(Path(inspect.getfile(type(rule))))}


def method_entries(method: Method) -> Plain:
    """Return a method as plain values, with the digest of the file of a user's own rule."""
    return method.to_mapping() | ({} if method.rule is None else rule_entries(method.rule))


def _statistics_entries(bootstrap: Resampling) -> Plain:
    resamples, confidence, seed = bootstrap
    return {"resamples": resamples, "confidence": confidence, "statistics_seed": seed}


def _part(*names: str) -> As:
    return As(inline=True, plain=lambda value: {name: getattr(value, name) for name in names})


def _each(entries: Callable[[Any], Plain]) -> As:
    return As(plain=lambda items: [entries(item) for item in items])


APART = As(apart=True)
Files = Annotated[Identity, As(inline=True)]
Statistics = Annotated[Resampling, As(inline=True, plain=_statistics_entries)]
Rules = Annotated[tuple[Rule, ...], _each(rule_entries)]
PrintedRules = Annotated[tuple[Rule, ...], _each(to_mapping)]
Methods = Annotated[tuple[Method, ...], _each(method_entries)]
Template = Annotated[Prompts, _part("template", "enable_thinking")]
Sample = Annotated[
    Prompts,
    _part("template", "enable_thinking", "split", "count", "min_tokens", "max_tokens", "seed"),
]


@dataclass(frozen=True)
class ModelSpec:
    """A model, or a head, and how it runs; `key` is its configuration key, for errors."""

    key: Annotated[str, APART]
    identity: Files
    settings: Annotated[ModelConfig, _part("dtype", "head_dtype", "attention")]
    device: Annotated[Device, APART]
    execution: Annotated[Execution, APART]
    head: Annotated[HeadConfig | None, As(plain=HeadConfig.model_dump)] = None


def model_at(
    path: Path | str,
    label: str,
    *,
    dtype: Dtype = "float32",
    head_dtype: Dtype = "float32",
    threads: int | None = None,
) -> ModelSpec:
    """Return a model of no study: one to be loaded from a directory or a hub id."""
    settings = ModelConfig(
        path=str(path), revision=None, label=label, dtype=dtype, head_dtype=head_dtype,
        attention="sdpa",
    )  # fmt: skip
    device = Device(name="cpu", threads=threads, batch=None)
    execution = Execution(engine="inline", workers=None)
    return ModelSpec("model", Identity(), settings, device, execution)


class Spec:
    """Of a stage; `models` are those that it loads: a target alone, or a target and its drafter."""

    @property
    def models(self) -> tuple[ModelSpec, ...]:
        """The models that it loads."""
        return ()


@dataclass(frozen=True)
class LogSpec:
    """The log of an engine, and the version of its reader; see `conf.schema.Log`."""

    path: Annotated[str, APART]
    identity: Files
    reader: int
    part: str
    error: float | None


@dataclass(frozen=True)
class SampledPrompts(Spec):
    """Stage prompts: rows drawn from a source."""

    tokenizer: Identity
    source: Identity
    settings: Sample
    target: Annotated[ModelConfig, APART]


@dataclass(frozen=True)
class LoggedPrompts(Spec):
    """Stage prompts: the answers of an engine's log."""

    log: LogSpec


@dataclass(frozen=True)
class DistributionsSpec(Spec):
    """Stage distributions: prompts that are decoded.

    `temperature` is of the tokens that are emitted, `certified_temperature` of the distributions
    that are stored.
    """

    model: ModelSpec
    steps: int
    k: int
    temperature: float
    seed: int
    certified_temperature: float = 1.0

    @property
    def models(self) -> tuple[ModelSpec, ...]:
        """The target."""
        return (self.model,)

    @property
    def label(self) -> str:
        """The target as printed."""
        return self.model.settings.label


@dataclass(frozen=True)
class LoggedDistributions(Spec):
    """Stage distributions: those of an engine's log."""

    log: LogSpec
    vocab_size: int
    k: int
    label: Annotated[str, APART]


@dataclass(frozen=True)
class CertificatesSpec(Spec):
    """Stage certificates: all rules on a target's distributions."""

    rules: Rules
    statistics: Annotated[Resampling, APART]


@dataclass(frozen=True)
class RunLengthsSpec(Spec):
    """Stage run_lengths."""

    eps: tuple[float, ...]
    statistics: Statistics


@dataclass(frozen=True)
class PairSpec(Spec):
    """A target and its drafter."""

    target: ModelSpec
    drafter: ModelSpec

    @property
    def models(self) -> tuple[ModelSpec, ...]:
        """The target and its drafter."""
        return self.target, self.drafter

    @property
    def label(self) -> str:
        """Target and drafter as printed."""
        return f"{self.target.settings.label} and {self.drafter.settings.label}"


@dataclass(frozen=True)
class DraftsSpec(PairSpec):
    """Stage drafts: a drafter beside its target, at the temperature of the certificates."""

    temperature: float


@dataclass(frozen=True)
class AcceptanceSpec(Spec):
    """Stage acceptance."""

    rules: Rules
    statistics: Statistics


@dataclass(frozen=True)
class DecodingSpec(PairSpec):
    """Stage decoding; see `conf.schema.Decoding`. `prompts` is how many are decoded."""

    prompts: int
    steps: int
    seed: int
    lookup: int
    methods: Methods
    statistics: Annotated[Resampling, APART]
    lookup_match: str = "latest"


@dataclass(frozen=True)
class TaskSpec:
    """A task by its name and the digest of its file; `source` is how it was given."""

    name: str
    content: str
    source: Annotated[str, APART]


@dataclass(frozen=True)
class AccuracySpec(PairSpec):
    """Stage accuracy; see `conf.schema.Accuracy`."""

    tasks: tuple[TaskSpec, ...]
    items: int | None
    seed: int
    lookup: int
    methods: Methods
    prompts: Template
    statistics: Annotated[Resampling, APART]
    margin: Annotated[float, APART]
    lookup_match: str = "latest"


@dataclass(frozen=True)
class ReportSpec(Spec):
    """Stage report: the settings that it prints besides the contents of other artifacts.

    `margin` is the loss of accuracy that matters, where answers are shown.
    """

    study: str
    targets: tuple[str, ...]
    drafter: str | None
    rules: PrintedRules
    statistics: Statistics
    note: str | None = None
    margin: float | None = None
