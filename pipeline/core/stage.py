"""What a stage is, its tasks (artifacts to be made) and its artifacts.

A stage is a module of `pipeline.stages` that exports ``STAGE``. Every command imports all stages,
so slow imports belong inside the functions that compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.columns import Columns, check_schema, schema
from pipeline.core.errors import DamagedError
from pipeline.core.files import file_digest, json_digest, read_json, unreadable

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from analysis.statistics.bootstrap import Resampling
    from conf.schema import Device, Execution, HeadConfig, ModelConfig
    from pipeline.core.timings import Asked

RECORD = "record.json"
TIMINGS = "timings/"  # the files that depend on the clock
Json = dict[str, Any]
Inputs = Mapping[str, "Artifact"]  # by name


def row_counts(task: Task, artifact: Artifact) -> list[Json]:
    """Return an artifact's name and numbers of rows, the default `summary` of a stage."""
    counts = {f"{name} rows": count for name, count in artifact.record["rows"].items()}
    return [{"artifact": f"{task.stage.name}/{artifact.directory.name}", **counts}]


def statistics_entries(bootstrap: Resampling) -> Json:
    """Return the settings of a bootstrap as entries of a task's settings."""
    resamples, confidence, seed = bootstrap
    return {"resamples": resamples, "confidence": confidence, "statistics_seed": seed}


@dataclass(frozen=True)
class Stage:
    """A stage of the pipeline."""

    name: str  # as in `stage=NAME`; also of its module and directory
    # raise it whenever results change: the stage's artifacts and all made from them are then
    # computed again
    version: int
    upstream: tuple[str, ...]  # the stages whose artifacts its own may be made from
    # the columns of each Parquet file, which carries their meanings as metadata
    tables: Mapping[str, Columns]
    # returns the tasks of a `pipeline.study.Study`, target by target; fast, loads no model
    plan: Callable[[Any], Iterable[Task]]
    compute: Callable[[Task, Inputs, Out], None]  # writes the artifact of a task
    # raises a PipelineError if a study can't be run; called before any file is read
    check: Callable[[Any], None] | None = None
    # raises a PipelineError if a task can't be computed; called before any task is computed
    check_task: Callable[[Task], None] | None = None
    # returns the rows that summarise an artifact, for the terminal and the table of a sweep
    summary: Callable[[Task, Artifact], list[Json]] = row_counts
    printed: bool = False  # whether a single run prints these rows, too

    def schema(self, name: str = "data") -> pa.Schema:
        """Return the Arrow schema of one of its Parquet files."""
        return schema(self.tables[name])


