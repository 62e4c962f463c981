"""Stages, and the artifacts that they are to make.

A stage is a module of `pipeline.stages` that exports ``STAGE``. Every command imports all of them,
so that what only a computation needs is imported by the function that computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.columns import Columns, arrow
from pipeline.files import json_digest

if TYPE_CHECKING:
    import pyarrow as pa

    from analysis.rules import Rule
    from analysis.statistics.bootstrap import Resampling
    from pipeline.methods import Method
    from pipeline.models.spec import ModelSpec
    from pipeline.store import Artifact, Out
    from pipeline.study import Study

Json = dict[str, Any]
Inputs = Mapping[str, "Artifact"]  # by name


def row_counts(task: Task, artifact: Artifact) -> list[Json]:
    """Sum up an artifact of which no more is known: where it lies, and how many rows it has."""
    counts = {f"{name} rows": count for name, count in artifact.record["rows"].items()}
    return [{"artifact": f"{task.stage.name}/{artifact.directory.name}", **counts}]


def statistics_entries(bootstrap: Resampling) -> Json:
    """Return the settings of a bootstrap as those of an artifact."""
    resamples, confidence, seed = bootstrap
    return {"resamples": resamples, "confidence": confidence, "statistics_seed": seed}


def nothing_refused(_: Study) -> None:
    """Refuse no configuration. A name, since a task goes to other processes with its stage."""


@dataclass(frozen=True)
class Stage:
    """A stage of the pipeline.

    Attributes:
        name: that of its module, of its directory, and in `stage=NAME`.
        version: raised whenever its results change: its artifacts, and all that are made from
            them, are then made anew.
        upstream: the stages that its artifacts may be made from.
        tables: the columns of each Parquet file; the files carry their meanings as metadata.
        plan: returns the artifacts that a study needs, target by target. Cheap: it loads no model.
        compute: writes an artifact.
        check: refuses a configuration, by a PipelineError, before any file is looked at.
        summary: rows of an artifact, for the terminal and for the table of a sweep.
        printed: whether a single run prints these rows as well.
        highlights: gives those of the rows that a single run prints, and which these are; None: it
            prints all.
    """

    name: str
    version: int
    upstream: tuple[str, ...]
    tables: Mapping[str, Columns]
    plan: Callable[[Study], Iterable[Task]]
    compute: Callable[[Task, Inputs, Out], None]
    check: Callable[[Study], None] = nothing_refused
    summary: Callable[[Task, Artifact], list[Json]] = row_counts
    printed: bool = False
    highlights: Callable[[Task, list[Json]], tuple[list[Json], str]] | None = None

    def schema(self, name: str = "data", *, optional: bool = True) -> pa.Schema:
        """Return the Arrow schema of one of its files, with or without its optional columns."""
        import pyarrow as pa

        return pa.schema(
            [
                pa.field(label, arrow(column.kind), metadata={"meaning": column.meaning})
                for label, column in self.tables[name].items()
                if optional or not column.optional
            ]
        )


@dataclass(frozen=True)
class Runtime:
    """What a task takes to be computed and summed up besides its settings and inputs.

    Attributes:
        label: its target as printed.
        statistics: the bootstrap's settings.
        models: those that it loads: a target alone, or a target and its drafter.
        rules: those that its settings describe.
        methods: likewise.
        extra: paths, and what else one stage needs, by name.
    """

    label: str
    statistics: Resampling
    models: tuple[ModelSpec, ...] = ()
    rules: tuple[Rule, ...] = ()
    methods: tuple[Method, ...] = ()
    extra: Json = field(default_factory=dict)

    @property
    def pair(self) -> str:
        """Its models as printed."""
        return " and ".join(model.settings.label for model in self.models)


@dataclass(frozen=True, eq=False)
class Task:
    """An artifact that may not exist yet.

    Attributes:
        stage: the stage that makes it.
        label: printed, and in the name of its directory.
        settings: all that its content depends on besides its inputs, as JSON values.
        inputs: the artifacts that it is made from, by name.
        runtime: what it takes besides, which no content depends on.
    """

    stage: Stage
    label: str
    settings: Json
    inputs: Mapping[str, Task]
    runtime: Runtime

    @cached_property
    def key(self) -> str:
        """SHA-256 of all that determines the artifact. TypeError, ValueError: not as JSON."""
        above = {name: task.key for name, task in self.inputs.items()}
        return json_digest([self.stage.name, self.stage.version, self.settings, above])

    @property
    def name(self) -> str:
        """Stage and label, as printed."""
        return f"{self.stage.name} {self.label}"


def with_inputs(tasks: Iterable[Task]) -> dict[str, Task]:
    """Return tasks and all they are made from, by key, inputs first."""
    ordered: dict[str, Task] = {}

    def visit(task: Task) -> None:
        if task.key not in ordered:
            for above in task.inputs.values():
                visit(above)
            ordered[task.key] = task

    for task in tasks:
        visit(task)
    return ordered
