"""A model as the tasks of a study name it: its files, its settings, and where it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.schema import Device, Dtype, Execution, HeadConfig, ModelConfig
from pipeline.hub import Identity


@dataclass(frozen=True)
class ModelSpec:
    """A model, or a head, and how it runs; `key` is its configuration key, for errors."""

    key: str
    identity: Identity
    settings: ModelConfig
    device: Device
    execution: Execution
    head: HeadConfig | None = None

    @property
    def entries(self) -> dict[str, Any]:
        """What results depend on, as JSON values: its files, precision, attention and head."""
        entries = self.identity.entries
        entries |= self.settings.model_dump(include={"dtype", "head_dtype", "attention"})
        return entries if self.head is None else entries | {"head": self.head.model_dump()}


def model_at(
    path: Path | str,
    label: str,
    *,
    dtype: Dtype = "float32",
    head_dtype: Dtype = "float32",
    threads: int | None = None,
) -> ModelSpec:
    """Return a model of no study: one to be loaded from a directory or a hub id."""
    settings = ModelConfig(
        path=str(path), revision=None, label=label, dtype=dtype, head_dtype=head_dtype,
        attention="sdpa",
    )  # fmt: skip
    device = Device(name="cpu", threads=threads, batch=None)
    execution = Execution(engine="inline", workers=None)
    return ModelSpec("model", Identity(), settings, device, execution)
