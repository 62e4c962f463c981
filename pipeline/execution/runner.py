"""Brings nodes up to date: computes missing artifacts under locks, and publishes them."""

from __future__ import annotations

import errno
import importlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pipeline.errors import DamagedError, PipelineError
from pipeline.paths import ROOT
from pipeline.plan.graph import STAGES, with_upstream
from pipeline.plan.specs import ModelSpec
from pipeline.plan.stage import models_of, stage_of
from pipeline.store.artifacts import Artifact, Pending, Store
from pipeline.store.node import Node
from pipeline.store.plain import Plain

RECORDED_PACKAGES = (
    "numpy",
    "pyarrow",
    "pandas",
    "numba",
    "torch",
    "transformers",
    "datasets",
    "matplotlib",
    "hydra-core",
)
ATTEMPTS = 3  # to make an artifact that is damaged again and again
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


def check_models(nodes: Sequence[Node]) -> None:
    """Check the models that `nodes`, still to be computed, will load.

    Raises:
        PipelineError: there is no such device or are fewer processors; workers can't be had; a
            model is of a kind that can't be run; one that reads drafts can't take them back; or
            tokenizers differ.
    """
    if not any(map(models_of, nodes)):
        return  # without the import of torch
    from pipeline.models.devices import check_threads, choose_device
    from pipeline.models.load import check_pair_skeletons, pair_tokenizer, skeleton

    checked = set()
    for node in nodes:
        models = models_of(node)
        if models and not _join_workers(models[0]):
            for used in models:
                choose_device(used.device.name)
                check_threads(used.device.threads)
        if not models or (models[0].key, len(models)) in checked:
            continue
        checked.add((models[0].key, len(models)))
        if len(models) == 1:
            skeleton(*models)
        else:
            check_pair_skeletons(*models)
            pair_tokenizer(*models)


def _join_workers(target: ModelSpec) -> bool:
    """Join the workers that a target asks for; return whether it asks for any."""
    from pipeline.execution.workers import connect, share_out

    if target.execution.engine == "inline":
        return False
    share_out(connect().cluster_resources(), target)
    return True


def ensure(
    nodes: Iterable[Node], store: Store, check: Callable[[list[Node]], None] = lambda _: None
) -> list[Artifact]:
    """Bring `nodes` and their inputs up to date; return their artifacts, checked, in order.

    What an up-to-date artifact was made from is not looked for: it may have been deleted. What is
    found damaged is set aside and made anew. `check` is called with what will be computed, before.

    Raises:
        PipelineError: a stage says what is wrong, or the disk is full or loses what it is given.
    """
    wanted, computed, damages = list(nodes), set[str](), Counter[Path]()
    printed = False
    while True:
        # again after each group: an upstream rebuilt with other content makes more nodes stale
        try:
            if group := _next_group(wanted, store):
                if not printed:
                    todo = _missing(wanted, store)
                    check(todo)
                    _say_plan(wanted, todo, store)
                    printed = True
                damaged = _compute(group, store)
                computed |= set() if damaged else {node.fingerprint for node in group}
            else:
                by_fingerprint = {node.fingerprint: store.find(node) for node in wanted}
                artifacts = [by_fingerprint[node.fingerprint] for node in wanted]
                damaged = _damaged(by_fingerprint.values())
                if not damaged and None not in artifacts:
                    break
        except DamagedError as error:
            damaged = [error]
        _set_aside(damaged, damages, store)
    _tidy(wanted, store)
    there = [artifact for artifact in artifacts if artifact is not None]
    _say_cached({
        artifact.directory: node for node, artifact in zip(wanted, there, strict=True)
        if node.fingerprint not in computed
    })  # fmt: skip
    return there


def _tidy(nodes: list[Node], store: Store) -> None:
    """Remove the leftovers of a run that was killed after it had published one of `nodes`."""
    for node in with_upstream(nodes).values():
        left = store.workspace(node)
        if left.exists() and os.access(left, os.W_OK):
            with store.lock(_lock_name(node)):  # not held by who makes it anew
                if store.fresh(node):
                    shutil.rmtree(left, ignore_errors=True)


def _damaged(artifacts: Iterable[Artifact | None]) -> list[DamagedError]:
    """The damage of each damaged one of `artifacts`, every file of which is read."""
    return [
        DamagedError(artifact.directory, damage[0])
        for artifact in artifacts
        if artifact is not None and (damage := artifact.damage())
    ]


def _set_aside(damaged: list[DamagedError], damages: Counter[Path], store: Store) -> None:
    """Quarantine damaged artifacts; give up after several rebuilds."""
    for damage in damaged:
        if damages[damage.directory] == ATTEMPTS:
            raise PipelineError(
                f"{damage.reason}, after {ATTEMPTS} rebuilds: check the disk"
            ) from damage
        damages[damage.directory] += 1
    store.set_aside([damage.directory for damage in damaged])


