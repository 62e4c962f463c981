"""Shards of the long stages: batches of prompts, fixed in plan.json before any is computed.

A finished shard is never computed again; one that runs out of memory is halved, in the plan
first. What a shard leaves for later, its transfer and writing, runs beside the next one. At the
end the shards are joined in the order of the prompts.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tqdm import tqdm

from pipeline.artifacts import Draft
from pipeline.errors import PipelineError
from pipeline.measure import peak_memory

JOINED = 64  # prompts in a row group of data.parquet


@dataclass
class Shard:
    """One batch, and what it took once it is finished."""

    name: str
    prompts: list[str]
    measured: dict[str, Any] = field(default_factory=dict)


Measured = dict[str, Any]

# Computes a shard: writes a row group for each of its prompts to the path, calls the last
# argument with the steps it has done so far, and returns what it measured. Or computes it and
# returns the function that writes and returns that, which is run while the next one is computed.
Compute = Callable[
    [Shard, Path, Callable[[int], object]], Measured | Callable[[], Measured]
]  # fmt: skip


@dataclass
class Plan:
    """The shards of an artifact in the order in which they are computed."""

    path: Path  # plan.json; the shards lie beside it in shards/
    shards: list[Shard]
    assembled: bool = False  # data.parquet is complete

    @classmethod
    def load(cls, path: Path) -> Plan | None:
        """Read a plan that a killed run left, or return None."""
        if not path.exists():
            return None
        found = json.loads(path.read_text())
        return cls(path, [Shard(**shard) for shard in found["shards"]], found["assembled"])

    @classmethod
    def make(cls, path: Path, lengths: Mapping[str, int], fits: Callable[[int], int]) -> Plan:
        """Cut the prompts, longest first, into shards of at most `fits(length)` prompts."""
        ordered = sorted(lengths, key=lengths.__getitem__, reverse=True)
        shards: list[Shard] = []
        while ordered:
            size = fits(lengths[ordered[0]])
            shards.append(Shard(f"{len(shards):04}", ordered[:size]))
            ordered = ordered[size:]
        plan = cls(path, shards)
        plan.save()
        return plan

    @property
    def folder(self) -> Path:
        """Where the shards lie."""
        return self.path.parent / "shards"

    def file(self, shard: Shard) -> Path:
        """The file of a shard; it is finished when it exists."""
        return self.folder / f"{shard.name}.parquet"

    def pending(self) -> list[Shard]:
        """The unfinished shards, in order."""
        return [shard for shard in self.shards if not self.file(shard).exists()]

    def save(self) -> None:
        """Write the plan in one piece."""
        plan = {"assembled": self.assembled, "shards": [asdict(shard) for shard in self.shards]}
        beside = self.path.with_suffix(".tmp")
        beside.write_text(json.dumps(plan, indent=1) + "\n")
        beside.replace(self.path)

    def halve(self, too_large: int) -> None:
        """Halve every unfinished shard of at least `too_large` prompts."""
        large = [s.name for s in self.pending() if len(s.prompts) >= too_large]
        self.shards = [
            part
            for shard in self.shards
            for part in (_halves(shard) if shard.name in large else [shard])
        ]
        self.save()


def _halves(shard: Shard) -> list[Shard]:
    half = (len(shard.prompts) + 1) // 2
    return [
        Shard(f"{shard.name}a", shard.prompts[:half]),
        Shard(f"{shard.name}b", shard.prompts[half:]),
    ]


def assemble(
    plan: Plan,
    order: list[str],
    compute: Compute,
    draft: Draft,
    schema: pa.Schema,
    *,
    steps: int,
    label: str,
    device: torch.device,
) -> None:
    """Compute the unfinished shards of `plan`, then write data.parquet in the order `order`.

    Args:
        plan: which prompts are computed together.
        order: all prompts.
        compute: computes one shard.
        draft: what is written.
        schema: of the shards and of data.parquet.
        steps: the most steps a prompt can have, for the progress bar.
        label: what is running, for the progress bar and errors.
        device: where it runs.

    Raises:
        PipelineError: a single prompt does not fit into the memory.
    """
    plan.folder.mkdir(exist_ok=True)
    if not plan.assembled:
        _compute(plan, compute, steps, label, device)
        _join(plan, order, draft, schema)
        plan.assembled = True
        plan.save()
    draft.rows["data"] = pq.read_metadata(draft.directory / "data.parquet").num_rows
    shutil.rmtree(plan.folder)


def _compute(plan: Plan, compute: Compute, steps: int, label: str, device: torch.device) -> None:
    todo = plan.pending()
    total = sum(len(shard.prompts) for shard in todo) * steps
    with (
        tqdm(total=total, unit="step", desc=label, disable=not sys.stderr.isatty()) as bar,
        _Writer(plan) as writer,
    ):
        while todo:
            shard, before = todo[0], bar.n
            computed = _attempt(plan, shard, compute, bar.update)
            if computed is not None:
                writer.take(shard, computed)
                del todo[0]
                bar.update(before + len(shard.prompts) * steps - bar.n)
                bar.set_postfix_str(f"{peak_memory(device) / 2**30:.1f} GiB")
                continue
            bar.update(before - bar.n)
            if len(shard.prompts) == 1:
                raise PipelineError(
                    f"{label}: prompt {shard.prompts[0]} alone does not fit into the memory: "
                    "lower prompts.max_tokens or distributions.steps, or take a smaller model or "
                    "dtype"
                )
            writer.wait()  # the shard before is then finished, and is not halved
            plan.halve(len(shard.prompts))
            todo = plan.pending()
        writer.wait()


def _attempt(
    plan: Plan, shard: Shard, compute: Compute, progress: Callable[[int], object]
) -> Measured | Callable[[], Measured] | None:
    """Compute one shard; return None, and keep nothing, when memory runs out."""
    try:
        return compute(shard, _beside(plan, shard), progress)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    torch.cuda.empty_cache()  # outside of `except`, where the error holds the batch's tensors
    return None


class _Writer:
    """Finishes one shard in a thread of its own while the next is computed, and no more."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._last: Future[None] | None = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()  # lets the last one finish, when the run is stopped too

    def take(self, shard: Shard, computed: Measured | Callable[[], Measured]) -> None:
        """Finish `shard` from now on; waits for the one before, and raises its error."""
        self.wait()
        self._last = self._thread.submit(self._finish, shard, computed)

    def wait(self) -> None:
        """Wait for the last shard; raise its error."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _finish(self, shard: Shard, computed: Measured | Callable[[], Measured]) -> None:
        shard.measured = computed() if callable(computed) else computed
        self._plan.save()
        _beside(self._plan, shard).replace(self._plan.file(shard))


def _beside(plan: Plan, shard: Shard) -> Path:
    return plan.file(shard).with_suffix(".tmp")


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, of CUDA or of torch's CPU allocator."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        "DefaultCPUAllocator: can't allocate" in str(error)
        or "DefaultCPUAllocator: not enough memory" in str(error)
    )


def write_groups(path: Path, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
    """Write a shard: a row group for each of its prompts."""
    with pq.ParquetWriter(
        path, schema, compression="none", use_dictionary=False, write_statistics=False
    ) as writer:
        for table in tables:
            writer.write_table(table)


def _join(plan: Plan, order: list[str], draft: Draft, schema: pa.Schema) -> None:
    """Write data.parquet from the shards, in the order of the prompts, a few at a time."""
    places = {
        name: (shard.name, row) for shard in plan.shards for row, name in enumerate(shard.prompts)
    }
    files = {shard.name: plan.file(shard) for shard in plan.shards}
    with draft.writer("data", schema) as writer:
        for start in range(0, len(order), JOINED):
            found = [places[name] for name in order[start : start + JOINED]]
            with ExitStack() as stack:  # only the shards in use: each holds a footer
                opened = {name: stack.enter_context(pq.ParquetFile(files[name]))
                          for name in {name for name, _ in found}}  # fmt: skip
                tables = [opened[name].read_row_group(row) for name, row in found]
            writer.write_table(pa.concat_tables(tables))
