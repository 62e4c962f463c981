"""What identifies models and prompts: a digest of local files, or a commit of the hub."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.core.errors import PipelineError
from pipeline.core.files import file_digest, json_digest, read_json, write_json
from pipeline.core.stage import Identity
from pipeline.inputs.hub import model_folder
from pipeline.inputs.hub_commits import hub_commit
from pipeline.inputs.integrity import damaged
from pipeline.inputs.local_files import (
    HEAD_FILES,
    MODEL_FILES,
    PROMPT_FILES,
    PROMPT_LEVELS,
    TOKENIZER_FILES,
    file_state,
    local_path,
    matching,
)

SETTLED = 2_000_000_000  # ns since the last change, from which on its time is trusted


class Identities:
    """Finds the identities of models and prompts; keeps file hashes in `memo`, a JSON file."""

    def __init__(self, memo: Path) -> None:
        self._path = memo
        self._memo: dict[str, str] = {}
        with suppress(PipelineError):  # a damaged memo is written anew
            self._memo = read_json(memo)

    def model(self, path: str, revision: str | None, key: str) -> Identity:
        """Return the identity of a model; `key` is its configuration key, for errors."""
        local = local_path(path, key)
        if local is None:
            return Identity(hub=path, commit=hub_commit(path, revision, "model", key))
        if not (local / "config.json").is_file():
            raise PipelineError(f"{key}={path}: a model directory with config.json is expected")
        if name := damaged(local, self._hash):
            raise PipelineError(
                f"{key}={path}: {name} is damaged: make it again with python -m tools.smollm2"
            )
        plain = next(local.rglob("*.safetensors"), None) is not None
        return Identity(content=self._digest(local, MODEL_FILES if plain else HEAD_FILES, key))

    def tokenizer(self, path: str, revision: str | None, key: str) -> Identity:
        """Return the identity of a model's tokenizer, a digest of its files."""
        folder = model_folder(path, revision, TOKENIZER_FILES, key)
        return Identity(content=self._digest(folder, TOKENIZER_FILES, key))

    def source(self, path: str, revision: str | None, key: str) -> Identity:
        """Return the identity of a source of prompts: a file, a directory or a hub dataset."""
        local = local_path(path, key)
        if local is None:
            return Identity(hub=path, commit=hub_commit(path, revision, "dataset", key))
        if local.is_file():
            return Identity(content=self._hash(local))
        return Identity(content=self._digest(local, PROMPT_FILES, key, PROMPT_LEVELS))

    def _digest(
        self, directory: Path, patterns: Sequence[str], key: str, levels: int | None = None
    ) -> str:
        files = matching(directory, patterns, levels)
        if not files:
            raise PipelineError(f"{key}={directory}: none of {', '.join(patterns)} found there")
        names = {path.relative_to(directory).as_posix(): self._hash(path) for path in files}
        return json_digest(names)

    def _hash(self, path: Path) -> str:
        key = f"{path.resolve()}:{file_state(path)}"
        if key not in self._memo:
            digest = file_digest(path)
            state = path.stat()
            if time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns) <= SETTLED:
                return digest
            self._memo[key] = digest
            with suppress(OSError):  # a memo that can't be written is not needed
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._path, self._memo)
        return self._memo[key]
