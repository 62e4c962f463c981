"""A worker of a long stage, and what it gets of this machine or of the machines that Ray joins."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, Protocol

import torch

from pipeline.errors import PipelineError
from pipeline.execution.children import end_with_me
from pipeline.execution.shard_plan import Shard, ShardMeasured
from pipeline.store.artifacts import Artifact
from pipeline.store.node import Node

INLINE: Mapping[str, Any] = {"engine": "inline", "workers": None, "address": None}
REACHED = 5.0  # seconds to wait for an address; Ray itself tries for minutes
KEY = "execution.address"
AUTH_MODE, AUTH_TOKEN, AUTH_FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
# variables of the command, by their beginnings, that workers on other machines get
HANDED_ON = ("HF_", "TRANSFORMERS_", "TOKENIZERS_", "TORCH", "PYTORCH_", "CUBLAS_", "XDG_CACHE_")


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


def connect(address: str | None) -> Any:
    """Return the module ray, connected; the same connection serves the whole process.

    Args:
        address: HOST:PORT of a cluster's head, "auto" for the one that this machine is part of, or
            None for workers on this machine alone.

    Raises:
        PipelineError: Ray is not installed, or there is no such cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it reports to its makers otherwise
    if address is not None and _has_token():  # read when ray is imported, and by Ray for auto alone
        os.environ.setdefault(AUTH_MODE, "token")
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
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address is None:
            _start(ray, quiet)
        else:
            _join(ray, address, quiet)
    finally:  # Ray has put a handler of its own there
        if handler is not None and current_thread() is main_thread():
            signal.signal(signal.SIGTERM, handler)
    return ray


def _start(ray: Any, quiet: Mapping[str, Any]) -> None:
    """Start workers of this machine, which end with this process.

    Ray's agents would outlive a killed process by minutes, so a keeper ends them. No cluster is
    joined, though one may be running here.
    """
    import psutil  # Ray brings one along

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    ray.init(address="local", include_dashboard=False, **quiet)
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    end_with_me(after - before)


def _join(ray: Any, address: str, quiet: Mapping[str, Any]) -> None:
    """Join a cluster; its workers get the variables of this command that models depend on.

    Raises:
        PipelineError: there is none, or it doesn't take this command.
    """
    if address != "auto":
        _reach(address)
    try:
        ray.init(address=address, runtime_env={"env_vars": _handed_on()}, **quiet)
    except (ConnectionError, RuntimeError, ValueError, SystemExit) as error:
        said = str(error).partition("\n")[0].rstrip(". ")
        wanted = (
            f". Put the token of its head, if it has one, into ~/.ray/auth_token or {AUTH_TOKEN}"
        )
        token = "" if _has_token() else wanted
        raise PipelineError(
            f"{KEY}={address}: Ray can't be joined there ({said}): start it with `ray start --head`"
            f", and run this command on one of its machines{token}"
        ) from None


def _handed_on() -> dict[str, str]:
    """Return the variables that workers get; no token, since Ray shows what it hands on."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(HANDED_ON) and not name.endswith("_TOKEN")
    }


def _has_token() -> bool:
    """Whether this user has a token for Ray, where Ray looks for it."""
    kept = Path(os.environ.get(AUTH_FILE) or Path.home() / ".ray" / "auth_token")
    return bool(os.environ.get(AUTH_TOKEN)) or kept.is_file()


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
) -> tuple[int, int, int]:
    """Return how many workers there are, and how many processors and GPUs each of them gets.

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
    return count, each, int(on_gpus)
