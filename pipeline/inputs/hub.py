"""Models and prompts by directory or hub id: where their files lie, and what identifies them.

What the cache of the hub's client holds is used without a question to the hub. A cached file is
compared with the hash that is its blob's name before it is used; a damaged one is fetched again.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from pipeline.core.errors import PipelineError, first_line
from pipeline.core.files import file_digest, json_digest, read_json, write_json, write_whole
from pipeline.core.paths import OUTPUTS, ROOT

MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
WHOLE, PARTS = "model.safetensors", "model.safetensors.index.json"  # weights, or names of parts
PICKLED = "pytorch_model.bin"  # weights of published heads without safetensors
HEAD_FILES = (*MODEL_FILES, PICKLED)
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.json", "merges.txt"),
    *("special_tokens_map.json", "added_tokens.json", "tokenizer.model", "vocab.txt"),
)
PROMPT_FILES = ("*.jsonl", "*.parquet")
PROMPT_LEVELS = 3  # of folders: a home directory is not searched through
HUB_ID = re.compile(r"(?!.*(--|\.\.))\w[\w.-]*/[\w.-]*\w")
COMMIT = re.compile(r"[0-9a-f]{40}")
SMOLLM2 = OUTPUTS / "models" / "SmolLM2-135M-Instruct"  # made by tools/smollm2.py
SUMS = "conversion.sha256"  # of the files of a directory that the tool made
SETTLED = 2_000_000_000  # ns; a modification time more recent than this is not trusted
SECONDS, TRIES = 8.0, 2  # how long, and how often, an answer of the hub is waited for
LONGEST = 300  # s that a busy hub may ask for before the next try


@dataclass(frozen=True)
class Identity:
    """The digest of local files, or the commit of files on the hub."""

    content: str | None = None
    hub: str | None = None  # owner/name
    commit: str | None = None

    @property
    def entries(self) -> dict[str, str]:
        """What is known of it, as JSON values."""
        return {name: value for name, value in vars(self).items() if value is not None}


class Identities:
    """Resolves identities, remembering file hashes in `memo` (a JSON file of the store)."""

    def __init__(self, memo: Path) -> None:
        self._path = memo
        self._memo: dict[str, str] = {}
        with suppress(PipelineError):  # a damaged one is made anew
            self._memo = read_json(memo)

    def model(self, path: str, revision: str | None, key: str) -> Identity:
        """Return the identity of a model; `key` is the configuration key for errors."""
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
        """Return the identity of a model's tokenizer, equal for equal files."""
        folder = model_folder(path, revision, TOKENIZER_FILES, key)
        return Identity(content=self._digest(folder, TOKENIZER_FILES, key))

    def source(self, path: str, revision: str | None, key: str) -> Identity:
        """Return the identity of a prompt source: file, directory or hub dataset."""
        local = local_path(path, key)
        if local is None:
            return Identity(hub=path, commit=hub_commit(path, revision, "dataset", key))
        if local.is_file():
            return Identity(content=self._hash(local))
        return Identity(content=self._digest(local, PROMPT_FILES, key, PROMPT_LEVELS))

    def _digest(
        self, directory: Path, patterns: Sequence[str], key: str, levels: int | None = None
    ) -> str:
        found = matching(directory, patterns, levels)
        if not found:
            raise PipelineError(f"{key}={directory}: none of {', '.join(patterns)} found there")
        names = {path.relative_to(directory).as_posix(): self._hash(path) for path in found}
        return json_digest(names)

    def _hash(self, path: Path) -> str:
        key = f"{path.resolve()}:{file_state(path)}"
        if key not in self._memo:
            digest = file_digest(path)
            state = path.stat()
            if time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns) <= SETTLED:
                return digest
            self._memo[key] = digest
            with suppress(OSError):  # where it can't be written, it is done without
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._path, self._memo)
        return self._memo[key]


def file_state(path: Path) -> str:
    """Return what changes with a file's content."""
    state = path.stat()
    return f"{state.st_size}:{state.st_mtime_ns}:{state.st_ctime_ns}:{state.st_ino}"


