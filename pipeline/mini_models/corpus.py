"""The training corpus of the embedded models: docstrings, formatted as chat.

Reads the source of the standard library and of the installed packages named in
``conf/mini_models.yaml`` with `ast` (nothing is imported or run) and turns every docstring
into one exchange: a question about the object, and its documentation as the answer.
Exact duplicates are dropped, and a document belongs to the validation part when the hash of
its answer says so, hence never to both parts.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import random
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MIN_CHARACTERS = 40
MAX_CHARACTERS = 6_000
VALIDATION_SHARE = 50  # one document in fifty

QUESTIONS = (
    "What does the Python {kind} `{name}` do?",
    "Please explain the {kind} `{name}` to me.",
    "I came across `{name}` in some Python code. What is this {kind} for, and how do I use it?",
    "Write the documentation of the {kind} `{name}`.",
    "How does the {kind} `{name}` work? Tell me about its parameters and what it returns.",
)
SIGNATURE = "\n\nIts signature is:\n\n```python\n{signature}\n```"


@dataclass(frozen=True)
class Document:
    """One exchange: a question about a documented object and its docstring as the answer."""

    question: str
    answer: str

    @property
    def is_validation(self) -> bool:
        """Whether the hash of the answer puts the document into the validation part."""
        digest = hashlib.sha256(self.answer.encode()).digest()
        return int.from_bytes(digest[:4], "big") % VALIDATION_SHARE == 0


def package_directories(packages: list[str]) -> list[tuple[str, Path]]:
    """Return (import name, source directory) of the standard library and of each package.

    Raises:
        ModuleNotFoundError: a package named in the configuration is not installed.
    """
    found = [("", Path(sysconfig.get_path("stdlib")))]
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(
                f"mini_models.packages names {name!r}, which is not installed: "
                "run `make install` or remove it from conf/mini_models.yaml"
            )
        found.append((name, Path(spec.origin).parent))
    return found


def read_corpus(packages: list[str], seed: int) -> list[Document]:
    """Collect the documents of all packages, deduplicated, in a seeded random order."""
    seen: set[str] = set()
    documents = []
    for package, directory in package_directories(packages):
        for path in sorted(directory.rglob("*.py")):
            relative = path.relative_to(directory)
            if {"site-packages", "test", "tests", "__pycache__"} & set(relative.parts):
                continue
            module = ".".join([package, *relative.with_suffix("").parts]).strip(".")
            for document in _documents(path, module.removesuffix(".__init__")):
                if document.answer not in seen:
                    seen.add(document.answer)
                    documents.append(document)
    random.Random(seed).shuffle(documents)
    return documents


def _documents(path: Path, module: str) -> Iterator[Document]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's source
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # templates and deliberately broken files
    yield from _walk(tree, module)


def _walk(node: ast.AST, name: str) -> Iterator[Document]:
    kinds = {ast.Module: "module", ast.ClassDef: "class"}
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "").strip()
        if len(text) >= MIN_CHARACTERS:
            answer = text[:MAX_CHARACTERS].encode("utf-8", "ignore").decode()
            yield Document(_question(node, name, kinds.get(type(node), "function")), answer)
    for child in ast.iter_child_nodes(node):
        child_name = getattr(child, "name", None)
        yield from _walk(child, f"{name}.{child_name}" if isinstance(child_name, str) else name)


def _question(node: ast.AST, name: str, kind: str) -> str:
    choice = random.Random(name)  # seeded by the name: the same question on every build
    question = choice.choice(QUESTIONS).format(kind=kind, name=name)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and choice.random() < 0.7:
        signature = f"{node.name}({ast.unparse(node.args)})"
        if len(signature) < 400:
            question += SIGNATURE.format(signature=signature)
    return question
