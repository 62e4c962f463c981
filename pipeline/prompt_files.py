"""The files of a source of prompts, and the rows in them: JSON Lines or Parquet.

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

from pipeline.errors import PipelineError, first_line
from pipeline.hub import PROMPT_FILES, hub_files, local_path, matching

KEY = "prompts.source"
CARD = "README.md"  # of a data set; its `configs` name the files of each split
EXAMPLE = '{"text": "Hi"}'  # of a row


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
    root = local_path(path, KEY)
    if root is not None and root.is_file():
        files = [root]
    else:
        place = root or hub_files(path, commit, [CARD], KEY, "dataset", optional=True)
        patterns = _split_patterns(place / CARD, split)
        place = root or hub_files(path, commit, patterns, KEY, "dataset")
        files = matching(place, patterns)
    kinds = {f"*{file.suffix}" for file in files}
    if len(kinds) != 1 or not kinds <= set(PROMPT_FILES):
        raise PipelineError(
            f"{KEY}={path}: expected {' or '.join(PROMPT_FILES)} files, all of one kind"
            + (f", of the split prompts.split={split}" if split else "")
            + f"; found {', '.join(sorted(kinds)) or 'none'}"
        )
    return files


def _split_patterns(card: Path, split: str | None) -> Sequence[str]:
    """Return the patterns of the files of a split, in which * crosses folders."""
    if split is None:
        return PROMPT_FILES
    if splits := _card_splits(card):
        if split not in splits:
            raise PipelineError(
                f"prompts.split={split}: the data set has no such split: give one of "
                f"{', '.join(splits)}"
            )
        return splits[split]
    part = glob.escape(split)
    names = [f"{part}{rest}{kind[1:]}" for rest in ("", ".*", "-*", "/*") for kind in PROMPT_FILES]
    return [*names, *(f"*/{name}" for name in names)]


def _card_splits(card: Path) -> dict[str, list[str]]:
    """Return the patterns of each split that a card names; the default configuration counts."""
    from huggingface_hub import metadata_load

    splits: dict[str, list[str]] = {}
    try:
        data = metadata_load(card) if card.is_file() else None
        configs = (data or {}).get("configs") or []
        configs.sort(key=lambda c: c.get("default", c.get("config_name") == "default"))
        for entry in (entry for config in configs for entry in config.get("data_files") or []):
            if isinstance(entry, Mapping):
                paths = entry["path"]
                splits[str(entry["split"])] = [paths] if isinstance(paths, str) else paths
    except Exception as error:  # a card is YAML: it can hold anything
        raise PipelineError(
            f"{KEY}: the metadata of {card} can't be read: {type(error).__name__}: "
            f"{first_line(error)}. Correct them, or give the files themselves"
        ) from error
    return splits


class Source:
    """The rows of all files of a source, in their order."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Open `files`, all of one kind.

        Raises:
            PipelineError: one can't be read, or there are no rows.
        """
        parquet = files[0].suffix == ".parquet"
        self._rows = _parquet(files) if parquet else _lines(files)
        if not len(self):
            raise PipelineError(f"{KEY}: {files[0]} holds no rows")

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __getitem__(self, at: int) -> Mapping[str, Any]:
        """Return row `at`, from 0.

        Raises:
            PipelineError: it can't be read, or is no mapping.
        """
        if not isinstance(self._rows, list):
            return dict(self._rows[at])
        place, line = self._rows[at]
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PipelineError(
                f"{KEY}: {place} is no JSON: {first_line(error)}. Expected is one object a line, "
                f"as {EXAMPLE}"
            ) from error
        if not isinstance(row, dict):
            raise PipelineError(f"{KEY}: {place}: expected an object, as {EXAMPLE}")
        return row


def _lines(files: Sequence[Path]) -> list[tuple[str, str]]:
    """Return where each line stands that is not empty, and the line."""
    lines = []
    for path in files:
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise PipelineError(
                f"{KEY}: {path}: byte 0x{error.object[error.start]:02x} of line {line} is no "
                "UTF-8: save it as UTF-8 text"
            ) from error
        numbered = enumerate(text.split("\n"), 1)
        lines += [(f"{path}, line {number}", line) for number, line in numbered if line.strip()]
    return lines


def _parquet(files: Sequence[Path]) -> Any:
    """Return the rows of all files as `datasets` maps them into memory.

    Its copies are made anew each time, and are gone with the rows: one that it keeps is known by
    the file's time alone.
    """
    from datasets import concatenate_datasets, disable_progress_bars, load_dataset
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
                data = {"rows": glob.escape(str(path))}
                with TemporaryDirectory() as copy:  # a mapped file can be removed
                    parts.append(
                        load_dataset(
                            "parquet", data_files=data, split="rows", cache_dir=copy,
                            fragment_scan_options=checked,
                        )
                    )  # fmt: skip
        except Exception as error:  # it raises many kinds, with what is wrong as their cause
            raise PipelineError(
                f"{KEY}: {path} is no Parquet file that can be read: "
                f"{first_line(error.__cause__ or error)}. Fetch or write it again"
            ) from error
    return concatenate_datasets(parts) if parts else []


class ExcludedRowError(Exception):
    """A row that is no prompt; its one argument says why."""


def messages_of(row: Mapping[str, Any], role: str) -> list[Mapping[str, Any]]:
    """Return the messages of a role, in their order."""
    messages = row.get("messages")
    listed = messages if isinstance(messages, list) else []
    return [each for each in listed if isinstance(each, Mapping) and each.get("role") == role]


def read_row(row: Mapping[str, Any], at: int) -> dict[str, Any]:
    """Return the prompt_id and text of a row, and its category as source.

    A row without an id gets one made from its text. A system message is left out.

    Raises:
        ExcludedRowError: its text is missing, no string or empty, or its id is none.
        PipelineError: it is of no known schema.
    """
    name: Any
    text: Any
    if "messages" in row:
        users = messages_of(row, "user")
        if not users:
            raise ExcludedRowError("no user message")
        name, text = row.get("prompt_id"), _joined(users[0].get("content"))
    elif "prompt" in row or "text" in row:
        name, text = row.get("prompt_id", row.get("id")), row.get("prompt", row.get("text"))
    else:
        raise PipelineError(
            f"{KEY}: row {at} (from 0) has no text; it has {', '.join(row) or 'nothing'}. Expected "
            "is text or prompt, or UltraChat's messages (a list of role and content)"
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
    category, prompt = row.get("category"), {"prompt_id": name, "text": text}
    return prompt | ({"source": category} if category and _is_text(category) else {})


def _joined(content: Any) -> Any:
    """Return the text of a message that is given in parts, if all of them are text."""
    if not isinstance(content, list):
        return content
    parts = [part if isinstance(part, Mapping) else {} for part in content]
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    return "".join(map(str, texts)) if len(texts) == len(content) else None


def _is_text(value: Any) -> bool:
    """Whether a value is a string that UTF-8 can hold: JSON can write half a character."""
    return isinstance(value, str) and value == value.encode(errors="ignore").decode()