def local_path(path: str, key: str = "") -> Path | None:
    """Return a local path (a relative one also from the repository), or None for a hub id."""
    home = Path(os.path.expanduser(path))  # noqa: PTH111  as it is for a user that is not known
    for candidate in (home, ROOT / path):
        if candidate.exists():
            return candidate.resolve()
    if HUB_ID.fullmatch(path):
        return None
    where = f"{key + '=' if key else ''}{path} does not exist"
    if ROOT / path == SMOLLM2:
        raise PipelineError(f"{where}: python -m tools.smollm2 makes it, and make reproduce, too")
    raise PipelineError(f"{where}, and is no hub id (owner/name) either")


def local_file(path: str, key: str = "targets") -> Path:
    """Return the local path of a file."""
    with suppress(PipelineError):
        if (local := local_path(path)) is not None and local.is_file():
            return local
    raise PipelineError(f"{key}={path}: there is no such file")


def damaged(directory: Path, file_hash: Callable[[Path], str] = file_digest) -> str | None:
    """Return the name of a file of a converted model that is not what was written, or None."""
    if not (directory / SUMS).is_file():
        return None
    lines = (directory / SUMS).read_text(errors="replace").splitlines()
    for line in lines:
        digest, _, name = line.partition("  ")
        path = directory / name
        if not path.is_file() or file_hash(path) != digest:
            return name
    return None if lines else SUMS


def cached_commit(name: str, revision: str | None, kind: str) -> str | None:
    """Return the commit of a revision that the cache knows; None where it knows none."""
    known = revision or ""
    if not COMMIT.fullmatch(known):
        place = _reference(name, revision, kind)
        known = place.read_text(errors="replace").strip() if place.is_file() else ""
    return known if COMMIT.fullmatch(known) else None


def newest_commit(name: str, revision: str | None, kind: str, key: str) -> str:
    """Ask the hub for the commit of a revision; arguments as of `hub_files`."""
    from huggingface_hub import HfApi

    with _asking(name, key):
        commit = str(HfApi().repo_info(name, revision=revision or "main", repo_type=kind).sha)
        if not COMMIT.fullmatch(commit):
            raise ValueError(f"{commit!r} is no commit")
    return commit


def keep_commit(name: str, revision: str | None, kind: str, commit: str) -> None:
    """Note the commit of a revision where the hub's client does: later runs need no hub for it."""
    if not COMMIT.fullmatch(revision or ""):
        place = _reference(name, revision, kind)
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError, FileNotFoundError):  # another process notes it
            write_whole(place, commit.encode())


def hub_commit(name: str, revision: str | None, kind: str, key: str) -> str:
    """Return the commit of a revision: the cache's, else the hub's; as `newest_commit`."""
    commit = cached_commit(name, revision, kind)
    if commit is None:
        commit = newest_commit(name, revision, kind, key)
        keep_commit(name, revision, kind, commit)
    return commit


def model_folder(path: str, commit: str | None, patterns: Sequence[str], key: str) -> Path:
    """Return the directory of a model: a local one, or a snapshot; errors as of `hub_files`."""
    return local_path(path, key) or hub_files(path, commit, patterns, key)


