"""Brings nodes up to date: finds what is missing, computes it under locks, publishes it."""

from __future__ import annotations

import importlib
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.artifacts import Artifact, Store
from pipeline.errors import PipelineError
from pipeline.paths import ROOT
from pipeline.stages import JOINT, MODULES, RESUMABLE, VERSIONS, Node

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


def ensure(nodes: Iterable[Node], store: Store) -> list[Artifact]:
    """Bring `nodes` and what they need up to date; return their artifacts in order.

    What an up-to-date artifact was made from is not looked for: it may have been deleted.
    """
    wanted = list(nodes)
    todo = pending(wanted, store)
    for stage in VERSIONS:
        for group in _groups([node for node in todo if node.stage == stage]):
            _compute(group, store)
        _say_cached([node for node in wanted if node.stage == stage], todo, store)
    found = [store.find(node) for node in wanted]
    return [artifact for artifact in found if artifact is not None]


def pending(wanted: list[Node], store: Store) -> list[Node]:
    """All nodes that must be computed for `wanted`, each once, upstream first."""
    known: dict[str, bool] = {}
    order: dict[str, Node] = {}

    def visit(node: Node) -> None:
        if node.fingerprint in order or store.fresh(node, known):
            return
        for above in node.upstream_nodes:
            visit(above)
        order[node.fingerprint] = node

    for node in wanted:
        visit(node)
    return list(order.values())


def _groups(nodes: list[Node]) -> list[list[Node]]:
    """Nodes of a joint stage with the same upstream are computed in one pass, others alone."""
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(_lock_name(node), []).append(node)
    return list(groups.values())


def _lock_name(node: Node) -> str:
    owner = node.upstream_nodes[0] if node.stage in JOINT else node
    return f"{node.stage}-{owner.hash12}"


def _compute(group: list[Node], store: Store) -> None:
    first = group[0]
    name = f"{first.stage} {first.upstream_nodes[0].label if first.stage in JOINT else first.label}"
    with store.lock(_lock_name(first), f"{name}: another process computes it, waiting"):
        group = [node for node in group if not store.fresh(node)]
        if not group:
            print(f"{name}: computed by another process", flush=True)
            return
        count = f" {len(group)}" if first.stage in JOINT else ""
        print(f"{name}: computing{count}", flush=True)
        begun = time.monotonic()
        published = _run(group, store)
    place = published[0].directory.parent if first.stage in JOINT else published[0].directory
    print(f"{name}: {time.monotonic() - begun:.1f} s -> {shown(place)}", flush=True)


def _run(group: list[Node], store: Store) -> list[Artifact]:
    module = importlib.import_module(MODULES[group[0].stage])
    upstream = {
        name: [_found(node, store) for node in nodes] for name, nodes in group[0].upstream.items()
    }
    drafts = [store.draft(node, node.stage in RESUMABLE) for node in group]
    begun = time.monotonic()
    if group[0].stage in JOINT:
        module.compute(group, upstream, drafts)
    else:
        module.compute(group[0], upstream, drafts[0])
    facts = environment(time.monotonic() - begun)
    return [store.publish(node, draft, facts) for node, draft in zip(group, drafts, strict=True)]


def _found(node: Node, store: Store) -> Artifact:
    artifact = store.find(node)
    if artifact is None:
        raise PipelineError(
            f"{node.stage} {node.label} was deleted during the run: run the same command again"
        )
    return artifact


def _say_cached(wanted: list[Node], computed: list[Node], store: Store) -> None:
    """Say which of `wanted`, nodes of one stage, were there; targets may share a node."""
    new = {node.fingerprint for node in computed}
    cached = {node.fingerprint: node for node in wanted if node.fingerprint not in new}
    if not cached:
        return
    node, labels = next(iter(cached.values())), {node.label for node in cached.values()}
    what = f"{node.stage} {node.label}" if len(labels) == 1 else node.stage
    if len(cached) == 1:
        print(f"{what}: cached -> {shown(_found(node, store).directory)}", flush=True)
    else:
        print(f"{what}: {len(cached)} cached", flush=True)


def shown(path: Path) -> str:
    """Return `path` as a user in the working directory would write it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def environment(wall_seconds: float) -> dict[str, Any]:
    """Return what the record says of the run and the machine."""
    return {
        "wall_seconds": round(wall_seconds, 3),
        "argv": sys.argv,
        "versions": {"python": platform.python_version(), **_versions()},
        "platform": platform.platform(),
        "git": _git(),
    }


def _versions() -> dict[str, str]:
    return {name: version(name) for name in RECORDED_PACKAGES}


@cache
def _git() -> dict[str, Any]:
    def git(*arguments: str) -> str | None:
        try:
            return subprocess.run(
                ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None  # an export without history, or no git

    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if changed is None else bool(changed)}
