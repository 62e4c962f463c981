"""What the modules of this project import, read from their syntax."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from pipeline.plan.graph import MODULES

ROOT = Path(__file__).resolve().parent.parent

PLUMBING = {  # no stage's own
    "pipeline.errors",
    "pipeline.execution.runner",
    "pipeline.paths",
    "pipeline.plan.graph",
    "pipeline.plan.slices",
    "pipeline.plan.stage",
    "pipeline.store.artifacts",
    "pipeline.store.durable",
    "pipeline.store.node",
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


class _Typing(ast.NodeTransformer):
    """Leaves out what is imported for type checkers only."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


@cache
def imported(path: Path, typing: bool = True) -> set[str]:
    """Return all names that a file imports, at any depth of its code, modules or not.

    Without `typing`, what is imported for type checkers only is left out.
    """
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree if typing else _Typing().visit(tree)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join([*parts, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
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
