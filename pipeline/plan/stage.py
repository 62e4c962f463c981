"""Stages: one object each, with everything that the rest of the pipeline needs to know.

A stage is a module of `pipeline.stages`, named as the stage, that exports ``STAGE``. It is imported
by every command, so what only a computation needs is imported by the module that computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from analysis.report.text import mark_of
from analysis.rules import Rule
from analysis.statistics.bootstrap import Resampling
from conf.schema import Config, DrafterConfig, ModelConfig
from pipeline.errors import PipelineError
from pipeline.hub import Identities, local_path
from pipeline.plan.specs import DistributionsSpec, LogSpec, ModelSpec, PairSpec
from pipeline.store.artifacts import Artifact
from pipeline.store.columns import Columns
from pipeline.store.node import Node

SummaryRow = dict[str, Any]  # of a table
READER = 5  # version of what is read of the logs of engines


@dataclass(frozen=True)
class Request:
    """The settings of a command, and the nodes of the stages that were planned before.

    Attributes:
        config: checked.
        rules: the acceptance rules of `config.criteria`, built.
        named: the rules that methods and presets name, as of `pipeline.plan.rules.rules_by_name`.
        identities: of the files that the configuration names.
        wanted: the requested stage, and all it is made from.
        made: whether the artifact of a node is there.
        nodes: by stage, target by target.
    """

    config: Config
    rules: list[Rule]
    named: dict[str, list[Rule]]
    identities: Identities
    wanted: frozenset[str]
    made: Callable[[Node], bool]
    nodes: dict[str, list[Node]] = field(default_factory=dict)

    def by_target(self, stage: str) -> list[tuple[Node, ...]]:
        """Return the nodes of an earlier stage, those of each target together."""
        nodes, count = self.nodes[stage], len(self.config.targets)
        each = len(nodes) // count
        return [tuple(nodes[at * each : (at + 1) * each]) for at in range(count)]

    @property
    def statistics(self) -> Resampling:
        """The settings of the bootstrap."""
        return Resampling(**vars(self.config.statistics))

    def model_spec(self, key: str, model: ModelConfig) -> ModelSpec:
        """Return the specification of a model; `key` is its configuration key."""
        identity = self.identities.model(model.path, model.revision, f"{key}.path")
        device, execution = self.config.device, self.config.execution
        head = model.head if isinstance(model, DrafterConfig) else None
        return ModelSpec(key, identity, model, device, execution=execution, head=head)

    def log_spec(self, key: str, path: str) -> LogSpec:
        """Return the specification of an engine's log.

        Raises:
            PipelineError: there is no such file.
        """
        key, log = f"{key}.path", self.config.distributions.log
        local = local_path(path, key)
        if local is None or not local.is_file():
            raise PipelineError(f"{key}={path}: there is no such file")
        identity = self.identities.source(path, None, key)
        return LogSpec(path, identity, READER, part=log.part, error=log.error)


def row_counts(node: Node, artifact: Artifact) -> list[SummaryRow]:
    """Sum up an artifact of which no more is known: where it lies, and how many rows it has."""
    counts = {f"{name} rows": count for name, count in artifact.record.rows.items()}
    return [{"artifact": f"{node.stage}/{artifact.directory.name}", **counts}]


@dataclass(frozen=True)
class Stage:
    """A stage.

    Attributes:
        name: that of its module, of the configuration key `stage`, and of its directory.
        version: raised when what it computes changes; its artifacts, and all that depend on them,
            are then made anew.
        upstream: the stages that its artifacts may be made from.
        columns: of each Parquet file, type and meaning of each column.
        nodes: gives the artifacts to be of a request.
        module: the module whose `compute(node, upstream, pending)` makes an artifact.
        check: refuses a configuration, by a PipelineError, before any file is looked at.
        summary: gives the rows of an artifact in the table of a sweep.
        printed: whether a single run prints these rows as well.
        matter: gives those of an artifact's rows that a single run prints, and which these are;
            None: it prints all.
        joint: whether all nodes on one upstream are made in one pass, under one lock, by
            `compute(nodes, upstream, pending)`.
    """

    name: str
    version: int
    upstream: tuple[str, ...]
    columns: Mapping[str, Columns]
    nodes: Callable[[Request], Iterable[Node]]
    module: str
    check: Callable[[Request], None] = lambda _: None
    summary: Callable[[Node, Artifact], list[SummaryRow]] = row_counts
    printed: bool = False
    matter: Callable[[Node, list[SummaryRow]], tuple[list[SummaryRow], str]] | None = None
    joint: bool = False


def stage_of(node: Node) -> Stage:
    """Return the stage of a node."""
    stage: Stage = import_module(f"pipeline.stages.{node.stage}").STAGE
    return stage


def models_of(node: Node) -> list[ModelSpec]:
    """Return the models that a node loads: a target alone, or a target and its drafter.

    None where engines' logs are read.
    """
    if isinstance(node.spec, DistributionsSpec):
        return [node.spec.model]
    return [node.spec.target, node.spec.drafter] if isinstance(node.spec, PairSpec) else []


def lower_bound_mark(column: str, row: SummaryRow) -> SummaryRow:
    """Say whether a length, of a row with its cut, is a lower bound."""
    from analysis.statistics.trajectories import CENSORED

    return {mark_of(column): bool(row["cut"] > CENSORED)}
