"""The rows of a source of prompts, and what each asks: its text, name, and the user's later turns.

A source is JSON Lines, Parquet or plain text, each file by its exact path. Rows are read when they
are asked for: of a large data set few are looked at. A .txt file is one row, the whole text of
which is the prompt.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import PipelineError, first_line
from pipeline.store.identity import READERS, hub_files, local_path, split_patterns

GROUPS = 16  # row groups of a Parquet file that are held
EXAMPLE = '{"text": "Hi"}'  # of a row

RowReader = tuple[int, Callable[[int], tuple[Any, str]]]  # how many; reads one, and where it stands


def source_files(path: str, commit: str | None, split: str | None) -> list[Path]:
    """Return the files of a source, fetched from the hub when it is not local.

    Args:
        path: a file, a directory or a hub id.
        commit: the commit of a hub data set.
        split: a part of it: files `<split>.*`, `<split>-*` or below `<split>/`; None is all.

    Raises:
        PipelineError: there is no such file, or the files are not all of one format.
    """
    root = local_path(path)
    if root is None:
        root = hub_files(path, commit, split_patterns(split), "prompts.source", "dataset")
    found = (
        [root]
        if root.is_file()
        else sorted(
            file
            for file in root.rglob("*")
            if file.suffix in READERS
            and (split is None or _in_split(file.relative_to(root), split))
        )
    )
    kinds = {file.suffix for file in found}
    if len(kinds) != 1 or not kinds <= set(READERS):
        raise PipelineError(
            f"prompts.source={path}: expected {' or '.join(READERS)} files, all of one kind"
            + (f", of the split prompts.split={split}" if split else "")
            + f"; found {', '.join(sorted(kinds)) or 'none'}"
        )
    return found


def _in_split(file: Path, split: str) -> bool:
    return file.parent.name == split or re.match(rf"{re.escape(split)}[-.]", file.name) is not None


class Source:
    """The rows of all files of a source, in their order."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Open `files`, all of one kind.

        Raises:
            PipelineError: one can't be read, or there are no rows.
        """
        kinds = {".jsonl": lambda path: [json_lines(path)], ".parquet": _parquet, ".txt": _text}
        self._parts: list[RowReader] = [part for file in files for part in kinds[file.suffix](file)]
        self.text = files[0] if files[0].suffix == ".txt" else None  # one prompt each
        self._ends = list(accumulate((size for size, _ in self._parts), initial=0))
        if not len(self):
            raise PipelineError(f"prompts.source: {files[0]} holds no rows")

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._ends[-1]

    def __getitem__(self, at: int) -> Mapping[str, Any]:
        """Return row `at`, from 0.

        Raises:
            PipelineError: it can't be read, or is no mapping.
        """
        part = bisect_right(self._ends, at) - 1
        row, place = self._parts[part][1](at - self._ends[part])
        if not isinstance(row, Mapping):
            raise PipelineError(f"prompts.source: {place}: expected an object, as {EXAMPLE}")
        return row


def json_lines(path: Path, key: str = "prompts.source", example: str = EXAMPLE) -> RowReader:
    """Return the rows of a .jsonl file, none parsed yet; empty lines are none.

    Args:
        path: the file.
        key: of the configuration, which names the file; errors begin with it.
        example: of a row, for errors.
    """
    found = enumerate(read_text(path, key).split("\n"), 1)
    lines = [(number, line) for number, line in found if line.strip()]

    def read(at: int) -> tuple[Any, str]:
        number, line = lines[at]
        place = f"{path}, line {number}"
        try:
            return json.loads(line), place
        except (ValueError, RecursionError) as error:
            raise PipelineError(
                f"{key}: {place} is no JSON: {first_line(error)}. Expected is one object a line, "
                f"as {example}"
            ) from error

    return len(lines), read


def _parquet(path: Path) -> list[RowReader]:
    """Return the rows of each row group of a .parquet file; some groups are held."""

    def unreadable(error: Exception) -> PipelineError:
        return PipelineError(
            f"prompts.source: {path} is no Parquet file that can be read: {first_line(error)}. "
            "Fetch or write it again"
        )

    def read(group: int, at: int) -> tuple[Any, str]:
        try:
            [row] = group_of(group).slice(at, 1).to_pylist()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise unreadable(error) from error
        return row, str(path)

    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(error) from error
    group_of = lru_cache(GROUPS)(file.read_row_group)
    groups = range(file.metadata.num_row_groups)
    return [(file.metadata.row_group(at).num_rows, partial(read, at)) for at in groups]


def _text(path: Path) -> list[RowReader]:
    """Return the one row of a .txt file, without the newlines at its end."""
    text = read_text(path).rstrip("\r\n")
    return [(1, lambda _: ({"text": text}, str(path)))]


def read_text(path: Path, key: str = "prompts.source") -> str:
    """Return the text of a file in UTF-8, which `key` of the configuration names.

    Raises:
        PipelineError: it is of another encoding, or no text.
    """
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        wrong = f"byte 0x{data[error.start]:02x} of line {line} is no UTF-8"
    else:
        if "\0" not in text:
            return text
        wrong = f"line {text.count(chr(10), 0, text.index(chr(0))) + 1} holds a NUL byte"
    raise PipelineError(
        f"{key}: {path}: {wrong}. Save it as UTF-8 text (of Latin-1, for instance: iconv -f "
        f"latin1 -t utf8 {path.name})"
    )


class ExcludedRowError(Exception):
    """A row that is no prompt; its one argument says why."""


def read_row(row: Mapping[str, Any], at: int) -> dict[str, Any]:
    """Return the prompt_id, text and later_turns of a row, and its category as source.

    A row without an id gets one made from its text.

    Raises:
        ExcludedRowError: its text is missing, no string or empty, or its id is none.
        PipelineError: it is of no known schema.
    """
    name: Any
    turns: list[Any]
    category = row.get("category")
    if {"question_id", "turns"} <= set(row):  # of Spec-Bench
        turns = row["turns"] if isinstance(row["turns"], list) else []
        name, category = row["question_id"], category or "question"
    elif "messages" in row:
        said = [turn for turn in row["messages"] or [] if isinstance(turn, Mapping)]
        users = [turn for turn in said if turn.get("role") == "user"]
        if not users:
            raise ExcludedRowError("no user message")
        name, turns = row.get("prompt_id"), [users[0].get("content")]
    else:
        key = next((key for key in ("prompt", "text") if key in row), None)
        if key is None:
            raise PipelineError(
                f"prompts.source: row {at} (from 0) has no text; it has "
                f"{', '.join(row) or 'nothing'}. Expected is text or prompt, or UltraChat's "
                "messages (a list of role and content), or Spec-Bench's question_id and turns"
            )
        name, turns = row.get("prompt_id", row.get("id")), [row[key]]
    if not turns or not all(is_text(turn) for turn in turns):
        raise ExcludedRowError("not a string")
    if not all(turn.strip() for turn in turns):
        raise ExcludedRowError("empty")
    if name is None:
        name = hashlib.sha256(turns[0].encode()).hexdigest()[:16]
    if isinstance(name, int):
        name = str(name)
    if not is_text(name):
        raise ExcludedRowError("not a string")
    found = {"prompt_id": name, "text": turns[0], "later_turns": turns[1:]}
    return found | ({"source": category} if category and is_text(category) else {})


def is_text(value: Any) -> bool:
    """Whether a value is a string that UTF-8 can hold: JSON can write half a character."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
