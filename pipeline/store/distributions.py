"""Read the stored distributions of an artifact as `analysis.topk.TopK`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from analysis.topk import TopK
from pipeline.store.artifacts import Artifact

ROWS = 8192  # of a chunk
TOP_K_COLUMNS = (
    "top_ids",
    "top_logits",
    "top_surprisal",
    "log_tail",
    "entropy",
)  # as TopK takes them


def chunks(
    artifact: Artifact, temperature: float, rows: int = ROWS
) -> Iterator[tuple[pa.RecordBatch, TopK]]:
    """Stream an artifact as (prompt_id and position, distributions), `rows` steps at a time."""
    vocab_size = artifact.record["facts"]["vocab_size"]
    for batch in artifact.batches(columns=["prompt_id", "position", *TOP_K_COLUMNS], rows=rows):
        yield batch.select(["prompt_id", "position"]), as_top_k(batch, vocab_size, temperature)


def read_distributions(artifact: Artifact, temperature: float) -> TopK:
    """Read all steps of an artifact at once."""
    table = artifact.read(columns=list(TOP_K_COLUMNS)).combine_chunks()
    return as_top_k(table.to_batches()[0], artifact.record["facts"]["vocab_size"], temperature)


def as_top_k(batch: pa.RecordBatch, vocab_size: int, temperature: float) -> TopK:
    """Return the distributions of a batch of rows, without copying the lists."""

    def matrix(name: str) -> np.ndarray:
        column = batch.column(name)
        return column.flatten().to_numpy().reshape(len(column), -1)

    return TopK.from_columns(
        matrix("top_ids"),
        matrix("top_logits"),
        batch.column("top_surprisal").to_numpy(),
        batch.column("log_tail").to_numpy(),
        batch.column("entropy").to_numpy(),
        vocab_size,
        temperature,
    )