@dataclass(frozen=True)
class Identity:
    """What identifies files: a digest of local ones, or a commit of the hub."""

    content: str | None = None
    hub: str | None = None  # owner/name
    commit: str | None = None

    @property
    def entries(self) -> dict[str, str]:
        """The attributes that are set, as JSON values."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class ModelSpec:
    """A model or EAGLE-3 head and how it is run; `key` is its configuration key, for errors."""

    key: str
    identity: Identity
    settings: ModelConfig
    device: Device
    execution: Execution
    head: HeadConfig | None = None

    @property
    def entries(self) -> Json:
        """What results depend on, as JSON values: files, precision, attention and head."""
        entries: Json = {**self.identity.entries}
        entries |= self.settings.model_dump(include={"dtype", "head_dtype", "attention"})
        if self.head is not None:
            entries |= {"head": self.head.model_dump(exclude_none=True)}
        return entries


@dataclass(frozen=True)
class Runtime:
    """What a task needs besides settings and inputs, without effect on the artifact's content.

    Stages that need more derive a class of their own.
    """

    label: str  # the printed name of its target
    # of the bootstrap; also in the task's settings if the content depends on them
    statistics: Resampling
    models: tuple[ModelSpec, ...] = ()  # that it loads: a target, or a target and its drafter
    path: str = ""  # of the target's files, or of its log

    @property
    def pair(self) -> str:
        """The printed names of its models."""
        return " and ".join(model.settings.label for model in self.models)


@dataclass(frozen=True, eq=False)
class Task:
    """An artifact that may not exist yet, and how to make it."""

    stage: Stage  # the stage that makes it
    label: str  # printed, and part of the directory's name
    settings: Json  # all that the content depends on besides the inputs, as JSON values
    inputs: Mapping[str, Task]  # the artifacts that it is made from, by name
    runtime: Runtime  # what else it needs, such as paths and the device
    asked: Asked | None = None  # the machine whose timings are asked for; None: any

    @cached_property
    def key(self) -> str:
        """The SHA-256 of everything that determines the artifact's content.

        Raises:
            TypeError, ValueError: settings are not JSON values.
        """
        input_keys = {name: task.key for name, task in self.inputs.items()}
        return json_digest([self.stage.name, self.stage.version, self.settings, input_keys])

    @property
    def name(self) -> str:
        """The stage and the label, as printed."""
        return f"{self.stage.name} {self.label}"


def with_inputs(tasks: Iterable[Task]) -> dict[str, Task]:
    """Return tasks and all their inputs, by key, inputs first."""
    ordered: dict[str, Task] = {}
    for task in tasks:
        ordered |= with_inputs(task.inputs.values()) | {task.key: task}
    return ordered


def check_files(directory: Path, record: Json) -> None:
    """Read every file of an artifact, or of a copy, and compare it with the record.

    Raises:
        DamagedError: a file is missing, modified or unexpected. An added file counts, because
            reading the directory as a data set would include it.
    """
    paths = (path for path in directory.rglob("*") if not path.is_dir())
    names = {path.relative_to(directory).as_posix() for path in paths} - {RECORD}
    for name in sorted(names | record["files"].keys()):
        path = directory / name
        try:
            same = file_digest(path) == record["files"].get(name)
        except OSError as error:
            raise unreadable(directory, path, error) from error
        if not same:
            raise DamagedError(directory, f"{path} is not what was written")


@dataclass(frozen=True)
class Artifact:
    """A published artifact; `tables` are the columns of its stage's files."""

    directory: Path
    tables: Mapping[str, Columns]

    @cached_property
    def record(self) -> Json:
        """What `Store` wrote when it published the artifact.

        Raises:
            DamagedError: it was changed, or is the record of another artifact.
        """
        record = read_json(self.directory / RECORD)
        if not self.directory.name.endswith(f"-{record['key'][:12]}"):
            raise DamagedError(self.directory, f"{self.directory / RECORD} is of another artifact")
        return record

    @property
    def metadata(self) -> Json:
        """What its stage recorded about the computation."""
        return dict(self.record["facts"])

    @property
    def facts(self) -> Json:
        """The `metadata`, by their name in 1.0, which notebooks use."""
        return self.metadata

    @property
    def content(self) -> str:
        """The digest of the artifact's files, without timings."""
        return str(self.record["content"])

    @property
    def timings(self) -> str | None:
        """The digest of the files in timings/; None if there are none."""
        digests = self.record["files"]
        timed = {name: digests[name] for name in digests if name.startswith(TIMINGS)}
        return json_digest(timed) if timed else None

    def check(self) -> None:
        """Compare every file with the record; errors as of `check_files`."""
        check_files(self.directory, self.record)

    def read(
        self, name: str = "data", columns: Sequence[str] | None = None, rule: str | None = None
    ) -> pa.Table:
        """Read a Parquet file; the checksums of its pages reveal damage done since `check`.

        Args:
            name: of the file, without .parquet.
            columns: that are read; all by default.
            rule: read only the row groups of the rule with this label.

        Raises:
            DamagedError: it can't be read, or has other columns than its stage writes.
        """
        with self.open(name) as file:
            groups = list(range(file.num_row_groups))
            if rule is not None:
                column = file.schema_arrow.names.index("rule")
                rules = [file.metadata.row_group(g).column(column).statistics.min for g in groups]
                groups = [g for g in groups if rules[g] == rule]
            return file.read_row_groups(groups, None if columns is None else list(columns))

    def batches(
        self, columns: Sequence[str], rows: int, groups: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Stream data.parquet, or row groups of it, in batches of at most `rows` rows.

        Errors as of `read`.
        """
        with self.open("data") as file:
            # one row group at a time: an iterator over all of them frees nothing until the end
            for group in range(file.num_row_groups) if groups is None else groups:
                yield from file.iter_batches(rows, row_groups=[group], columns=list(columns))

    @contextmanager
    def open(self, name: str) -> Iterator[Any]:
        """Yield a Parquet file whose columns are checked; errors as of `read`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.directory / f"{name}.parquet"
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                check_schema(self.tables[name], file.schema_arrow, path)
                yield file
        except (OSError, pa.ArrowException, ValueError) as error:
            raise DamagedError(self.directory, f"{path} can't be read ({error})") from error


@dataclass
class Out:
    """Where a stage writes an artifact; the folder `shards` outlives a killed run."""

    stage: Stage
    directory: Path
    shards: Path
    metadata: Json = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def writer(self, name: str = "data", schema: pa.Schema | None = None) -> Iterator[Any]:
        """Yield a writer of a Parquet file; its schema must have the stage's columns."""
        import pyarrow.parquet as pq

        path = self.directory / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = self.stage.schema(name) if schema is None else schema
        check_schema(self.stage.tables[name], schema, path)
        with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
            yield writer
        self.rows[name] = pq.read_metadata(path).num_rows

    def write(self, table: pa.Table, name: str = "data") -> None:
        """Write a Parquet file in one piece."""
        with self.writer(name) as writer:
            writer.write_table(table.cast(self.stage.schema(name)))

    def write_rows(self, rows: Sequence[Json], name: str = "data") -> None:
        """Write a Parquet file from its rows."""
        import pyarrow as pa

        self.write(pa.Table.from_pylist(list(rows), schema=self.stage.schema(name)), name)

    def write_frame(self, frame: pd.DataFrame, name: str = "data") -> None:
        """Write a Parquet file from a frame, which may have more columns than the file."""
        import pyarrow as pa

        schema = self.stage.schema(name)
        self.write(pa.Table.from_pandas(frame[schema.names], schema, preserve_index=False), name)
