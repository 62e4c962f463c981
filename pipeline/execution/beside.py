"""Brings the targets of a study up to date side by side, each with all that is made of it alone.

One process computes all artifacts of some targets, up to what needs several of them. Processes do
not talk: they meet in the store, as those of two commands do.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection

from pipeline.errors import PipelineError
from pipeline.execution import runner
from pipeline.plan.graph import with_upstream
from pipeline.plan.stage import Node
from pipeline.store.artifacts import Store


def ensure_targets(
    nodes: Mapping[str, Sequence[Node]],
    wanted: Sequence[Node],
    targets: int,
    at_once: int,
    store: Store,
) -> bool:
    """Bring what `wanted` needs of each target up to date, some targets at once.

    There are no more processes than processors. What all targets share is computed first.

    Args:
        nodes: by stage; each has as many of every target, target by target, or one for all.
        wanted: some of them.
        targets: how many there are.
        at_once: how many are computed at once.
        store: where artifacts are.

    Returns:
        Whether there was anything to do so; then it was said what is to be run.

    Raises:
        PipelineError: a stage says what is wrong, here or in another process.
    """
    count = min(targets, at_once, os.cpu_count() or 1)
    if count < 2:
        return False
    missing = {node.fingerprint: node for node in runner.missing(wanted, store)}
    of_each = [_of(nodes, target, targets) for target in range(targets)]
    needed = [
        {node.fingerprint for one in of_each[first::count] for node in one}
        for first in range(count)
    ]
    owners = Counter(name for names in needed for name in names)
    parts = [
        [node for name, node in missing.items() if name in names and owners[name] == 1]
        for names in needed
    ]
    here, *others = [part for part in parts if part] or [[]]
    if not others:
        return False
    runner.say_plan(wanted, store)
    above = with_upstream([*here, *(node for part in others for node in part)])
    shared = [node for name, node in missing.items() if name in above and owners[name] != 1]
    runner.ensure(shared, store, told=True)
    processes = [_Other(part, store) for part in others]
    try:
        runner.ensure(here, store, told=True)
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.end()
    return True


def _of(nodes: Mapping[str, Sequence[Node]], target: int, targets: int) -> list[Node]:
    """Return the nodes of one target, of all stages."""
    found: list[Node] = []
    for planned in nodes.values():
        each = len(planned) // targets  # 0 where all targets have one
        found += planned[target * each : (target + 1) * each]
    return found


class _Other:
    """Another process that brings nodes up to date."""

    def __init__(self, nodes: Sequence[Node], store: Store) -> None:
        context = get_context("spawn")
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(sender, nodes, store), daemon=True)
        self._process.start()
        sender.close()

    def join(self) -> None:
        """Wait until it has done its work.

        Raises:
            PipelineError: it could not.
        """
        try:
            said = self._receiver.recv()
        except EOFError:
            self._process.join()
            raise PipelineError(
                f"the process of other targets ended with status {self._process.exitcode}: the "
                "same command goes on from here, with execution.targets=1 in one process"
            ) from None
        if said is not None:
            raise PipelineError(said)

    def end(self) -> None:
        """End it, wherever it is; finished shards are kept."""
        self._process.terminate()
        self._process.join()


def _run(sender: Connection, nodes: Sequence[Node], store: Store) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    try:
        runner.ensure(nodes, store, told=True)
    except PipelineError as error:
        sender.send(str(error))
    else:
        sender.send(None)
