"""The facts of records, a dataclass for each stage: what later stages and the report read of them.

Facts that depend on the machine, and counts for a reader of record.json, stand among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pipeline.plan.method import Method, read_method
from pipeline.plan.specs import HeadSpec
from pipeline.store.distributions import StoredFacts
from pipeline.store.plain import As


@dataclass(frozen=True)
class Machine:
    """Where a stage ran, and who computed its shards."""

    device: str
    torch_threads: int
    tf32: bool
    cudnn_attention: bool
    peak_memory_bytes: int | None = None
    engine: str | None = None
    workers: int | None = None


OneMachine = Annotated[Machine, As(inline=True)]


@dataclass(frozen=True)
class ExcludedRow:
    """A row of a source, from 0."""

    source_row: int
    prompt_id: str


@dataclass(frozen=True)
class ExcludedRows:
    """Rows of a source that were excluded for one reason: how many, and the first."""

    rows: int
    first: list[ExcludedRow]


@dataclass(frozen=True)
class SampledFacts:
    """Of stage prompts: rows of the source, and those that were excluded by reason."""

    source_rows: int
    excluded: dict[str, ExcludedRows]


@dataclass(frozen=True)
class AnswersFacts:
    """Of stage prompts, from answers: their number, and those that were left out by reason."""

    answers: int
    excluded: dict[str, int]


@dataclass(frozen=True)
class ServedFacts(AnswersFacts):
    """Also how many had token ids, what was noted of others, and how requests sampled."""

    given_ids: int
    noted: dict[str, int]
    sampling: dict[str, list[float]]


@dataclass(frozen=True)
class Throughput:
    """Tokens of finished shards, and seconds by part of a step."""

    tokens: int
    tokens_per_second: float
    seconds: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class DistributionsFacts(StoredFacts):
    """Of stage distributions, from a model; `temperatures` are those of StoredFacts."""

    model: str
    machine: OneMachine
    throughput: Annotated[Throughput, As(inline=True)]
    eos: list[int]
    revision: str | None = None
    commit: str | None = None
    origin: dict[str, str] | None = None
    shards: int = 0
    batch: int = 0  # prompts of the largest shard
    drift: dict[str, dict[str, Any]] | None = None  # of served answers, by file


@dataclass(frozen=True, kw_only=True)
class LoggedFacts(StoredFacts):
    """Of stage distributions, from an engine's log."""

    model: str
    answers: int
    trajectories: int
    excluded: dict[str, int]  # by reason
    token_ids: str  # whose they are
    values: str  # which log-probabilities they are taken for


@dataclass(frozen=True)
class RunLengthsFacts:
    """Of stage run_lengths."""

    prompts: int
    steps: int


@dataclass(frozen=True)
class ModelFacts:
    """A model of stage drafts."""

    model: str
    dtype: str
    logits_dtype: str
    vocab_size: int
    commit: str | None = None
    head: HeadSpec | None = None


@dataclass(frozen=True)
class OfPair:
    """A number of the target and of its drafter."""

    target: float
    drafter: float


@dataclass(frozen=True)
class LogitDrift:
    """How far the logits of scoring are from those that the text was decoded with."""

    max_logit_difference: float
    changed_argmax: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class DraftsFacts(StoredFacts):
    """Of stage drafts.

    Attributes:
        sampled_temperature: at which answers were drawn from the whole distribution, else None.
        completed: how full_kl gives probability to tokens that a head lacks; None: it lacks none.
        largest_mass_left_out: probability of rows that one model has alone, at any step.
    """

    target: ModelFacts
    drafter: ModelFacts
    largest_mass_left_out: OfPair
    drift: LogitDrift
    steps: int
    machine: OneMachine
    sampled_temperature: float | None = None
    completed: float | str | None = None
    shards: int = 0


@dataclass(frozen=True)
class Slack:
    """The least distance of a step's KL from its certificate, nats, and the rule."""

    nats: float
    rule: str


@dataclass(frozen=True)
class AcceptanceFacts:
    """Of stage acceptance: soundness of the certificates; see its `soundness`."""

    target: str
    drafter: str
    steps: int
    prompts: int
    rules: int
    checked: int
    certified: int
    violations: int
    mean_kl: float
    median_kl: float
    tightest_rejected: Slack | None = None
    tightest_certified: Slack | None = None
    sampled_temperature: float | None = None


@dataclass(frozen=True)
class TreeFacts:
    """The tree of a run: its kind, as printed, size, measured acceptance and parents if fixed."""

    name: str
    shown: str
    nodes: int
    depth: int
    acceptance: list[float] | None = None
    parents: list[int] | None = None


def _method_entries(method: Method) -> dict[str, Any]:
    return method.to_mapping()


@dataclass(frozen=True)
class RunFacts:
    """A method that was decoded; `baseline` is the index of the target alone, where it is noted."""

    method: str  # as printed
    lossless: bool
    decoded: Annotated[Method, As(inline=True, plain=_method_entries, read=read_method)]
    shape: TreeFacts | None = None
    baseline: int | None = None


@dataclass(frozen=True)
class ModelBytes:
    """Memory of a model, and of its key-value cache for one token."""

    model: int
    cache_per_token: int


@dataclass(frozen=True)
class PassSeconds:
    """The least seconds of passes over `tokens` of each of `batch` texts, of target or drafter."""

    model: str
    batch: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class DecodingFacts:
    """Of stage decoding: its runs, baselines first. The record lacks `passes`: they are a table."""

    runs: list[RunFacts]
    bytes: dict[str, ModelBytes]  # of target and drafter
    machine: OneMachine
    vocab_size: int
    failed_prompts: int = 0
    passes: Sequence[PassSeconds] = ()


@dataclass(frozen=True)
class AccuracyFacts:
    """Of stage accuracy: the digests of its tasks by name, and its runs, baselines first."""

    tasks: dict[str, str]
    runs: list[RunFacts]
    machine: OneMachine


@dataclass(frozen=True)
class ReportFacts:
    """Of stage report: the names of its tables and figures, timings apart."""

    tables: list[str]
    figures: list[str]
