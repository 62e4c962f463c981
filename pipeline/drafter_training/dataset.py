"""Reads the conversations that `generate` wrote, for training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray


@dataclass(frozen=True)
class Written:
    """A conversation as the target wrote it."""

    tokens: NDArray[np.int32]  # all of it, the chat template included
    answer_at: int  # index of the answer's first token
    temperature: float  # of the answer; 0 is greedy


def shards(directories: Iterable[Path]) -> list[Path]:
    """Return the shards in `directories`, one of each name, in order of their names."""
    found = {path.name: path for folder in directories for path in folder.glob("shard-*.parquet")}
    return [found[name] for name in sorted(found)]


def read(path: Path) -> list[Written]:
    """Return the conversations of a shard."""
    table = pq.read_table(path, columns=["token_ids", "answer_at", "temperature"]).to_pydict()
    return [
        Written(np.asarray(tokens, np.int32), at, temperature)
        for tokens, at, temperature in zip(*table.values(), strict=True)
    ]
