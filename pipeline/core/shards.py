"""Long computations in shards: batches of items, each kept as soon as it is finished.

A shard lies in the workspace of its artifact, whose name has the content of its inputs, and names
its items. So it is found again only where it would come out the same, whatever the batch size.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from pipeline.core.columns import Tables
from pipeline.core.errors import PipelineError
from pipeline.core.files import digest, read_checked, write_checked
from pipeline.core.stage import Inputs, Json, Out, Task
from pipeline.core.workers import InlineExecutor, OpenWorker, Result, ray_workers

MINUTE = 60.0  # seconds between two lines of progress in a log
LINE = "{desc}: {n_fmt} of {total_fmt} {unit}s, {elapsed} so far, about {remaining} left"
JOINED = 64  # prompts in a row group of an artifact


class Shard(NamedTuple):
    """A finished shard."""

    names: list[str]
    measured: Json
    path: Path

    def content(self) -> bytes:
        """Read what was computed."""
        return self.path.read_bytes().split(b"\n", 2)[2]


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
    """Compute the shards of all items but those that are finished; add the worker's facts.

    `names` are the items, in the order in which they are computed; None: a worker knows them.
    `open_worker` loads what is needed, here or in another process, as `execution` of the task's
    models says. `steps`, the most that an item can have, and `unit` are for the progress bar.
    """
    out.shards.mkdir(exist_ok=True)
    shards = list(_finished(out.shards))
    finished = {name for shard in shards for name in shard.names}
    ray = task.runtime.models[0].execution.engine == "ray"
    here = nullcontext(InlineExecutor(task, inputs, open_worker, Path.cwd()))
    with ray_workers(task, inputs, open_worker) if ray else here as workers:
        names = workers.ask("names") if names is None else names
        todo = unfinished(names, finished, workers.ask("batch"))
        total = sum(map(len, todo)) * steps
        with progress_bar(total, unit if steps == 1 else "step", task.name) as bar:
            for group, result in workers.compute(todo, bar.update):
                shards.append(_keep(out.shards, group, result))
        out.facts |= workers.ask("facts", [shard.measured for shard in shards]) | workers.engine
    out.facts |= {"shards": len(shards), "batch": max(len(shard.names) for shard in shards)}
    place = {name: at for at, name in enumerate(names)}
    return sorted(shards, key=lambda shard: place[shard.names[0]])


def unfinished(names: Sequence[str], finished: set[str], size: int) -> list[list[str]]:
    """Return what is left of each batch: batches stay the same, whatever was finished."""
    batches = (names[at : at + size] for at in range(0, len(names), size))
    left = ([name for name in batch if name not in finished] for batch in batches)
    return [batch for batch in left if batch]


def _finished(folder: Path) -> Iterator[Shard]:
    for path in sorted(folder.iterdir()):
        content = read_checked(path) if path.suffix == ".shard" else None
        if content is None:
            if path.suffix == ".shard":
                print(f"damaged: {path}: computed again", flush=True)
            path.unlink()
            continue
        header = json.loads(content.partition(b"\n")[0])
        yield Shard(header["names"], header["measured"], path)


def _keep(folder: Path, names: Sequence[str], result: Result) -> Shard:
    measured, content = result
    path = folder / f"{digest(json.dumps(list(names)).encode())[:16]}.shard"
    header = json.dumps({"names": list(names), "measured": measured})
    write_checked(path, f"{header}\n".encode() + content)
    return Shard(list(names), measured, path)


class _Lines(tqdm):
    """A bar as lines of a log."""

    @staticmethod
    def status_printer(file: Any) -> Callable[[str], None]:
        """Return the function that prints a state."""
        return lambda text: print(text.strip(), file=file, flush=True) if text else None


def progress_bar(total: int, unit: str, label: str) -> tqdm[Any]:
    """Return a bar on stderr; in a log, a line a minute with the time left."""
    if sys.stderr.isatty():
        return tqdm(total=total, unit=unit, desc=label)
    return _Lines(
        total=total, unit=unit, desc=label, bar_format=LINE,
        delay=MINUTE, mininterval=MINUTE, miniters=1,
    )  # fmt: skip


def tables_bytes(tables: Iterator[pa.Table], schema: pa.Schema) -> bytes:
    """Return tables as a Parquet file in memory, a row group each."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, schema, compression="none", use_dictionary=False, write_statistics=False
    ) as writer:
        for table in tables:
            writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def join(shards: Sequence[Shard], order: Sequence[str], out: Out) -> None:
    """Write data.parquet from shards of `tables_bytes`, in the order of the items."""
    places = {
        name: (at, row) for at, shard in enumerate(shards) for row, name in enumerate(shard.names)
    }

    def opened(at: int) -> pq.ParquetFile:
        return pq.ParquetFile(pa.BufferReader(shards[at].content()))

    with out.writer("data", opened(0).schema_arrow) as writer:
        for start in range(0, len(order), JOINED):
            wanted = [places[name] for name in order[start : start + JOINED]]
            files = {at: opened(at) for at in {at for at, _ in wanted}}
            tables = [files[at].read_row_group(row) for at, row in wanted]
            writer.write_table(pa.concat_tables(tables))


def write_tables(task: Task, out: Out, shards: Sequence[Tables], unit: str) -> None:
    """Write the tables of an artifact from the rows of its shards, in order; report failures.

    A shard that failed has a row with its reason in failures; if all have, that is an error. `unit`
    says what a shard is of, in the singular.
    """
    for name in task.stage.tables:
        out.write_rows([row for shard in shards for row in shard.get(name, [])], name)
    failed = [shard["failures"][0]["reason"] for shard in shards if "failures" in shard]
    if not failed:
        return
    if len(failed) == len(shards):
        raise PipelineError(f"{task.name}: every {unit} failed, the first with: {failed[0]}")
    print(
        f"{task.name}: {len(failed)} of {len(shards)} {unit}s failed, the first with: "
        f"{failed[0]} (failures.parquet names them)",
        flush=True,
    )
