"""Identity of an artifact: SHA-256 over canonical JSON of everything that determines it.

The digest of its content is another: one over the checksums of its files.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, Generic, TypeVar

from pipeline.store.plain import Plain, to_plain

RECORD = "record.json"
# what depends on the machine, not on the inputs: the page of a report shows measured speeds
VERDICT = "timings/verdict.md"  # of a report: a paragraph a target, the sentence first
NOT_CONTENT = {RECORD, "timings", "index.html"}


Spec = TypeVar("Spec", covariant=True)


@dataclass(frozen=True)
class Node(Generic[Spec]):
    """One artifact to be: its stage, all that determines and makes it, and its upstream by name.

    `label` is printed, and in the name of its directory.
    """

    stage: str
    label: str
    spec: Spec
    upstream: Mapping[str, tuple[Node, ...]] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The version of the stage's computation."""
        number: int = import_module(f"pipeline.stages.{self.stage}").STAGE.version
        return number

    @cached_property
    def upstream_nodes(self) -> tuple[Node, ...]:
        """All nodes this one is made from, in order."""
        return tuple(node for nodes in self.upstream.values() for node in nodes)

    @cached_property
    def config(self) -> Plain:
        """The specification as plain values, as the record holds it."""
        config: Plain = to_plain(self.spec)
        return config

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of stage, version, specification and upstream fingerprints."""
        return fingerprint(
            {
                "stage": self.stage,
                "version": self.version,
                "config": self.config,
                "upstream": {
                    name: [node.fingerprint for node in nodes]
                    for name, nodes in self.upstream.items()
                },
            }
        )

    @property
    def hash12(self) -> str:
        """The part of the fingerprint that names the directory."""
        return self.fingerprint[:12]


def canonical(value: Any) -> Any:
    """Return `value` as plain JSON types with one representation each.

    Raises:
        TypeError: a value has no deterministic serialisation (sets, objects, NaN, ...).
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{value} can't be fingerprinted: use a finite number or null")
        return value
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: canonical(value[key]) for key in sorted(value)}
    raise TypeError(
        f"{type(value).__name__} {value!r} can't be fingerprinted: "
        "use text, numbers, booleans, lists and mappings"
    )


def fingerprint(value: Any) -> str:
    """Return the hex SHA-256 of the canonical JSON of `value`."""
    text = json.dumps(canonical(value), separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def slug(label: str) -> str:
    """Return `label` as a file name."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "_", label)[:100]  # a file name has at most 255 bytes


def content_digest(files: Mapping[str, str]) -> str:
    """Return the digest of an artifact's files, by name and checksum."""
    lines = [
        f"{name} {digest}\n"
        for name, digest in sorted(files.items())
        if name.split("/")[0] not in NOT_CONTENT
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
