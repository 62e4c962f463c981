"""The protocol of stages, their tasks (artifacts to be made) and artifacts (made).

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
    """Sum up an artifact by its name and its numbers of rows: the default `summary` of a stage."""
    counts = {f"{name} rows": count for name, count in artifact.record["rows"].items()}
    return [{"artifact": f"{task.stage.name}/{artifact.directory.name}", **counts}]


def statistics_entries(bootstrap: Resampling) -> Json:
    """Return the settings of a bootstrap as entries of a task's settings."""
    resamples, confidence, seed = bootstrap
    return {"resamples": resamples, "confidence": confidence, "statistics_seed": seed}


@dataclass(frozen=True)
class Stage:
    """A stage of the pipeline."""

    name: str  # of its module, its directory, and in `stage=NAME`
    # raise it whenever results change: the stage's artifacts, and those made from them, are then
    # computed again
    version: int
    upstream: tuple[str, ...]  # the stages that its artifacts may be made from
    # the columns of each Parquet file; the files carry their meanings as metadata
    tables: Mapping[str, Columns]
    # returns the tasks of a `pipeline.study.Study`, target by target; fast, as it loads no model
    plan: Callable[[Any], Iterable[Task]]
    compute: Callable[[Task, Inputs, Out], None]  # writes the artifact of a task
    # raises a PipelineError if a study can't be run; called before any file is looked at
    check: Callable[[Any], None] | None = None
    # raises a PipelineError if a task can't be computed; called before any task is
    check_task: Callable[[Task], None] | None = None
    # returns the rows that sum up an artifact, for the terminal and the table of a sweep
    summary: Callable[[Task, Artifact], list[Json]] = row_counts
    printed: bool = False  # whether a single run prints these rows as well

    def schema(self, name: str = "data") -> pa.Schema:
        """Return the Arrow schema of one of its files."""
        return schema(self.tables[name])


@dataclass(frozen=True)
class Identity:
    """The digest of local files, or the commit of files on the hub."""

    content: str | None = None
    hub: str | None = None  # owner/name
    commit: str | None = None

    @property
    def entries(self) -> dict[str, str]:
        """What is known of it, as JSON values."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class ModelSpec:
    """A model or head, and how it is run; `key` is its configuration key, for errors."""

    key: str
    identity: Identity
    settings: ModelConfig
    device: Device
    execution: Execution
    head: HeadConfig | None = None

    @property
    def entries(self) -> Json:
        """What results depend on, as JSON values: its files, precision, attention and head."""
        entries: Json = {**self.identity.entries}
        entries |= self.settings.model_dump(include={"dtype", "head_dtype", "attention"})
        if self.head is not None:
            entries |= {"head": self.head.model_dump(exclude_none=True)}
        return entries


@dataclass(frozen=True)
class Runtime:
    """What a task needs besides settings and inputs, and what its content does not depend on.

    Stages that need more derive a class of their own.
    """

    label: str  # its target as printed
    statistics: Resampling  # the bootstrap's settings; if content depends on them, in settings too
    # that it loads: a target alone, or a target and its drafter
    models: tuple[ModelSpec, ...] = ()
    path: str = ""  # of the target's files, or of its log

    @property
    def pair(self) -> str:
        """Its models, as printed."""
        return " and ".join(model.settings.label for model in self.models)


@dataclass(frozen=True, eq=False)
class Task:
    """An artifact that may not exist yet, and how to make it."""

    stage: Stage  # the stage that makes it
    label: str  # printed, and in the name of its directory
    settings: Json  # all that its content depends on, besides its inputs, as JSON values
    inputs: Mapping[str, Task]  # the artifacts that it is made from, by name
    runtime: Runtime  # what else it needs, such as paths and the device
    asked: Asked | None = None  # the machine its timings should be of; None: any

    @cached_property
    def key(self) -> str:
        """SHA-256 of all that determines the artifact's content.

        Raises:
            TypeError, ValueError: settings are not JSON values.
        """
        above = {name: task.key for name, task in self.inputs.items()}
        return json_digest([self.stage.name, self.stage.version, self.settings, above])

    @property
    def name(self) -> str:
        """Stage and label, as printed."""
        return f"{self.stage.name} {self.label}"


def with_inputs(tasks: Iterable[Task]) -> dict[str, Task]:
    """Return tasks and all they are made from, by key, inputs first."""
    ordered: dict[str, Task] = {}
    for task in tasks:
        ordered |= with_inputs(task.inputs.values()) | {task.key: task}
    return ordered


def check_files(directory: Path, record: Json) -> None:
    """Read every file of an artifact, or of a copy, and compare it with the record.

    Raises:
        DamagedError: a file is missing, modified or unexpected; an added one counts, because
            whoever reads the directory as a data set would include it.
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
    """A published artifact; `columns` are those of its stage's files."""

    directory: Path
    columns: Mapping[str, Columns]

    @cached_property
    def record(self) -> Json:
        """What was written when it was published.

        Raises:
            DamagedError: it is not what was written, or the record of another artifact.
        """
        record = read_json(self.directory / RECORD)
        if not self.directory.name.endswith(f"-{record['key'][:12]}"):
            raise DamagedError(self.directory, f"{self.directory / RECORD} is of another artifact")
        return record

    @property
    def metadata(self) -> Json:
        """What its stage noted of the computation."""
        return dict(self.record["facts"])

    @property
    def facts(self) -> Json:
        """The `metadata`, as 1.0 named it: notebooks read it."""
        return self.metadata

    @property
    def content(self) -> str:
        """Digest of the artifact's files, timings aside."""
        return str(self.record["content"])

    @property
    def timings(self) -> str | None:
        """Digest of the files in timings/; None without any."""
        files = self.record["files"]
        timed = {name: of for name, of in files.items() if name.startswith(TIMINGS)}
        return json_digest(timed) if timed else None

    def check(self) -> None:
        """Read every file; errors are those of `check_files`."""
        check_files(self.directory, self.record)

    def read(
        self, name: str = "data", columns: Sequence[str] | None = None, rule: str | None = None
    ) -> pa.Table:
        """Read a Parquet file; damage done since `check` is found by the checksums of its pages.

        `rule` is the label of a rule, whose row groups alone are read.

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

        Errors are those of `read`.
        """
        with self.open("data") as file:
            # one row group at a time: over all of them, what was read is kept until the end
            for group in range(file.num_row_groups) if groups is None else groups:
                yield from file.iter_batches(rows, row_groups=[group], columns=list(columns))

    @contextmanager
    def open(self, name: str) -> Iterator[Any]:
        """Yield a Parquet file, its columns checked; errors are those of `read`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.directory / f"{name}.parquet"
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                check_schema(self.columns[name], file.schema_arrow, path)
                yield file
        except (OSError, pa.ArrowException, ValueError) as error:
            raise DamagedError(self.directory, f"{path} can't be read ({error})") from error


@dataclass
class Out:
    """Where a stage writes an artifact; `shards` outlives a run that is killed."""

    stage: Stage
    directory: Path
    shards: Path
    metadata: Json = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def writer(self, name: str = "data", schema: pa.Schema | None = None) -> Iterator[Any]:
        """Yield a writer of a Parquet file with the columns that the stage declares."""
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
        """Write a Parquet file from a frame that has its columns, among others."""
        import pyarrow as pa

        schema = self.stage.schema(name)
        self.write(pa.Table.from_pandas(frame[schema.names], schema, preserve_index=False), name)
