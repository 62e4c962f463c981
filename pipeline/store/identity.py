"""Identity of a model or a prompt source: the hash of local content, the commit of a hub one.

A value is a hub id when no such path exists and it looks like ``owner/name``. Hashes of local
files are remembered by size, modification time and inode.
"""

from __future__ import annotations

import glob
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError
from pipeline.gguf_models import source as gguf
from pipeline.paths import ROOT
from pipeline.store.durable import file_digest, read_sealed, write_sealed
from pipeline.store.node import fingerprint

MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
PICKLED = "pytorch_model.bin"  # weights of published heads without safetensors
HEAD_FILES = (*MODEL_FILES, PICKLED)
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
EXPECTED = {
    "model": "config.json, model*.safetensors and the tokenizer's files",
    "dataset": "its .parquet, .jsonl or .txt files (docs/reproduce.md)",
}
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SETTLED = 2_000_000_000  # ns; a file written since may change again without another time
HUB_SECONDS = 8.0  # to wait for an answer
COMMIT = re.compile(r"[0-9a-f]{40}")


class Identities:
    """Resolves identities, remembering file hashes in `memo` (a JSON file of the store)."""

    def __init__(self, memo: Path) -> None:
        """Use the memo file `memo`, which need not exist."""
        self._path = memo
        self._memo: dict[str, str] = {}
        with suppress(OSError, ValueError):  # a damaged one is made anew
            self._memo = read_sealed(memo)
        self._grown = False

    def model(self, path: str, revision: str | None, key: str) -> dict[str, Any]:
        """Return the identity of a model; `key` is the configuration key for errors."""
        if (converted := gguf.identity(path, key, self._hash)) is not None:
            return converted
        local = local_path(path, key)
        if local is None:
            return {"hub": path, "commit": hub_commit(path, revision, "model", key)}
        if not (local / "config.json").is_file():
            raise PipelineError(f"{key}={path}: a model directory with config.json is expected")
        plain = next(local.rglob("*.safetensors"), None) is not None
        return {"content": self._digest(local, MODEL_FILES if plain else HEAD_FILES, key)}

    def tokenizer(self, path: str, revision: str | None, key: str) -> dict[str, Any]:
        """Return the identity of a model's tokenizer, equal for equal files."""
        if (converted := gguf.identity(path, key, self._hash)) is not None:
            return converted
        local = local_path(path, key)
        if local is None:
            local = hub_files(path, revision, list(TOKENIZER_FILES), key)
        return {"content": self._digest(local, TOKENIZER_FILES, key)}

    def source(self, path: str, revision: str | None, key: str) -> dict[str, str]:
        """Return the identity of a prompt source: file, directory or hub dataset."""
        local = local_path(path, key)
        if local is None:
            return {"hub": path, "commit": hub_commit(path, revision, "dataset", key)}
        if local.is_file():
            return {"content": self._hash(local)}
        return {"content": self._digest(local, tuple(f"*{suffix}" for suffix in READERS), key)}

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


def split_patterns(split: str | None) -> list[str]:
    """Return the patterns of the files of a hub data set that hold `split`."""
    part = glob.escape(split) if split else "*"
    return [f"*{part}{rest}{suffix}" for rest in ("", "-*", "/*") for suffix in READERS]


def hub_commit(
    name: str, revision: str | None, kind: str, key: str, *, refresh: bool = False
) -> str:
    """Resolve a hub id to a commit: from the local cache when it is known there.

    With `refresh` the hub is asked all the same. What it says is noted in the cache, where the
    hub's own client notes it too, so that the next run needs no hub.
    """
    revision = revision or "main"
    if COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi, constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=kind)
    cached = folder / "refs" / revision
    if cached.is_file() and not refresh:
        return cached.read_text().strip()
    try:
        commit = HfApi().repo_info(name, repo_type=kind, revision=revision, timeout=HUB_SECONDS).sha
    except Exception as error:  # the hub client raises many kinds; all mean the same to a user
        raise unreachable(
            name, kind, f"{EXPECTED[kind]} (revision {revision})", key, error
        ) from error
    assert commit is not None
    cached.parent.mkdir(parents=True, exist_ok=True)
    cached.write_text(commit)
    return commit


def hub_files(
    name: str, revision: str | None, patterns: list[str], key: str, kind: str = "model"
) -> Path:
    """Return a local snapshot of a hub model (or dataset) with the files of `patterns`.

    Fetched only when the local cache lacks them: a snapshot may hold a tokenizer alone.
    """
    from huggingface_hub import HfApi, snapshot_download

    commit = hub_commit(name, revision, kind, key)
    weights = ("*.safetensors", PICKLED)
    needed = [pattern for pattern in patterns if pattern in weights] or patterns
    for only_cached in (True, False):
        try:
            if not only_cached:  # asked first: the download itself waits for minutes
                HfApi().repo_info(name, repo_type=kind, revision=commit, timeout=HUB_SECONDS)
            path = Path(
                snapshot_download(
                    name,
                    repo_type=kind,
                    revision=commit,
                    allow_patterns=patterns,
                    local_files_only=only_cached,
                    etag_timeout=HUB_SECONDS,
                )
            )
        except Exception as error:  # as above
            if not only_cached:
                raise unreachable(name, kind, ", ".join(patterns), key, error) from error
            continue
        if any(next(path.glob(pattern), None) for pattern in needed):
            return path
    raise PipelineError(f"{key}={name}: the repository has none of {', '.join(needed)}")


def unreachable(name: str, kind: str, wanted: str, key: str, error: Exception) -> PipelineError:
    """Return the error for a hub that does not give what is wanted."""
    return PipelineError(
        f"{key}={name}: the hub did not give {wanted} ({type(error).__name__}). Check the name "
        "and the network, or run `make fetch STUDY=...` where there is one. Or take a local "
        f"copy: {key}=DIRECTORY, with {EXPECTED[kind]}"
    )
