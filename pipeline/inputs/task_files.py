"""The files that determine what a task of lm-evaluation-harness asks, and how it is scored.

A task's YAML file names others: `include`, Python functions (`!function MODULE.NAME`), data
(`data_files`, `data_dir`, a local `dataset_path`), or whatever its functions read. Python files
name modules and files, too. All are followed, from the folder of the file that names them and from
the working directory, where `datasets` looks for data.
"""

from __future__ import annotations

import ast
import glob
import os
from collections.abc import Iterator
from pathlib import Path

import yaml

from pipeline.core.errors import PipelineError, first_line
from pipeline.core.files import file_digest

INCLUDE = "include"
FUNCTION = "!function"
OF_DATA = ("dataset_path", "data_files", "data_dir")  # keys that may name a folder or a pattern
UNREAD = ("cache_dir",)  # not followed: it is written while the task is loaded
# files beside a YAML file that it may name without their suffix
BESIDE = (".yaml", ".py", ".json", ".jsonl", ".csv", ".tsv", ".parquet")
REMOTE = "://"
MAX_FILES = 1000  # in a folder of data


def task_files(file: Path) -> list[tuple[str, str]]:
    """Return the name and the digest of a task's file and of each file that it depends on.

    Raises:
        PipelineError: a file is missing or can't be read, or a folder has too many files.
    """
    names = {file.resolve(): file.name}
    queue = [file]
    for path in queue:  # it grows meanwhile
        for other, name in _named_by(path):
            if other.resolve() not in names:
                names[other.resolve()] = name
                queue.append(other)
    return [(name, file_digest(path)) for path, name in names.items()]


def _named_by(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files that a file names, each with its name in the artifact's key."""
    if path.suffix == ".yaml":
        yield from _named_by_yaml(path)
    elif path.suffix == ".py":
        yield from _named_by_python(path)


def _named_by_yaml(path: Path) -> Iterator[tuple[Path, str]]:
    text = _text(path)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _refused(path, f"is no YAML ({first_line(error)})") from error
    for beside in sorted(path.parent.iterdir()):
        if beside.suffix in BESIDE and beside.stem in text and _is_file(beside):
            yield beside, beside.name
    for key, tag, value in _scalars(root, "", set()):
        if key in UNREAD or not value:
            continue
        if key == INCLUDE:
            included = path.parent / value
            if not included.is_file():
                raise _refused(path, f"includes {value}, which does not exist")
            yield included, included.name
        elif tag == FUNCTION:
            yield from _modules(value.rpartition(".")[0], path.parent)
        elif key in OF_DATA or "/" in value:
            yield from _data(value, path)
        else:
            yield from _files(value, path.parent)


def _scalars(node: yaml.Node | None, key: str, seen: set[int]) -> Iterator[tuple[str, str, str]]:
    """Yield the key, the tag and the text of each scalar; a key of data replaces those below it."""
    if node is None or id(node) in seen:  # an alias
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        yield key, node.tag, node.value
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item, key, seen)
    elif isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _scalars(value, key if key in OF_DATA else str(name.value), seen)


def _named_by_python(path: Path) -> Iterator[tuple[Path, str]]:
    try:
        tree = ast.parse(_text(path))
    except (SyntaxError, ValueError):
        return  # the harness says what is wrong with it
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _files(node.value, path.parent)
            folder = path.parent / node.value if _is_name(node.value) else path
            if folder.is_dir():
                yield from _folder(folder, path)
        elif isinstance(node, ast.Import):
            for name in node.names:
                yield from _modules(name.name, path.parent)
        elif isinstance(node, ast.ImportFrom):
            yield from _modules(node.module or "", path.parent)
            for name in node.names:
                yield from _modules(f"{node.module or ''}.{name.name}".strip("."), path.parent)


def _modules(name: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield a module's file in a folder or on PYTHONPATH; installed packages are left out."""
    more = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for root in (folder, Path.cwd(), *map(Path, more)):
        module = root.joinpath(*name.split("."))
        for path in (module.with_name(f"{module.name}.py"), module / "__init__.py"):
            if name and path.is_file():
                yield path, path.name


def _files(name: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files with a name, relative to a folder and to the working directory."""
    for path in _places(name, folder):
        if _is_file(path):
            yield path, path.name


def _data(name: str, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of data with a name: a file, those of a pattern, or all in a folder."""
    for path_of_data in _places(name, path.parent):
        if path_of_data.is_dir():
            yield from _folder(path_of_data, path)
        else:
            pattern = str(path_of_data) if glob.has_magic(name) else glob.escape(str(path_of_data))
            for file in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207 (absolute ones)
                if _is_file(Path(file)):
                    yield Path(file), Path(file).name


def _is_file(path: Path) -> bool:
    """Whether a path is a file; PipelineError for a FIFO or a device, which would be read."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise _refused(path, "is no file")
    return path.is_file()


def _places(name: str, folder: Path) -> list[Path]:
    if REMOTE in name or not _is_name(name):
        return []
    # without the slash: in Python, the text in f"{folder}/rows.csv" is "/rows.csv"
    return [folder / name, folder / name.lstrip("/"), Path(name)]


def _is_name(text: str) -> bool:
    """Whether a text may be a file's name: printable, and not too long for the system."""
    return text.isprintable() and 0 < len(text.encode(errors="replace")) < 256 and text != "~"


def _folder(folder: Path, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of a folder but hidden ones; none if the folder has `path` in it."""
    if folder.resolve() in path.resolve().parents:
        return
    count = 0
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder)
        hidden = any(part.startswith((".", "__pycache__")) for part in inside.parts)
        if hidden or not file.is_file():
            continue
        count += 1
        if count > MAX_FILES:
            raise _refused(path, f"names {folder}, a folder of more than {MAX_FILES} files")
        yield file, inside.as_posix()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _refused(path, "is no text in UTF-8") from error


def _refused(path: Path, reason: str) -> PipelineError:
    return PipelineError(f"accuracy.tasks: {path} {reason}")
