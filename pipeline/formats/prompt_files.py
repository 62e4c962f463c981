"""The rows of a source of prompts: the text of each, and its name.

A source is JSON Lines, Parquet or plain text, each file by its exact path. Parquet is read by
`datasets`; lines are parsed when they are asked for, so that an error names its line. A .txt file
is one row, the whole text of which is the prompt.
"""

from __future__ import annotations

import glob
import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.errors import PipelineError, first_line
from pipeline.hub import READERS, hub_files, local_path, matching

CARD = "README.md"  # of a data set; its `configs` name the files of each split
EXAMPLE = '{"text": "Hi"}'  # of a row

RowReader = tuple[int, Callable[[int], tuple[Any, str]]]  # how many; reads one, and where it stands


def source_files(path: str, commit: str | None, split: str | None) -> list[Path]:
    """Return the files of a source, fetched from the hub when it is not local.

    Args:
        path: a file, a directory or a hub id.
        commit: the commit of a hub data set.
        split: a part of it, whose files the card's `configs` name; where it has none, the files
            or folders `<split>.*`, `<split>-*` and `<split>`. None is all files.

    Raises:
        PipelineError: there is no such file, or the files are not all of one format.
    """
    root, key = local_path(path), "prompts.source"
    if root is not None and root.is_file():
        files, kinds = [root], {root.suffix}
    else:
        place = root or hub_files(path, commit, [CARD], key, "dataset", optional=True)
        patterns = split_patterns(place, split)
        if root is None:
            place = hub_files(path, commit, patterns, key, "dataset")
        files = matching(place, patterns)
        kinds = {file.suffix for file in files}
    if len(kinds) != 1 or not kinds <= set(READERS):
        raise PipelineError(
            f"prompts.source={path}: expected {' or '.join(READERS)} files, all of one kind"
            + (f", of the split prompts.split={split}" if split else "")
            + f"; found {', '.join(sorted(kinds)) or 'none'}"
        )
    return files


def split_patterns(root: Path, split: str | None) -> list[str]:
    """Return the patterns of the files of a split, in which * crosses folders.

    Raises:
        PipelineError: the card in `root` names splits, and not this one.
    """
    if split is None:
        return [f"*{suffix}" for suffix in READERS]
    if splits := _card_splits(root / CARD):
        if split not in splits:
            raise PipelineError(
                f"prompts.split={split}: the data set has no such split: give one of "
                f"{', '.join(splits)}"
            )
        return splits[split]
    part = glob.escape(split)
    names = [f"{part}{rest}{suffix}" for rest in ("", ".*", "-*", "/*") for suffix in READERS]
    return [*names, *(f"*/{name}" for name in names)]


def _card_splits(card: Path) -> dict[str, list[str]]:
    """Return the patterns of each split that a card names, of the default configuration first."""
    from huggingface_hub import metadata_load

    data = metadata_load(card) if card.is_file() else None
    configs = [c for c in (data or {}).get("configs") or [] if isinstance(c, Mapping)]
    configs.sort(key=lambda c: not c.get("default", c.get("config_name") == "default"))
    splits: dict[str, list[str]] = {}
    for config in configs:
        files = config.get("data_files")
        for entry in files if isinstance(files, list) else []:
            if isinstance(entry, Mapping) and {"split", "path"} <= set(entry):
                paths = entry["path"] if isinstance(entry["path"], list) else [entry["path"]]
                splits.setdefault(str(entry["split"]), [str(path) for path in paths])
    return splits


class Source:
    """The rows of all files of a source, in their order."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Open `files`, all of one kind.

        Raises:
            PipelineError: one can't be read, or there are no rows.
        """
        kinds = {".jsonl": json_lines, ".parquet": _parquet, ".txt": _text}
        self._parts: list[RowReader] = [kinds[file.suffix](file) for file in files]
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
    numbered = enumerate(read_text(path, key).split("\n"), 1)
    lines = [(number, line) for number, line in numbered if line.strip()]

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


def _parquet(path: Path) -> RowReader:
    """Return the rows of a .parquet file, by the builder of `datasets`.

    Its copy of the file is made anew each time, and is gone with the rows: a copy that it keeps is
    known by the file's time alone.
    """
    import pyarrow.dataset
    import pyarrow.parquet as pq
    from datasets import disable_progress_bars, load_dataset
    from datasets.utils.logging import CRITICAL, set_verbosity

    disable_progress_bars()
    set_verbosity(CRITICAL)  # errors are raised, too
    checked = pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
    try:
        if not pq.read_metadata(path).num_rows:  # the builder refuses such a file
            return 0, lambda _: ({}, str(path))
        with TemporaryDirectory() as copy:  # mapped into memory, so it can be removed
            rows = load_dataset(
                "parquet",
                data_files={"rows": glob.escape(str(path))},
                split="rows",
                cache_dir=copy,
                fragment_scan_options=checked,
            )
    except Exception as error:  # it raises many kinds, with what is wrong as their cause
        raise PipelineError(
            f"prompts.source: {path} is no Parquet file that can be read: "
            f"{first_line(error.__cause__ or error)}. Fetch or write it again"
        ) from error
    return len(rows), lambda at: (rows[at], str(path))


def _text(path: Path) -> RowReader:
    """Return the one row of a .txt file, without the newlines at its end."""
    text = read_text(path).rstrip("\r\n")
    return 1, lambda _: ({"text": text}, str(path))


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
    """Return the prompt_id and text of a row, and its category as source.

    A row without an id gets one made from its text.

    Raises:
        ExcludedRowError: its text is missing, no string or empty, or its id is none.
        PipelineError: it is of no known schema.
    """
    name: Any
    text: Any
    category = row.get("category")
    if "messages" in row:
        messages = row["messages"] if isinstance(row["messages"], list) else []
        turns_of = (turn for turn in messages if isinstance(turn, Mapping))
        users = [turn for turn in turns_of if turn.get("role") == "user"]
        if not users:
            raise ExcludedRowError("no user message")
        name, text = row.get("prompt_id"), users[0].get("content")
    else:
        key = next((key for key in ("prompt", "text") if key in row), None)
        if key is None:
            raise PipelineError(
                f"prompts.source: row {at} (from 0) has no text; it has "
                f"{', '.join(row) or 'nothing'}. Expected is text or prompt, or UltraChat's "
                "messages (a list of role and content)"
            )
        name, text = row.get("prompt_id", row.get("id")), row[key]
    if not is_text(text):
        raise ExcludedRowError("not a string")
    if not text.strip():
        raise ExcludedRowError("empty")
    if name is None:
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
    if isinstance(name, int):
        name = str(name)
    if not is_text(name):
        raise ExcludedRowError("id not a string or integer")
    prompt = {"prompt_id": name, "text": text}
    return prompt | ({"source": category} if category and is_text(category) else {})


def is_text(value: Any) -> bool:
    """Whether a value is a string that UTF-8 can hold: JSON can write half a character."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
