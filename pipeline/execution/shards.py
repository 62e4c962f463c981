"""Shards of the long stages: batches of prompts, computed one after the other and kept.

The plan fixes them before any is computed. A shard that runs out of memory is halved, in the plan
first. At the end the shards are joined in the order of the prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from pipeline.errors import PipelineError
from pipeline.execution.progress import progress_bar
from pipeline.execution.shard_plan import Plan, Shard, ShardMeasured
from pipeline.execution.stopwatch import peak_memory
from pipeline.store import columns
from pipeline.store.artifacts import Pending
from pipeline.store.columns import Tables

OUT_OF_MEMORY = (  # in the errors of what has no exception of its own for it
    "DefaultCPUAllocator: can't allocate",
    "DefaultCPUAllocator: not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)
JOINED = 64  # prompts in a row group of data.parquet

# Computes a shard: writes a row group for each of its prompts to the path, calls the last
# argument with the steps it has done so far, and returns what it measured.
Compute = Callable[[Shard, Path, Callable[[int], object]], ShardMeasured]


def compute_unfinished(
    plan: Plan,
    compute: Compute,
    *,
    steps: int,
    label: str,
    device: torch.device,
    unit: str = "step",
) -> None:
    """Compute the unfinished shards of `plan`.

    Args:
        plan: which prompts are computed together.
        compute: computes one shard.
        steps: the most steps a prompt can have, for the progress bar.
        label: what is running, for the progress bar and errors.
        device: where it runs.
        unit: of the progress bar.

    Raises:
        PipelineError: a single prompt does not fit into the memory.
    """
    todo = plan.unfinished()
    total = sum(len(shard.prompts) for shard in todo) * steps
    with progress_bar(total, unit, label) as bar:
        while todo:
            shard, before = todo[0], bar.n
            measured = attempt(shard, plan.beside(shard), compute, bar.update)
            if measured is not None:
                plan.finish(shard, measured)
                del todo[0]
                bar.update(before + len(shard.prompts) * steps - bar.n)
                bar.set_postfix_str(f"{peak_memory(device) / 2**30:.1f} GiB", refresh=False)
                continue
            bar.update(before - bar.n)
            if len(shard.prompts) == 1:
                raise too_large(label, shard)
            plan.halve(shard)
            todo = plan.unfinished()


def too_large(label: str, shard: Shard) -> PipelineError:
    """Return the error of a shard of one prompt that does not fit into the memory."""
    return PipelineError(
        f"{label}: prompt {shard.prompts[0]} alone does not fit into the memory: lower "
        "prompts.max_tokens or distributions.steps, or take a smaller model or dtype"
    )


def attempt(
    shard: Shard, path: Path, compute: Compute, progress: Callable[[int], object]
) -> ShardMeasured | None:
    """Compute one shard; return None, and keep nothing, when memory runs out."""
    try:
        return compute(shard, path, progress)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    torch.cuda.empty_cache()  # outside of `except`, where the error holds the batch's tensors
    return None


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, of CUDA or of torch's CPU allocator."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(
        words in str(error) for words in OUT_OF_MEMORY
    )


def write_groups(path: Path, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
    """Write a shard: a row group for each of its prompts."""
    with pq.ParquetWriter(
        path, schema, compression="none", use_dictionary=False, write_statistics=False
    ) as writer:
        for table in tables:
            writer.write_table(table)


def join(plan: Plan, order: Sequence[str], pending: Pending, schema: pa.Schema) -> None:
    """Write data.parquet from the shards, in the order of the prompts, a few at a time."""
    places = {
        name: (shard.name, row) for shard in plan.shards for row, name in enumerate(shard.prompts)
    }
    files = {shard.name: plan.file(shard) for shard in plan.shards}
    with pending.writer("data", schema) as writer:
        for start in range(0, len(order), JOINED):
            paths = [places[name] for name in order[start : start + JOINED]]
            with ExitStack() as stack:  # only the shards in use: each holds a footer
                opened = {name: stack.enter_context(pq.ParquetFile(files[name]))
                          for name in {name for name, _ in paths}}  # fmt: skip
                tables = [opened[name].read_row_group(row) for name, row in paths]
            writer.write_table(pa.concat_tables(tables))


def write_tables(
    pending: Pending,
    stage: str,
    names: Iterable[str],
    shards: Sequence[Tables],
    *,
    label: str,
    unit: str,
) -> None:
    """Write the tables of an artifact from the rows of its shards, in order; report failures.

    Args:
        pending: the artifact.
        stage: its stage.
        names: of its tables, those in timings/ and failures among them.
        shards: of each, rows by table; of one that failed, a row with its reason in failures.
        label: of the target, for errors.
        unit: what a shard is of, in the singular.

    Raises:
        PipelineError: every shard failed.
    """
    (pending.directory / "timings").mkdir(exist_ok=True)
    for name in names:
        rows = [row for shard in shards for row in shard.get(name, [])]
        pending.write(name, pa.Table.from_pylist(rows, schema=columns.schema(stage, name)))
    failed = [shard["failures"][0]["reason"] for shard in shards if "failures" in shard]
    if not failed:
        return
    if len(failed) == len(shards):
        raise PipelineError(f"{stage} {label}: every {unit} failed, the first with: {failed[0]}")
    print(
        f"{stage} {label}: {len(failed)} of {len(shards)} {unit}s failed, the first with: "
        f"{failed[0]} (failures.parquet names them)",
        flush=True,
    )
