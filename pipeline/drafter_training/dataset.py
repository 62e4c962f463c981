"""Reads the conversations that `generate` wrote, for training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
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


def read(
    directories: Iterable[Path], refusal: Callable[[list[int], int], str | None]
) -> tuple[list[Written], Counter[str]]:
    """Return the conversations of all shards in `directories`, and why others were left out.

    Args:
        directories: of shards; their shards are read in order.
        refusal: says of the tokens and `answer_at` of a conversation why it is not wanted, or None.
    """
    kept, refused = list[Written](), Counter[str]()
    for path in (p for folder in directories for p in sorted(folder.glob("shard-*.parquet"))):
        table = pq.read_table(path, columns=["token_ids", "answer_at", "temperature"]).to_pydict()
        for tokens, at, temperature in zip(*table.values(), strict=True):
            why = refusal(tokens, at)
            if why is None:
                kept.append(Written(np.asarray(tokens, np.int32), at, temperature))
            else:
                refused[why] += 1
    return kept, refused
