"""Conversations that the target wrote, and its hidden states of them, computed once.

One file of hidden states a shard of text, so that a run that was stopped goes on after the last
whole one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from pipeline.errors import PipelineError
from pipeline.store.durable import file_digest, put, read_sealed, write_sealed

CHECKSUMS = "checksums.json"  # beside the shards
LAYERS = "layers"  # in the metadata of a file
BATCH_TOKENS = 2048  # tokens of a batch, padding included
NONE = torch.empty(0)


@dataclass(frozen=True)
class Example:
    """A conversation as the target wrote it, chat template included.

    Attributes:
        tokens: (n,) all of it.
        answer_at: index of the answer's first token.
        hidden: (n, layers, d) float16, the target's after each token.
    """

    tokens: Tensor
    answer_at: int
    hidden: Tensor = NONE


def shards(directories: Iterable[Path]) -> list[Path]:
    """Return the shards in `directories`, one of each name, in order of their names."""
    paths = {path.name: path for folder in directories for path in folder.glob("shard-*.parquet")}
    return [paths[name] for name in sorted(paths)]


def keep(beside: Path, path: Path) -> None:
    """Give a finished file its place, and its checksum a line in the directory's checksums.json."""
    sums = _checksums(path.parent) | {path.name: file_digest(beside)}
    write_sealed(path.parent / CHECKSUMS, sums)
    put(beside, path)


def whole(path: Path) -> bool:
    """Whether a file is there and has the checksum that it was kept with, if it was with one."""
    return path.is_file() and _checksums(path.parent).get(path.name) in (None, file_digest(path))


def _checksums(directory: Path) -> dict[str, str]:
    path = directory / CHECKSUMS
    try:
        return read_sealed(path)
    except FileNotFoundError:  # nothing was kept yet, or by an earlier version
        return {}
    except ValueError as error:
        raise PipelineError(f"{path} {error}: remove it to take the files as they are") from None


def read_shard(path: Path) -> list[Example]:
    """Return the conversations of a shard, without hidden states.

    Raises:
        PipelineError: the shard, or the file of checksums, is damaged.
    """
    if not whole(path):
        raise PipelineError(
            f"{path} differs from its checksum: let `python -m pipeline.training.text` write it "
            "again, or take it from git"
        )
    table = pq.read_table(path, columns=["token_ids", "answer_at"]).to_pydict()
    return [
        Example(torch.from_numpy(np.asarray(tokens, np.int64)), at)
        for tokens, at in zip(table["token_ids"], table["answer_at"], strict=True)
    ]


def batches(order: Iterable[int], lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield neighbours in `order`, shorter ones first, of about `most` tokens with padding."""
    batch: list[int] = []
    for i in order:
        if batch and (len(batch) + 1) * lengths[i] > most:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def extract(
    model: Any, layers: Sequence[int], examples: Sequence[Example], path: Path, bfloat16: bool
) -> int:
    """Write the hidden states of the conversations of a shard; return how many tokens they have.

    Args:
        model: a transformers model.
        layers: how many of its layers have been passed; all of them means after the final norm.
        examples: the conversations.
        path: a safetensors file with hidden (N, layers, d) of all tokens, one after the other.
        bfloat16: whether products are rounded so, for processors that multiply it themselves.

    Raises:
        PipelineError: float16 can't hold one.
    """
    lengths = [len(example.tokens) for example in examples]
    per_example = [NONE] * len(examples)
    for batch in batches(
        sorted(range(len(lengths)), key=lengths.__getitem__), lengths, BATCH_TOKENS
    ):
        ids = nn.utils.rnn.pad_sequence([examples[i].tokens for i in batch], batch_first=True)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            # what is padded comes last and is seen by nothing
            out = model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        states = torch.stack([out.hidden_states[layer] for layer in layers], 2).half()
        for hidden, i in zip(states, batch, strict=True):
            per_example[i] = hidden[: lengths[i]]
    joined = torch.cat(per_example)
    if not joined.isfinite().all():
        raise PipelineError(f"{path}: a hidden state is beyond float16: leave its layer out")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".partial")
    save_file({"hidden": joined.contiguous()}, beside, {LAYERS: str(list(layers))})
    keep(beside, path)
    return len(joined)


def with_hidden(examples: Sequence[Example], layers: Sequence[int], path: Path) -> list[Example]:
    """Return the conversations of a shard with their hidden states.

    Raises:
        PipelineError: the file is of other layers or conversations.
    """
    with safe_open(path, "pt") as file:
        hidden, wanted = file.get_tensor("hidden"), str(list(layers))
        given = (file.metadata() or {}).get(LAYERS, wanted)
    lengths = [len(example.tokens) for example in examples]
    if given != wanted or len(hidden) != sum(lengths):
        raise PipelineError(
            f"{path} belongs to layers {given} or to other text: remove it to compute it again"
        )
    pieces = zip(examples, hidden.split(lengths), strict=True)
    return [Example(example.tokens, example.answer_at, piece) for example, piece in pieces]
