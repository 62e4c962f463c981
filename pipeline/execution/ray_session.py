"""The connection to Ray, and how its processors and GPUs are shared out among workers."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from pipeline.errors import PipelineError

REACHED = 5.0  # seconds to wait for an address; Ray itself tries for minutes
KEY = "execution.address"


class Share(NamedTuple):
    """What one of so many workers gets."""

    workers: int
    processors: int
    gpus: int


def connect(address: str | None) -> Any:
    """Return the module ray, connected; the same connection serves the whole process.

    Args:
        address: HOST:PORT of a cluster's head, "auto" for the one that this machine is part of, or
            None for workers on this machine alone.

    Raises:
        PipelineError: Ray is not installed, or there is no such cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it reports to its makers otherwise
    try:
        import ray
    except ModuleNotFoundError:
        raise PipelineError(
            'execution.engine=ray needs Ray: pip install -e ".[ray]", or give '
            "execution.engine=inline"
        ) from None
    if ray.is_initialized():
        return ray
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        ray.init(include_dashboard=False, **quiet)
        return ray
    if address != "auto":
        _reach(address)
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, SystemExit) as error:
        said = str(error).partition("\n")[0]
        raise PipelineError(
            f"{KEY}={address}: Ray can't be joined there ({said}): start it with `ray start --head`"
            ", and run this command on one of its machines"
        ) from None
    return ray


def _reach(address: str) -> None:
    """Check that somebody listens at HOST:PORT.

    Raises:
        PipelineError: nobody does.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=REACHED).close()
    except (OSError, OverflowError) as error:
        raise PipelineError(
            f"{KEY}={address} can't be reached ({error}): give HOST:PORT as `ray start --head` "
            "prints it, auto on a machine of the cluster, or null for this machine alone"
        ) from None


def share_out(
    there: Mapping[str, float], workers: int | None, device: str, threads: int | None
) -> Share:
    """Share processors and GPUs out among workers.

    Args:
        there: processors ("CPU") and GPUs ("GPU") of all machines, as Ray counts them.
        workers: how many are asked for; None is one a GPU, or on processors alone one for every
            `threads` of them.
        device: the configuration key device.name.
        threads: device.threads; None shares the processors out evenly.

    Raises:
        PipelineError: there are fewer, or a GPU is named that Ray gives to whom it likes.
    """
    processors, gpus = int(there.get("CPU", 0)), int(there.get("GPU", 0))
    if ":" in device:
        raise PipelineError(
            f"device.name={device} is not allowed with execution.engine=ray, which gives every "
            "worker a GPU of its own: give auto, cuda or cpu"
        )
    if device == "cuda" and not gpus:
        raise PipelineError("device.name=cuda: Ray finds no GPU; give device.name=cpu or auto")
    on_gpus = gpus > 0 and device != "cpu"
    if on_gpus:
        count = workers or gpus
        if count > gpus:
            raise PipelineError(f"execution.workers={count} exceeds the {gpus} GPUs that Ray finds")
    else:
        count = workers or max(1, processors // (threads or processors or 1))
    each = threads or max(1, processors // count)
    if count * each > processors:
        raise PipelineError(
            f"execution.workers={count} with {each} threads each need {count * each} processors, "
            f"and Ray finds {processors}: lower execution.workers or device.threads"
        )
    return Share(count, each, int(on_gpus))
