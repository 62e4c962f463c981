"""Identity of a model or a prompt source: the hash of local content, the commit of a hub one.

A value is a hub id when no such path exists and it looks like ``owner/name``. Hashes of local
files are remembered by size, modification time and inode.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import PipelineError
from pipeline.gguf_models import source as gguf
from pipeline.paths import ROOT
from pipeline.store.durable import file_digest, read_sealed, write_sealed
from pipeline.store.hub import HEAD_FILES, MODEL_FILES, hub_commit, hub_files
from pipeline.store.node import fingerprint

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.txt",
)
READERS = (".jsonl", ".parquet", ".txt")  # files of prompts, see pipeline.formats.prompt_files
HUB_ID = re.compile(r"(?!.*(--|\.\.))\w[\w.-]*/[\w.-]*\w")
SETTLED = 2_000_000_000  # ns; a file written since may change again without another time


@dataclass(frozen=True)
class Identity:
    """The digest of local files, the commit of files on the hub, or that of a GGUF file."""

    content: str | None = None
    hub: str | None = None  # owner/name
    commit: str | None = None
    gguf: str | None = None
    conversion: int | None = None  # version of what is made from a GGUF file


class Identities:
    """Resolves identities, remembering file hashes in `memo` (a JSON file of the store)."""

    def __init__(self, memo: Path) -> None:
        """Use the memo file `memo`, which need not exist."""
        self._path = memo
        self._memo: dict[str, str] = {}
        with suppress(OSError, ValueError):  # a damaged one is made anew
            self._memo = read_sealed(memo)
        self._grown = False

    def model(self, path: str, revision: str | None, key: str) -> Identity:
        """Return the identity of a model; `key` is the configuration key for errors."""
        if (gguf_digest := gguf.digest(path, key, self._hash)) is not None:
            return Identity(gguf=gguf_digest, conversion=gguf.VERSION)
        local = local_path(path, key)
        if local is None:
            return Identity(hub=path, commit=hub_commit(path, revision, "model", key))
        if not (local / "config.json").is_file():
            raise PipelineError(f"{key}={path}: a model directory with config.json is expected")
        plain = next(local.rglob("*.safetensors"), None) is not None
        return Identity(content=self._digest(local, MODEL_FILES if plain else HEAD_FILES, key))

    def tokenizer(self, path: str, revision: str | None, key: str) -> Identity:
        """Return the identity of a model's tokenizer, equal for equal files."""
        if (gguf_digest := gguf.digest(path, key, self._hash)) is not None:
            return Identity(gguf=gguf_digest, conversion=gguf.VERSION)
        local = local_path(path, key)
        if local is None:
            local = hub_files(path, revision, list(TOKENIZER_FILES), key)
        return Identity(content=self._digest(local, TOKENIZER_FILES, key))

    def source(self, path: str, revision: str | None, key: str) -> Identity:
        """Return the identity of a prompt source: file, directory or hub dataset."""
        local = local_path(path, key)
        if local is None:
            return Identity(hub=path, commit=hub_commit(path, revision, "dataset", key))
        if local.is_file():
            return Identity(content=self._hash(local))
        return Identity(content=self._digest(local, tuple(f"*{suffix}" for suffix in READERS), key))

    def save(self) -> None:
        """Write the memo when something was hashed; where it can't be, it is done without."""
        if self._grown:
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_sealed(self._path, self._memo)
            self._grown = False

    def _digest(self, directory: Path, patterns: tuple[str, ...], key: str) -> str:
        names = {
            p.relative_to(directory).as_posix(): p
            for pattern in patterns
            for p in directory.rglob(pattern)
            if p.is_file()
        }
        if not names:
            raise PipelineError(f"{key}={directory}: none of {', '.join(patterns)} found there")
        return fingerprint({name: self._hash(path) for name, path in names.items()})

    def _hash(self, path: Path) -> str:
        state = path.stat()
        times = (state.st_mtime_ns, state.st_ctime_ns)
        key = f"{path.resolve()}:{state.st_size}:{':'.join(map(str, times))}:{state.st_ino}"
        if key in self._memo:
            return self._memo[key]
        digest = file_digest(path)
        if time.time_ns() - max(times) > SETTLED:
            self._memo[key] = digest
            self._grown = True
        return digest


def local_path(path: str, key: str = "") -> Path | None:
    """Return `path` as a local path (relative ones also from the repository), or None for a hub id.

    For a GGUF file it is the model directory made from it, made now if there is none.

    Raises:
        PipelineError: there is no such path and it is no hub id either.
    """
    if (converted := gguf.directory(path, key)) is not None:
        return converted
    for candidate in (Path(path).expanduser(), ROOT / path):
        if candidate.exists():
            return candidate.resolve()
    if HUB_ID.fullmatch(path):
        return None
    raise PipelineError(
        f"{key + '=' if key else ''}{path} does not exist, and is no hub id (owner/name) either"
    )
