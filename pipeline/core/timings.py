"""Timings belong to a machine: which machine's a command asks for, and which an artifact has.

The record of an artifact with timings has the machines in ``facts["machines"]``, and in ``asked``
the keys device.name and device.threads of the command. Artifacts of version 1.0 have the same
metadata in other places.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.files import json_digest

if TYPE_CHECKING:
    from conf.schema import Device

# files of the drivers of GPUs: without one of these torch finds no CUDA device
DRIVERS = ("/dev/nvidiactl", "/dev/nvmap", "/dev/kfd", "/dev/dxg")
Record = Mapping[str, Any]  # an artifact's, as `pipeline.core.store` writes it
Machine = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """Which timings a command asks for."""

    device: str | None  # None: what this machine has (device.name=auto)
    threads: int | None  # None: what this machine has
    here: bool = False  # only those of this machine's processor

    @classmethod
    def of(cls, device: Device) -> Asked:
        """Return what the keys `device` ask for."""
        name = None if device.name == "auto" else device.name
        return cls(name, device.threads, device.timings == "here")

    @property
    def entries(self) -> dict[str, Any]:
        """The device and threads that it asks for, for a record."""
        return {"device": self.device, "threads": self.threads}

    @property
    def mark(self) -> str:
        """A mark of unfinished timings; only a command that asks for the same continues them."""
        return json_digest([self.entries, processor()])[:8]

    def rank(self, record: Record) -> int:
        """Return how well the timings of an artifact suit, from its record; 0 if they do not.

        If the command asks for a device or a number of threads, the timings must be of these. If
        it does not, timings of another processor suit as they are, because somebody copied them
        here; timings of this processor must be of the device and threads that it has. Timings of
        this processor rank higher, and so do timings that the same keys asked for.
        """
        measured = machines(record)
        before = record.get("asked") or dict.fromkeys(self.entries)
        here = of_this_machine(measured)
        if self.here and not here:
            return 0
        if not (
            self._has_device(measured, before["device"], here=here)
            and self._has_threads(measured, before["threads"], here=here)
        ):
            return 0
        rank = 1
        if here:
            rank += 2
        if before == self.entries:
            rank += 1
        return rank

    def _has_device(self, measured: Sequence[Machine], before: str | None, *, here: bool) -> bool:
        """Whether timings are of the asked device; `before` is what was asked for then.

        What `auto` measured on a GPU is not compared: Ray's workers may have one, this process not.
        """
        if self.device is None and not here:
            return True
        devices = {_numbered(machine["device"]) for machine in measured}
        if self.device == before and (self.device is not None or "cpu" not in devices):
            return True
        return devices <= {_numbered(self.device or own_device())}

    def _has_threads(self, measured: Sequence[Machine], before: int | None, *, here: bool) -> bool:
        """Whether timings are of the asked number of threads; `before` was asked for then.

        What null measured is not compared with this process: Ray's workers may have other numbers.
        """
        if self.threads == before or (self.threads is None and not here):
            return True
        threads = {machine["threads"] for machine in measured}
        return threads <= {own_threads() if self.threads is None else self.threads}


def _numbered(device: object) -> object:
    return "cuda:0" if device == "cuda" else device


def own_device() -> str:
    """Return what device.name=auto is here; torch, slow to import, is asked if there is a GPU."""
    if not any(Path(driver).exists() for driver in DRIVERS):
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@cache
def own_threads() -> int:
    """Return what device.threads=null is here: torch's threads, before anything sets them."""
    import torch

    return torch.get_num_threads()


def machines(record: Record) -> list[Machine]:
    """Return the machines of an artifact's timings; none if it has no timings."""
    metadata = record["facts"]
    if "machines" in metadata:
        return list(metadata["machines"])
    if not any(name.startswith("timings/") for name in record["files"]):
        return []
    gpu = None if metadata.get("device", "cpu") == "cpu" else metadata["device"]  # as 1.0 wrote it
    return [
        {
            "processor": record["processor"],
            "device": "cuda" if gpu else "cpu",
            "gpu": gpu,
            "threads": metadata.get("torch_threads"),
            "torch": record["versions"]["torch"],
            "date": record["date"],
        }
    ]


def of_this_machine(measured: Sequence[Machine]) -> bool:
    """Whether any of the timings are of this processor, or there are none."""
    return not measured or any(machine["processor"] == processor() for machine in measured)


def distinct(measured: Sequence[Machine]) -> list[Machine]:
    """Return the machines, each once, by date."""
    once = {tuple(machine.items()): machine for machine in measured}
    return sorted(once.values(), key=lambda machine: str(machine["date"]))


def in_words(measured: Sequence[Mapping[str, object]]) -> str:
    """Return machines as text: the processor, device, threads, torch and date of each."""
    texts = []
    for machine in measured:
        device = f"{machine['gpu']} ({machine['device']})" if machine["gpu"] else machine["device"]
        threads = f"{machine['threads']} CPU thread{'' if machine['threads'] == 1 else 's'}"
        torch = f"torch {machine['torch']}"
        texts.append(f"{machine['processor']}, {device}, {threads}, {torch}, {machine['date']}")
    return "; ".join(texts)


def timed_on(record: Record) -> str | None:
    """Return a line that names the machines of an artifact's timings; None without timings."""
    measured = machines(record)
    if not measured:
        return None
    if of_this_machine(measured):
        return f"timed on {in_words(measured)}"
    return (
        f"timed on another machine: {in_words(measured)}; device.timings=here times the methods on "
        "this one"
    )


@cache
def processor() -> str:
    """Return the processor's name, from a file of Linux or from `platform`."""
    file = Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    named = re.search(r"model name\s*: (.+)", text)
    return named[1] if named else platform.processor() or platform.machine()
