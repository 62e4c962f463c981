"""Facts of records that later stages and the report read, by `Artifact.facts`.

A stage records more than is listed here, for whoever opens record.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pipeline.columns import Row
from pipeline.methods import Method, read_method
from pipeline.plan.plain import As


@dataclass(frozen=True)
class ExcludedRows:
    """Rows of a source that were excluded for one reason: how many, and the first ones."""

    rows: int
    first: list[Row]  # source_row and prompt_id


@dataclass(frozen=True)
class TreeFacts:
    """The tree of a run: its kind, as printed, size, measured acceptance and parents if fixed."""

    name: str
    shown: str
    nodes: int
    depth: int
    acceptance: list[float] | None = None
    parents: list[int] | None = None


@dataclass(frozen=True)
class RunFacts:
    """A method that was decoded; `baseline` is the index of the target alone, where it is noted."""

    method: str  # as printed
    lossless: bool
    decoded: Annotated[Method, As(inline=True, plain=Method.to_mapping, read=read_method)]
    shape: TreeFacts | None = None
    baseline: int | None = None


@dataclass(frozen=True)
class DecodingFacts:
    """Of stage decoding: its runs, baselines first, and where they were timed.

    `bytes` are those of target and drafter: of the model, and of its cache for a token.
    """

    runs: list[RunFacts]
    bytes: dict[str, dict[str, int]]
    device: str
    torch_threads: int
    vocab_size: int
    failed_prompts: int


@dataclass(frozen=True)
class AccuracyFacts:
    """Of stage accuracy: the names of its tasks, and its runs, baselines first."""

    tasks: list[str]
    runs: list[RunFacts]
