"""Stages, and the artifacts that they are to make.

A stage is one module of `pipeline.stages` that exports ``STAGE``. Every command imports all of
them, so that what only a computation needs is imported by its function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.core.files import json_digest

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.core.store import Artifact, Out

Json = dict[str, Any]
Columns = Mapping[str, tuple[str, str]]  # name: Arrow type and meaning


@dataclass(frozen=True)
class Stage:
    """A stage of the pipeline.

    Attributes:
        name: that of its module, of its directory, and in `stage=NAME`.
        version: raised whenever its results change: its artifacts, and all that are made from
            them, are then made anew.
        tables: the columns of each Parquet file, whose meanings the files carry as metadata.
        plan: returns the artifacts that a study needs, target by target. Cheap: it loads no model.
        compute: `compute(task, inputs, out)` writes an artifact.
        summary: rows of an artifact, for the terminal and for the table of a sweep.
        printed: whether a single run prints these rows as well.
    """

    name: str
    version: int
    tables: Mapping[str, Columns]
    plan: Callable[[Any], Iterable[Task]]
    compute: Callable[[Task, Mapping[str, Artifact], Out], None]
    summary: Callable[[Task, Artifact], list[Json]]
    printed: bool = False

    def schema(self, name: str = "data") -> pa.Schema:
        """Return the Arrow schema of one of its files."""
        import pyarrow as pa

        return pa.schema(
            [
                pa.field(column, arrow_type(kind), metadata={"meaning": meaning})
                for column, (kind, meaning) in self.tables[name].items()
            ]
        )


def arrow_type(kind: str) -> pa.DataType:
    """Return an Arrow type by its name.

    >>> arrow_type("list<int32>")
    ListType(list<item: int32>)
    """
    import pyarrow as pa

    inner = kind.removeprefix("list<").removesuffix(">")
    return pa.list_(arrow_type(inner)) if inner != kind else pa.type_for_alias(kind)


@dataclass(frozen=True, eq=False)
class Task:
    """An artifact that may not exist yet.

    Attributes:
        stage: the stage that makes it.
        label: printed, and in the name of its directory.
        settings: all that its content depends on besides its inputs, as JSON values.
        inputs: the artifacts that it is made from, by name.
        runtime: what it takes to run and no result depends on: devices, paths, printed names.
    """

    stage: Stage
    label: str
    settings: Json
    inputs: Mapping[str, Task] = field(default_factory=dict)
    runtime: Any = None

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
