"""Computes artifacts in shards: each finished batch of items is kept, so a stopped run can go on.

A shard is a Parquet file with one row group per item. Its metadata hold the names of its items,
measurements, and its owner: the artifact's key, the content of its inputs, and the machine whose
timings are asked for. It is reused only for the same owner, whatever the batch size and directory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from pipeline.core.columns import Tables
from pipeline.core.errors import PipelineError, first_line
from pipeline.core.files import BLANK, SEAL, digest, read_sealed, remove, write_sealed
from pipeline.core.stage import Inputs, Json, Out, Stage, Task
from pipeline.core.workers import InlineExecutor, OpenWorker, Result, ray_workers

MINUTE = 60.0  # seconds between two lines of progress in a log
HEADER = ("owner", "names", "measured")  # in a shard's metadata
LINE = "{desc}: {n_fmt} of {total_fmt} {unit}s, {elapsed} so far, about {remaining} left"
JOINED = 64  # prompts in a row group of an artifact


class Shard(NamedTuple):
    """A finished shard."""

    names: list[str]
    measured: Json
    path: Path

    @contextmanager
    def open(self) -> Iterator[pq.ParquetFile]:
        """Yield its file; PipelineError if it has been damaged since it was found."""
        try:
            with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
                yield file
        except (OSError, pa.ArrowException) as error:
            raise PipelineError(
                f"{self.path} was damaged meanwhile ({first_line(error)}): the same command "
                "computes it again"
            ) from error


def compute_shards(
    task: Task,
    inputs: Inputs,
    out: Out,
    names: Sequence[str] | None,
    open_worker: OpenWorker,
    *,
    steps: int = 1,
    unit: str = "prompt",
) -> list[Shard]:
    """Compute the shards that are not finished yet; add the worker's metadata to the artifact's.

    Args:
        task: the task of the artifact.
        inputs: its inputs.
        out: where the artifact is written.
        names: the items, in the order of computation; None: as the worker's `names()` returns them.
        open_worker: the class of workers. They run in this process or with Ray, as the key
            `execution` says.
        steps: the largest number of steps of an item, for the progress bar.
        unit: the name of an item in the progress bar, in the singular.

    Returns:
        All shards, in the order of `names`.
    """
    out.shards.mkdir(exist_ok=True)
    owner = owner_of(task, inputs)
    shards = list(_finished(out.shards, owner))
    finished = {name for shard in shards for name in shard.names}
    ray = task.runtime.models[0].execution.engine == "ray"
    here = nullcontext(InlineExecutor(task, inputs, open_worker, Path.cwd()))
    with ray_workers(task, inputs, open_worker) if ray else here as workers:
        names = workers.ask("names") if names is None else names
        todo = unfinished(names, finished, workers.ask("batch"))
        total = sum(map(len, todo)) * steps
        with progress_bar(total, unit if steps == 1 else "step", task.name) as bar:
            for group, result in workers.compute(todo, bar.update):
                shards.append(_keep(out.shards, owner, group, result))
        out.metadata |= (
            workers.ask("metadata", [shard.measured for shard in shards]) | workers.engine
        )
    out.metadata |= {"shards": len(shards), "batch": max(len(shard.names) for shard in shards)}
    order = {name: index for index, name in enumerate(names)}
    return sorted(shards, key=lambda shard: order[shard.names[0]])


def unfinished(names: Sequence[str], finished: set[str], size: int) -> list[list[str]]:
    """Split all items into batches, then leave out finished items and empty batches.

    The batches do not depend on which items are finished.
    """
    batches = (names[begin : begin + size] for begin in range(0, len(names), size))
    left = ([name for name in batch if name not in finished] for batch in batches)
    return [batch for batch in left if batch]


def owner_of(task: Task, inputs: Inputs) -> Json:
    """Return the owner that is written into the shards of an artifact."""
    contents = {name: artifact.content for name, artifact in inputs.items()}
    asked = None if task.asked is None else task.asked.mark
    return {"key": task.key, "inputs": contents, "asked": asked}


def _finished(folder: Path, owner: Json | None = None) -> Iterator[Shard]:
    """Yield the finished shards of an owner, or of all; remove damaged ones and those of others."""
    for path in sorted(folder.iterdir()):
        content = read_sealed(path) if path.suffix == ".shard" else None
        if content is None:
            if path.suffix == ".shard":
                print(f"damaged: {path}: computed again", flush=True)
            remove(path)
            continue
        metadata = pq.read_metadata(pa.BufferReader(content)).metadata
        header = {key: json.loads(metadata.get(key.encode(), b"null")) for key in HEADER}
        if owner is not None and header["owner"] != owner:
            print(f"{path}: of another artifact, computed again", flush=True)
            path.unlink()
            continue
        yield Shard(header["names"], header["measured"], path)


def _keep(folder: Path, owner: Json, names: Sequence[str], result: Result) -> Shard:
    measured, tables = result
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, tables[0].schema, compression="none", use_dictionary=False, write_statistics=False,
        write_page_checksum=True,
    ) as writer:  # fmt: skip
        for table in tables:
            writer.write_table(table)
        header = {"owner": owner, "names": list(names), "measured": measured}
        metadata = {key: json.dumps(header[key]) for key in HEADER}  # in ASCII: without a SEAL
        # of the whole file: page checksums cover neither the metadata nor the page headers
        metadata["checksum"] = SEAL + BLANK
        writer.add_key_value_metadata(metadata)
    path = folder / f"{digest(json.dumps(list(names)).encode())[:16]}.shard"
    write_sealed(path, sink.getvalue().to_pybytes())
    return Shard(list(names), measured, path)


class _Lines(tqdm):
    """A progress bar that prints lines, for a log."""

    @staticmethod
    def status_printer(file: Any) -> Callable[[str], None]:
        """Return the function that prints the progress."""
        return lambda text: print(text.strip(), file=file, flush=True) if text else None


def progress_bar(total: int, unit: str, label: str) -> tqdm[Any]:
    """Return a progress bar on stderr; in a log it prints a line a minute with the time left."""
    if sys.stderr.isatty():
        return tqdm(total=total, unit=unit, desc=label)
    return _Lines(
        total=total, unit=unit, desc=label, bar_format=LINE,
        delay=MINUTE, mininterval=MINUTE, miniters=1,
    )  # fmt: skip


def join(shards: Sequence[Shard], order: Sequence[str], out: Out) -> None:
    """Write data.parquet from shards that have its columns, in the order of the items."""
    places = {
        name: (index, row)
        for index, shard in enumerate(shards)
        for row, name in enumerate(shard.names)
    }
    with shards[0].open() as first:
        schema = first.schema_arrow
    with out.writer("data", schema) as writer:
        for start in range(0, len(order), JOINED):
            wanted = [places[name] for name in order[start : start + JOINED]]
            with ExitStack() as opened:
                files = {index: opened.enter_context(shards[index].open()) for index, _ in wanted}
                tables = [files[index].read_row_group(row) for index, row in wanted]
            writer.write_table(pa.concat_tables(tables))


def nested(stage: Stage, tables: Tables) -> pa.Table:
    """Return an item's rows of several tables as one row, which has a list of rows per table."""
    types = {name: pa.list_(pa.struct(list(stage.schema(name)))) for name in stage.tables}
    return pa.Table.from_pylist([tables], pa.schema(list(types.items())))


def write_tables(task: Task, out: Out, shards: Sequence[Shard], unit: str) -> None:
    """Write the tables of an artifact from shards of `nested` rows, in order; report failures.

    An item that failed has a row with the reason in the table failures. `unit` is the name of an
    item, in the singular.

    Raises:
        PipelineError: every item failed.
    """
    failed = list[str]()
    for name in task.stage.tables:
        lists = [column for shard in shards for column in _column(shard, name)]
        rows = pa.Table.from_struct_array(pa.concat_arrays([one.flatten() for one in lists]))
        out.write(rows, name)
        if name == "failures":
            failed = rows["reason"].to_pylist()
    if not failed:
        return
    if len(failed) == len(shards):
        raise PipelineError(f"{task.name}: every {unit} failed, the first with: {failed[0]}")
    print(
        f"{task.name}: {len(failed)} of {len(shards)} {unit}s failed, the first with: "
        f"{failed[0]} (failures.parquet names them)",
        flush=True,
    )


def _column(shard: Shard, name: str) -> list[pa.ListArray]:
    with shard.open() as file:
        chunks: list[pa.ListArray] = file.read([name])[name].chunks
    return chunks
