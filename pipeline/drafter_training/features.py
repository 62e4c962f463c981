"""The target's hidden states of the training text, computed once: what a drafter reads and learns.

One file a shard of text, so that a run that was stopped goes on after the last whole one.

Products may be rounded to bfloat16: where the processor multiplies it itself a batch is about 1.5
times as fast, and generated text is that of a model whose weights are rounded once more: good to
train on, since what a drafter learns from is computed in float32 later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from pipeline.errors import PipelineError

LAYERS = "layers"  # in the metadata of a file
AT_ONCE = 2048  # tokens of a batch, padding included


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


@dataclass(frozen=True)
class Example:
    """A conversation with the hidden states after each of its n tokens."""

    tokens: Tensor  # (n,)
    answer_at: int
    hidden: Tensor  # (n, layers, d) float16


def file_of(directory: Path, shard: str) -> Path:
    """Where the hidden states of a shard of text are."""
    return directory / "features" / f"{Path(shard).stem}.safetensors"


def extract(model: Any, layers: Sequence[int], conversations: Sequence[Written], path: Path) -> int:
    """Write the hidden states of `conversations` to `path`; return how many tokens they have.

    Args:
        model: a transformers model.
        layers: how many of its layers have been passed; all of them means after the final norm.
        conversations: those of one shard.
        path: a safetensors file with hidden (N, layers, d) of all tokens, one after the other.

    Raises:
        PipelineError: float16 can't hold one.
    """
    found: list[Tensor | None] = [None] * len(conversations)
    for batch in batches([len(one.tokens) for one in conversations]):
        width = max(len(conversations[i].tokens) for i in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        for row, i in enumerate(batch):
            ids[row, : len(conversations[i].tokens)] = torch.from_numpy(conversations[i].tokens)
        with torch.inference_mode():  # what is padded comes last and is seen by nothing
            out = model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        hidden = torch.stack([out.hidden_states[layer] for layer in layers], dim=2).half()
        for row, i in enumerate(batch):
            found[i] = hidden[row, : len(conversations[i].tokens)]
    joined = torch.cat([one for one in found if one is not None])
    if not joined.isfinite().all():
        raise PipelineError(f"{path}: a hidden state is beyond float16: leave its layer out")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".partial")
    save_file({"hidden": joined.contiguous()}, beside, {LAYERS: str(list(layers))})
    beside.replace(path)
    return len(joined)


def batches(lengths: Sequence[int]) -> list[list[int]]:
    """Return the indices of conversations that are run together, of similar length."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    made: list[list[int]] = [[]]
    for i in order:
        if made[-1] and (len(made[-1]) + 1) * lengths[i] > AT_ONCE:
            made.append([])
        made[-1].append(i)
    return made


def examples(conversations: Sequence[Written], layers: Sequence[int], path: Path) -> list[Example]:
    """Return the conversations of a shard with their hidden states.

    Raises:
        PipelineError: the file is of other layers or conversations.
    """
    with safe_open(path, "pt") as file:
        hidden, wanted = file.get_tensor("hidden"), str(list(layers))
        given = (file.metadata() or {}).get(LAYERS, wanted)
    if given != wanted or len(hidden) != sum(len(one.tokens) for one in conversations):
        raise PipelineError(
            f"{path} is of layers {given} or of other text: remove it, and it is made again"
        )
    pieces = hidden.split([len(one.tokens) for one in conversations])
    return [
        Example(torch.from_numpy(one.tokens).long(), one.answer_at, piece)
        for one, piece in zip(conversations, pieces, strict=True)
    ]


class RoundedLinear(nn.Module):
    """A linear map in bfloat16, from float32 to float32."""

    def __init__(self, linear: nn.Linear) -> None:
        """Round the weights of `linear`, which has no bias."""
        super().__init__()
        assert linear.bias is None
        self.weight: Tensor = nn.Parameter(linear.weight.bfloat16(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., n)."""
        return nn.functional.linear(x.bfloat16(), self.weight).float()


def round_products(module: nn.Module) -> None:
    """Replace all linear maps of `module`."""
    for name, inner in list(module.named_modules()):
        if isinstance(inner, nn.Linear):
            module.set_submodule(name, RoundedLinear(inner))