def hub_files(
    name: str, revision: str | None, patterns: Sequence[str], key: str, kind: str = "model"
) -> Path:
    """Return a local snapshot of a hub model (or dataset) with the files of `patterns`.

    In patterns * crosses folders. `revision` is a branch, tag or commit, None is main; `key` is the
    configuration's, for errors; `kind` is model or dataset.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    commit = hub_commit(name, revision, kind, key)
    weights = [pattern for pattern in patterns if pattern in ("*.safetensors", PICKLED)]
    needed = weights or patterns  # a snapshot may hold a tokenizer alone

    snapshot: Any = partial(
        snapshot_download, name, repo_type=kind, revision=commit, etag_timeout=SECONDS
    )
    broken: list[str] = []
    with suppress(LocalEntryNotFoundError):  # of the files of the repository, some are missing
        folder = Path(snapshot(allow_patterns=patterns, local_files_only=True))
        broken = _damaged_blobs(folder, patterns)
        if not broken and matching(folder, needed):
            return folder
    newest_commit(name, commit, kind, key)  # first: where there is no hub, a download waits long
    with _asking(name, key):
        if broken:
            print(f"{key}={name}: {broken[0]} is damaged, fetching again", file=sys.stderr)
            snapshot(allow_patterns=[glob.escape(file) for file in broken], force_download=True)
        folder = Path(snapshot(allow_patterns=patterns))
        if folder.is_dir():  # raises where a file was served as one of another commit
            snapshot(allow_patterns=patterns, local_files_only=True)
        if broken := _damaged_blobs(folder, patterns):
            raise OSError(f"{broken[0]} was damaged on its way")
    if not matching(folder, needed):
        raise PipelineError(f"{key}={name}: the repository has none of {', '.join(needed)}")
    return folder


def check_one_form(folder: Path) -> None:
    """Check that a folder has weights in one file or in parts, not both.

    transformers would take the file, vLLM the parts that the index names.

    Raises:
        ValueError: it has both.
    """
    index = folder / PARTS
    whole = folder / WHOLE
    if not (index.is_file() and whole.is_file()):
        return
    named = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {})
    if set(named.values()) != {WHOLE}:
        raise ValueError(
            f"there are weights in {WHOLE} and in the parts of {PARTS}: leave those that are "
            "meant, in a copy of the directory if it is not yours"
        )


def matching(folder: Path, patterns: Sequence[str], levels: int | None = None) -> list[Path]:
    """Return the files in or below a folder whose paths there match, sorted; * crosses folders.

    With `levels` they lie at most in so many folders, this one included.
    """
    from huggingface_hub.utils import filter_repo_objects

    depths = ["**/*"] if levels is None else ["/".join("*" * n) for n in range(1, levels + 1)]
    paths = (path for depth in depths for path in folder.glob(depth) if path.is_file())
    names = sorted(path.relative_to(folder).as_posix() for path in paths)
    return [folder / name for name in filter_repo_objects(names, allow_patterns=list(patterns))]


def _reference(name: str, revision: str | None, kind: str) -> Path:
    """Return the file in which the hub's client notes the commit of a revision."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=kind)
    return folder / "refs" / (revision or "main")


def _damaged_blobs(folder: Path, patterns: Sequence[str]) -> list[str]:
    """Return the files of a snapshot that link to damaged blobs; other links are the user's."""
    blobs = (folder.parents[1] / "blobs").resolve()
    names = []
    for path in matching(folder, patterns):
        if path.is_symlink():
            blob = Path(os.path.normpath(path.parent / path.readlink()))
            if blob.parent.resolve() == blobs and not _as_named(blob, file_state(blob)):
                names.append(str(path.relative_to(folder)))
    return names


@cache
def _as_named(blob: Path, state: str) -> bool:  # noqa: ARG001 (part of the key)
    """Whether a blob's name is its SHA-256 (LFS) or its hash in Git; another name tells nothing."""
    if re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return file_digest(blob) == blob.name
    if COMMIT.fullmatch(blob.name):
        data = blob.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == blob.name
    return True


@contextmanager
def _asking(name: str, key: str) -> Iterator[None]:
    """Ask the hub, with limits where the client has none; its errors become one line."""
    from huggingface_hub.utils import get_session, parse_ratelimit_headers

    unanswered = Counter[str]()

    def request(asked: Any) -> None:
        if unanswered[str(asked.url)] == TRIES:
            raise TimeoutError(f"{asked.url.host} does not answer")
        unanswered[str(asked.url)] += 1
        steps = ("connect", "read", "write", "pool")
        asked.extensions["timeout"] = dict.fromkeys(steps, SECONDS)

    def response(answer: Any) -> None:
        unanswered[str(answer.request.url)] = 0
        after = answer.headers.get("retry-after", "")
        seconds = int(after) if after.isdigit() else 0
        if (limit := parse_ratelimit_headers(answer.headers)) and not limit.remaining:
            seconds = limit.reset_in_seconds
        if answer.status_code >= 408 and seconds > LONGEST:  # of what the client waits for
            raise TimeoutError(f"the hub is busy, and asks for a wait of {seconds} s")

    hooks = get_session().event_hooks
    hooks["request"].append(request)
    hooks["response"].append(response)
    try:
        yield
    except Exception as error:  # the hub's client raises many kinds
        raise PipelineError(
            f"{key}={name}: {type(error).__name__}: {first_line(error)}. Try again, or give "
            f"a local directory: {key}=DIRECTORY"
        ) from error
    finally:
        hooks["request"].remove(request)
        hooks["response"].remove(response)
