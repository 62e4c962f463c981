"""The files of a source of prompts, JSON Lines or Parquet, and their rows.

A row of JSON Lines is parsed when it is asked for, so that an error names its line.
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.core.errors import PipelineError, first_line
from pipeline.inputs.hub import hub_files
from pipeline.inputs.local_files import PROMPT_FILES, PROMPT_LEVELS, local_path, matching

KEY = "prompts.source"
EXAMPLE = '{"text": "Hi"}'  # of a row


def source_files(path: str, commit: str | None, split: str | None) -> list[Path]:
    """Return the files of a source: a file, a directory, or a hub id at a commit.

    `split` selects the files `<split>.*`, `<split>-*` and `<split>/*`; None: all files.
    """
    root = local_path(path, KEY)
    patterns = list(PROMPT_FILES)
    if split is not None:
        part = glob.escape(split)
        kinds = [kind[1:] for kind in PROMPT_FILES]
        names = [f"{part}{rest}{kind}" for rest in ("", "-*", "/*") for kind in kinds]
        patterns = [*names, *(f"*/{name}" for name in names)]
    if root is not None and root.is_file():
        files = [root]
    else:
        folder = root or hub_files(path, commit, patterns, KEY, "dataset")
        files = matching(folder, patterns, PROMPT_LEVELS if root else None)
    suffixes = {f"*{file.suffix}" for file in files}
    if len(suffixes) != 1 or not suffixes <= set(PROMPT_FILES):
        raise PipelineError(
            f"{KEY}={path}: expected {' or '.join(PROMPT_FILES)} files, all of one kind"
            + (f", of the split prompts.split={split}" if split else "")
            + f"; found {', '.join(sorted(suffixes)) or 'none'}"
        )
    return files


class PromptRows:
    """The rows of a source's files, in order."""

    def __init__(self, files: Sequence[Path]) -> None:
        parquet = files[0].suffix == ".parquet"
        self._table = _parquet(files) if parquet else None
        self._lines = [] if parquet else [line for file in files for line in _lines(file)]
        if not len(self):
            raise PipelineError(f"{KEY}: {files[0]} holds no rows")

    def __len__(self) -> int:
        return len(self._lines) if self._table is None else len(self._table)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        if self._table is not None:
            return self._table[index]
        position, line = self._lines[index]
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PipelineError(
                f"{KEY}: {position} is no JSON: {first_line(error)}. Give one object a line, "
                f"{EXAMPLE}"
            ) from error
        if not isinstance(row, dict):
            raise PipelineError(f"{KEY}: {position}: expected an object, as {EXAMPLE}")
        return row


def _lines(path: Path) -> list[tuple[str, str]]:
    """Return each line that is not empty, after the file and number that name it."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise PipelineError(f"{KEY}: {path}, line {line} is no UTF-8: save it as UTF-8") from error
    numbered = enumerate(text.split("\n"), 1)
    return [(f"{path}, line {number}", line) for number, line in numbered if line.strip()]


def _parquet(files: Sequence[Path]) -> Any:
    """Return the rows of all files, which `datasets` maps into memory from temporary copies."""
    from datasets import Dataset, concatenate_datasets, disable_progress_bars
    from datasets.utils.logging import CRITICAL, set_verbosity
    from pyarrow.dataset import ParquetFragmentScanOptions
    from pyarrow.parquet import read_metadata

    disable_progress_bars()
    set_verbosity(CRITICAL)  # errors are raised, too
    checked = ParquetFragmentScanOptions(page_checksum_verification=True)
    parts = []
    for path in files:
        try:
            if read_metadata(path).num_rows:  # the builder refuses a file without rows
                with TemporaryDirectory() as copy:  # a mapped file may be removed
                    name = glob.escape(str(path))
                    parts.append(
                        Dataset.from_parquet(name, cache_dir=copy, fragment_scan_options=checked)
                    )
        except Exception as error:  # `datasets` raises many kinds; their cause says what is wrong
            raise PipelineError(
                f"{KEY}: {path} is no Parquet file that can be read: "
                f"{first_line(error.__cause__ or error)}. Fetch or write it again"
            ) from error
    return concatenate_datasets(parts) if parts else []


class ExcludedRowError(Exception):
    """A row that is no prompt; the message says why."""


def messages_of(row: Mapping[str, Any], role: str) -> list[Mapping[str, Any]]:
    """Return a row's messages of a role, in order."""
    messages = row.get("messages")
    listed = messages if isinstance(messages, list) else []
    return [each for each in listed if isinstance(each, Mapping) and each.get("role") == role]


def read_row(row: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the prompt_id and text of a row, and its category, if it has one, as source.

    An id that is missing is made from the text. Of messages, the first of the user counts.

    Raises:
        ExcludedRowError: the text is missing, empty or no string, or the id is neither string nor
            integer.
        PipelineError: the row has no known schema.
    """
    name: Any
    text: Any
    if "messages" in row:
        users = messages_of(row, "user")
        if not users:
            raise ExcludedRowError("no user message")
        name = row.get("prompt_id")
        text = _joined(users[0].get("content"))
    elif "prompt" in row or "text" in row:
        name = given_id(row)
        text = row.get("text") if row.get("prompt") is None else row.get("prompt")
    else:
        raise PipelineError(
            f"{KEY}: row {index} (from 0) has no text; it has {', '.join(row) or 'nothing'}. "
            "Expected is text or prompt, or UltraChat's messages (a list of role and content)"
        )
    if not _is_text(text):
        raise ExcludedRowError("not a string")
    if not text.strip():
        raise ExcludedRowError("empty")
    if name is None:
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
    if isinstance(name, int):
        name = str(name)
    if not _is_text(name):
        raise ExcludedRowError("id not a string or integer")
    category = row.get("category")
    prompt = {"prompt_id": name, "text": text}
    return prompt | ({"source": category} if category and _is_text(category) else {})


def given_id(row: Mapping[str, Any]) -> Any:
    """Return the id of a row's prompt; None if it has none."""
    return row.get("id") if row.get("prompt_id") is None else row.get("prompt_id")


def _joined(content: Any) -> Any:
    """Return a message's content; parts become one text, or None unless all are text."""
    if not isinstance(content, list):
        return content
    parts = [part if isinstance(part, Mapping) else {} for part in content]
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    strings = [text for text in texts if isinstance(text, str)]
    return "".join(strings) if len(strings) == len(content) else None


def _is_text(value: Any) -> bool:
    """Whether a value is a string that UTF-8 can encode; JSON can have lone surrogates."""
    return isinstance(value, str) and value == value.encode(errors="ignore").decode()
