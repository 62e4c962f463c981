"""The plan of a long stage: which prompts are a shard, and which shards are finished.

A plan belongs to one version of the stage and one content of everything upstream; what an
interrupted run left of another is discarded. It holds the checksum of every finished shard: such a
one is never computed again, a damaged or half-written one is.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pipeline.store.artifacts import Pending
from pipeline.store.durable import file_digest, put, read_sealed, write_sealed
from pipeline.store.plain import As, Plain, from_plain, to_plain
from pipeline.store.records import MadeFrom

PLAN = "plan.json"

ShardMeasured = Plain  # of a dataclass of the stage: its seconds, rows, ...
# Gives the sizes of shards from the lengths of their prompts in tokens, the longest first.
ShardSizes = Callable[[Sequence[int]], list[int]]


def at_most(size: int) -> ShardSizes:
    """Return the cut into shards of `size` prompts, the last one smaller."""
    return lambda lengths: [min(size, len(lengths) - at) for at in range(0, len(lengths), size)]


@dataclass
class Shard:
    """One batch, and its time and rows once it is finished."""

    name: str
    prompts: list[str]
    measured: ShardMeasured = field(default_factory=dict)
    checksum: str | None = None  # of its file, when it is finished


@dataclass
class Plan:
    """The shards of an artifact in the order in which they are computed."""

    path: Annotated[Path, As(apart=True)]  # plan.json; the shards lie beside it in shards/
    made_from: MadeFrom
    shards: list[Shard]

    @classmethod
    def open(cls, pending: Pending, lengths: Mapping[str, int], cut: ShardSizes) -> Plan:
        """Take up the plan that an interrupted run left of the same, or cut the prompts anew.

        Args:
            pending: what is made, and from what.
            lengths: tokens of every prompt, by prompt_id.
            cut: gives the sizes of the shards of a new plan, of the prompts with the longest first.
        """
        path = pending.workspace / PLAN
        try:
            plan = cls.load(path)
            if plan.made_from == pending.made_from:
                for file in plan.clean():
                    print(f"damaged: {file}: computed again", flush=True)
                return plan
            reason = "is of an interrupted run on other inputs"
        except FileNotFoundError:
            reason = ""
        except ValueError as error:
            reason = str(error)
        if reason:
            print(f"{path} {reason}: its shards are computed again", flush=True)
            shutil.rmtree(path.parent / "shards", ignore_errors=True)
        ordered = sorted(lengths, key=lengths.__getitem__, reverse=True)
        plan = cls(path, pending.made_from, [])
        for size in cut([lengths[name] for name in ordered]):
            plan.shards.append(Shard(f"{len(plan.shards):04}", ordered[:size]))
            ordered = ordered[size:]
        plan.folder.mkdir(exist_ok=True)
        plan.save()
        return plan

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read a plan that an interrupted run left.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it is damaged; says how, without the path.
        """
        return from_plain(cls, {**read_sealed(path), "path": path})

    @property
    def folder(self) -> Path:
        """Where the shards lie."""
        return self.path.parent / "shards"

    def file(self, shard: Shard) -> Path:
        """The file of a shard."""
        return self.folder / f"{shard.name}.shard"

    def unfinished(self) -> list[Shard]:
        """The unfinished shards, in order."""
        return [shard for shard in self.shards if shard.checksum is None]

    def finish(
        self,
        shard: Shard,
        measured: ShardMeasured,
        beside: Path | None = None,
        checksum: str | None = None,
    ) -> None:
        """Keep the shard's file that was written beside its place.

        A worker writes it under a name of its own, `beside`, and knows its checksum.
        """
        beside = beside or self.beside(shard)
        shard.measured, shard.checksum = measured, checksum or file_digest(beside)
        self.save()
        put(beside, self.file(shard))

    def beside(self, shard: Shard) -> Path:
        """Where a shard's file is written."""
        return self.file(shard).with_suffix(".tmp")

    def clean(self) -> list[Path]:
        """Remove unfinished shards; return the finished ones that are damaged."""
        self.folder.mkdir(exist_ok=True)
        kept, damaged = set(), []
        for shard in self.shards:
            file = self.file(shard)
            if shard.checksum is not None and file.is_file():
                if file_digest(file) == shard.checksum:
                    kept.add(file)
                    continue
                damaged.append(file)
            shard.checksum = None
        for file in set(self.folder.iterdir()) - kept:
            file.unlink()
        return damaged

    def save(self) -> None:
        """Write the plan in one piece."""
        write_sealed(self.path, to_plain(self))

    def halve(self, shard: Shard) -> list[Shard]:
        """Halve one shard, and return the halves: the next ones, of shorter prompts, may fit."""
        half = (len(shard.prompts) + 1) // 2
        halves = [
            Shard(f"{shard.name}a", shard.prompts[:half]),
            Shard(f"{shard.name}b", shard.prompts[half:]),
        ]
        at = self.shards.index(shard)
        self.shards[at : at + 1] = halves
        self.save()
        return halves
