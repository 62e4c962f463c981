"""Which code each stage computes with.

``python -m tests.stage_versions [--same-results STAGE ...]`` accepts the present state.

A stage's digest covers its module and all it imports of pipeline/ and analysis/, as syntax trees
without docstrings and comments; the plumbing below is left out. When the digest changed, bump the
stage's version in pipeline/stages.py and run this command, or say with --same-results that the
change leaves every result as it was.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path

from pipeline.stages import MODULES, VERSIONS

ACCEPTED = Path(__file__).with_name("stage_versions.json")
ROOT = Path(__file__).resolve().parent.parent
SHARED = ["artifacts", "errors", "fingerprint", "identity", "paths", "runner", "slices", "stages"]
PLUMBING = {f"pipeline.{name}" for name in SHARED}


def source(module: str) -> Path | None:
    """Return the file of a module of this project, None for any other."""
    if module.split(".")[0] not in ("pipeline", "analysis") or "." not in module:
        return None
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return None  # a name of a module, not a module
    return Path(spec.origin) if spec is not None and spec.origin else None


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


def shape(node: object) -> str:
    """Return a syntax tree as text, the same under every Python: empty fields are left out."""
    if isinstance(node, list):
        return f"[{','.join(map(shape, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = [
        f"{name}={shape(value)}"
        for name, value in ast.iter_fields(node)
        if value != [] and (value is not None or name == "value")
    ]
    return f"{type(node).__name__}({','.join(parts)})"


def digest(stage: str) -> str:
    """Return the digest of what a stage computes with."""
    total = hashlib.sha256()
    for module in closure(stage):
        path = source(module)
        assert path is not None
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if (
                isinstance(body, list)
                and body
                and isinstance(body[0], ast.Expr)
                and isinstance(body[0].value, ast.Constant)
            ):
                node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
        total.update(f"{module}\n{shape(tree)}\n".encode())
    return total.hexdigest()[:16]


def current() -> dict[str, dict[str, object]]:
    """Return version and digest of every stage."""
    return {stage: {"version": VERSIONS[stage], "digest": digest(stage)} for stage in VERSIONS}


def main(arguments: list[str]) -> None:
    """Accept the current state, unless a digest changed and its version did not."""
    same = set(arguments[1:]) if arguments[:1] == ["--same-results"] else set()
    old = json.loads(ACCEPTED.read_text()) if ACCEPTED.exists() else {}
    new = current()
    for stage, state in new.items():
        before = old.get(stage, state)
        if (
            state["digest"] != before["digest"]
            and state["version"] == before["version"]
            and stage not in same
        ):
            raise SystemExit(f"{stage}: its code changed and its version did not")
    ACCEPTED.write_text(json.dumps(new, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
