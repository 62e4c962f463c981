"""Plain English in the code: names of locals, first sentences of docstrings, words of the field."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("analysis", "benchmarks", "conf", "pipeline", "tools")
UNNAMED = {"found", "one", "mine", "said", "told", "known", "asked"}  # name a local for its content
# word: the field's word
WORDS = {
    r"\blaws?\b": "verification scheme, or distribution",
    r"(?<!\.)\bdials?\b": "range, or parameter",
    r"\brealised\b": "measured",
    r"optimistic": "upper",
    r"\bpartings?\b": "first difference",
}
MOST_WHAT = 0  # first sentences that need the word "what"


def files(suffix: str = "py") -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob(f"*.{suffix}"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def bound_names(node: ast.AST) -> Iterator[str]:
    """The names that a node of a syntax tree binds: variables, parameters, exceptions, captures."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield name
        case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name
        case ast.alias(asname=str(name)):
            yield name


def first_sentences() -> Iterator[tuple[str, str]]:
    """The place and the first sentence of every docstring."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in files():
        for node in ast.walk(tree(path)):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                place = f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}"
                yield place, re.split(r"(?<=\.)\s", " ".join(text.split()))[0]


def test_bound_names_are_seen() -> None:
    code = """
def f(a, *b, c=0, **d):
    with open(a) as e, (lambda g: g)(b):
        for h, (i, *j) in [k for k in c]:
            l: int = (m := 1)
    try:
        import n as o
    except ValueError as p:
        match a:
            case [q, *r] | {"x": q, **r}:
                s += 1
"""
    names = {name for node in ast.walk(ast.parse(code)) for name in bound_names(node)}
    assert names == set("abcdeghijklmopqrs")


def test_locals_are_named_for_their_content() -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"  # type: ignore[attr-defined]
        for path in files()
        for node in ast.walk(tree(path))
        for name in bound_names(node)
        if name in UNNAMED
    ]
    assert not bad, "\n".join(bad)


def test_docstrings_begin_with_a_noun_of_the_field() -> None:
    bad = [
        f"{place}: {text}"
        for place, text in first_sentences()
        if re.match(r"(Return|Returns|Say|Yield|Give) (of |all )?(what|which|how)\b", text)
    ]
    assert not bad, "\n".join(bad)
    what = [f"{place}: {text}" for place, text in first_sentences() if re.search(r"\bwhat\b", text)]
    assert len(what) <= MOST_WHAT, "\n".join(what)


@pytest.mark.parametrize("word", WORDS)
def test_the_words_of_the_field(word: str) -> None:
    """In code, comments, docstrings and texts."""
    bad = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files() + files("toml") + files("yaml")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(word, line, re.IGNORECASE)
    ]
    assert not bad, f"write {WORDS[word]}:\n" + "\n".join(bad)
