"""What the modules of this project import, read from their syntax."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from pipeline.plan.graph import MODULES

PLUMBING = {  # no stage's own
    "pipeline.errors",
    "pipeline.execution.runner",
    "pipeline.paths",
    "pipeline.plan.graph",
    "pipeline.plan.slices",
    "pipeline.plan.stage",
    "pipeline.plan.summaries",
    "pipeline.store.artifacts",
    "pipeline.store.fingerprint",
    "pipeline.store.identity",
}


@cache
def source(module: str) -> Path | None:
    """Return the file of a module of this project, None for any other."""
    if module.split(".")[0] not in ("pipeline", "analysis") or "." not in module:
        return None
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return None  # a name of a module, not a module
    return Path(spec.origin) if spec is not None and spec.origin else None


@cache
def imported(path: Path) -> set[str]:
    """Return all names that a file imports, at any depth of its code, modules or not."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imports(module: str) -> set[str]:
    """Return the modules of this project that `module` imports."""
    path = source(module)
    assert path is not None
    return {name for name in imported(path) if source(name) is not None}


def closure(stage: str) -> list[str]:
    """Return all modules a stage computes with, sorted."""
    todo, seen = [MODULES[stage]], set()
    while todo:
        module = todo.pop()
        if module not in seen and module not in PLUMBING:
            seen.add(module)
            todo += imports(module)
            package = source(module)
            if package is not None and package.name == "__init__.py":
                todo += [
                    f"{module}.{path.stem}"
                    for path in package.parent.glob("*.py")
                    if path.stem != "__init__"
                ]
    return sorted(seen)
