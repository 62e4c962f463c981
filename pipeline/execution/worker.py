"""What a worker of a long stage does, and what is configured of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from pipeline.execution.shard_plan import Shard, ShardMeasured
from pipeline.plan.stage import Node
from pipeline.store.artifacts import Artifact

INLINE: Mapping[str, Any] = {"engine": "inline", "workers": None, "address": None}


class Worker(Protocol):
    """The models of a stage, loaded, and what is computed with them."""

    device: torch.device

    def cut(self, lengths: Sequence[int]) -> list[int]:
        """Return the sizes of the shards; see `pipeline.execution.shard_plan.Cut`."""

    def compute(
        self, shard: Shard, path: Path, progress: Callable[[int], object]
    ) -> ShardMeasured | Callable[[], ShardMeasured]:
        """Compute a shard; see `pipeline.execution.shards.Compute`."""

    def facts(self, measured: Sequence[ShardMeasured]) -> dict[str, Any]:
        """Return what the record says of the models and of what all shards took."""


# Loads what a stage needs, from a node and the artifacts it is made from.
OpenWorker = Callable[[Node, Mapping[str, Sequence[Artifact]]], Worker]


def target_settings(node: Node) -> Mapping[str, Any]:
    """Return how the target of a node runs; the node has one, or a pair."""
    found: Mapping[str, Any] = node.settings.get("target", node.settings)
    return found


def execution_of(node: Node) -> Mapping[str, Any]:
    """Return what the configuration says of the workers of a node that has models."""
    found: Mapping[str, Any] = target_settings(node).get("execution", INLINE)
    return found