def _next_group(wanted: list[Node], store: Store) -> list[Node]:
    """The nodes that are computed next, together; none when all is up to date."""
    todo = _missing(wanted, store)
    if not todo:
        return []
    first = min(todo, key=lambda node: list(STAGES).index(node.stage))
    return [node for node in todo if _lock_name(node) == _lock_name(first)]


def _missing(wanted: list[Node], store: Store) -> list[Node]:
    """All nodes that must be computed for `wanted`, each once, upstream first."""
    fresh: dict[str, bool] = {}
    order: dict[str, Node] = {}

    def visit(node: Node) -> None:
        if node.fingerprint in order or store.fresh(node, fresh):
            return
        for above in node.upstream_nodes:
            visit(above)
        order[node.fingerprint] = node

    for node in wanted:
        visit(node)
    return list(order.values())


def _lock_name(node: Node) -> str:
    owner = node.upstream_nodes[0] if stage_of(node).joint else node
    return f"{node.stage}-{owner.hash12}"


def _compute(group: list[Node], store: Store) -> list[DamagedError]:
    """Compute and publish `group`; where inputs are damaged, return these instead."""
    first, joint = group[0], stage_of(group[0]).joint
    name = f"{first.stage} {first.upstream_nodes[0].label if joint else first.label}"
    try:
        with store.lock(_lock_name(first), f"{name}: another process computes it, waiting"):
            group = [node for node in group if not store.fresh(node)]
            if not group:
                print(f"{name}: computed by another process", flush=True)
                return []
            inputs = {above.fingerprint: store.find(above) for above in first.upstream_nodes}
            upstream = {key: artifact for key, artifact in inputs.items() if artifact is not None}
            damaged = _damaged(upstream.values())
            if damaged or len(upstream) < len(inputs):  # or set aside by another process just now
                return damaged
            count = f" {len(group)}" if joint else ""
            print(f"{name}: computing{count}", flush=True)
            begun = time.monotonic()
            published = _run(group, upstream, store)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise PipelineError(
            f"{name}: can't write below {store.root} ({os.strerror(error.errno)}): no "
            "incomplete file was kept; free space and run the same command again"
        ) from error
    place = published[0].directory.parent if joint else published[0].directory
    print(f"{name}: {time.monotonic() - begun:.1f} s -> {shown(place)}", flush=True)
    return []


def _run(group: list[Node], upstream: dict[str, Artifact], store: Store) -> list[Artifact]:
    module = importlib.import_module(stage_of(group[0]).module)
    named = {
        name: [upstream[node.fingerprint] for node in nodes]
        for name, nodes in group[0].upstream.items()
    }
    pending: list[Pending] = []
    begun = time.monotonic()
    try:
        pending += [store.pending(node, upstream) for node in group]
        if stage_of(group[0]).joint:
            module.compute(group, named, pending)
        else:
            module.compute(group[0], named, pending[0])
        facts = environment(time.monotonic() - begun)
        for node in group[0].upstream_nodes:  # files were checked before, and read by their path
            now = store.find(node)
            if now is not None and now.content != upstream[node.fingerprint].content:
                raise DamagedError(now.directory, f"{now.directory} was replaced while it was read")
        pairs = zip(group, pending, strict=True)
        return [store.publish(node, made, facts) for node, made in pairs]
    finally:
        for made in pending:
            made.drop()


def _say_plan(nodes: list[Node], todo: list[Node], store: Store) -> None:
    """Print, per stage, how many artifacts are cached and how many will be computed."""
    parts, names = [], {node.fingerprint for node in todo}
    for stage in STAGES:
        of_stage = [node for node in with_upstream(nodes).values() if node.stage == stage]
        run = sum(node.fingerprint in names for node in of_stage)
        cached = sum(node.fingerprint not in names and store.has(node) for node in of_stage)
        words = [f"{cached} cached"] * (cached > 0) + [f"{run} to run"] * (run > 0)
        parts += [f"{stage} {' and '.join(words)}"] if words else []
    print(f"plan: {', '.join(parts)}", flush=True)


def _say_cached(cached: dict[Path, Node]) -> None:
    """Say that these nodes of one stage were there; targets may share one."""
    if not cached:
        return
    place, node = next(iter(cached.items()))
    labels = {node.label for node in cached.values()}
    what = f"{node.stage} {node.label}" if len(labels) == 1 else node.stage
    if len(cached) == 1:
        print(f"{what}: cached -> {shown(place)}", flush=True)
    else:
        print(f"{what}: {len(cached)} cached", flush=True)


def shown(path: Path) -> str:
    """Return `path` as a user in the working directory would write it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def environment(wall_seconds: float) -> Plain:
    """Return the record's facts on the run and the machine."""
    return {
        "wall_seconds": round(wall_seconds, 3),
        "argv": sys.argv,
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in RECORDED_PACKAGES},
        "platform": platform.platform(),
        "git": _git(),
    }


@cache
def _git() -> Plain:
    def git(*arguments: str) -> str | None:
        try:
            return subprocess.run(
                ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None  # an export without history, or no git

    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if changed is None else bool(changed)}
