"""A model as the tasks of a study name it: its files, its settings, and where it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conf.schema import Device, Execution, HeadConfig, ModelConfig
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
        entries: dict[str, Any] = {**self.identity.entries}
        entries |= self.settings.model_dump(include={"dtype", "head_dtype", "attention"})
        if self.head is not None:
            entries |= {"head": self.head.model_dump(exclude_none=True)}
        return entries
