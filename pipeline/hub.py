"""Models and prompts by directory or hub id: where their files lie, and what identifies them.

What the cache of the hub's client holds is used without a question to the hub. A cached file is
compared with the hash that is its blob's name before it is used; a damaged one is fetched again.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline.errors import PipelineError, first_line
from pipeline.files import file_digest, json_digest, read_json, write_json
from pipeline.paths import OUTPUTS, ROOT

MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
PICKLED = "pytorch_model.bin"  # weights of published heads without safetensors
HEAD_FILES = (*MODEL_FILES, PICKLED)
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.json", "merges.txt"),
    *("special_tokens_map.json", "added_tokens.json", "tokenizer.model", "vocab.txt"),
)
READERS = (".jsonl", ".parquet", ".txt")  # files of prompts, see pipeline.formats.prompt_files
HUB_ID = re.compile(r"(?!.*(--|\.\.))\w[\w.-]*/[\w.-]*\w")
COMMIT = re.compile(r"[0-9a-f]{40}")
SMOLLM2 = OUTPUTS / "models" / "SmolLM2-135M-Instruct"  # made by tools/smollm2.py
SUMS = "conversion.sha256"  # of the files of a directory that the tool made
SETTLED = 2_000_000_000  # ns; a file written since may change again without another time
SECONDS, TRIES = 8.0, 2  # how long, and how often, an answer of the hub is waited for
LONGEST = 300  # s that a busy hub is waited for, in all


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
        """Use the memo file `memo`, which need not exist."""
        self._path = memo
        self._memo: dict[str, str] = {}
        with suppress(PipelineError):  # a damaged one is made anew
            self._memo = read_json(memo)
        self._grown = False

    def model(self, path: str, revision: str | None, key: str) -> Identity:
        """Return the identity of a model; `key` is the configuration key for errors.

        Raises:
            PipelineError: it is no model directory, or a file of a converted model is damaged.
        """
        local = local_path(path, key)
        if local is None:
            return Identity(hub=path, commit=hub_commit(path, revision, "model", key))
        if not (local / "config.json").is_file():
            gguf = f": python -m tools.smollm2 {path} DIRECTORY makes one" * path.endswith(".gguf")
            raise PipelineError(
                f"{key}={path}: a model directory with config.json is expected{gguf}"
            )
        if name := damaged(local, self._hash):
            raise PipelineError(
                f"{key}={path}: {name} is damaged: make it again with python -m tools.smollm2"
            )
        plain = next(local.rglob("*.safetensors"), None) is not None
        return Identity(content=self._digest(local, MODEL_FILES if plain else HEAD_FILES, key))

    def tokenizer(self, path: str, revision: str | None, key: str) -> Identity:
        """Return the identity of a model's tokenizer, equal for equal files."""
        local = local_path(path, key) or hub_files(path, revision, TOKENIZER_FILES, key)
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
                write_json(self._path, self._memo)
            self._grown = False

    def _digest(self, directory: Path, patterns: Sequence[str], key: str) -> str:
        found = {path for pattern in patterns for path in directory.rglob(pattern)}
        names = {p.relative_to(directory).as_posix(): p for p in found if p.is_file()}
        if not names:
            raise PipelineError(f"{key}={directory}: none of {', '.join(patterns)} found there")
        return json_digest({name: self._hash(path) for name, path in names.items()})

    def _hash(self, path: Path) -> str:
        state, times = _state(path)
        key = f"{path.resolve()}:{state}"
        if key not in self._memo:
            digest = file_digest(path)
            if time.time_ns() - times <= SETTLED:
                return digest
            self._memo[key] = digest
            self._grown = True
        return self._memo[key]


def _state(path: Path) -> tuple[str, int]:
    """Return what changes with a file's content, and the time of its last change in ns."""
    state = path.stat()
    times = (state.st_mtime_ns, state.st_ctime_ns)
    return f"{state.st_size}:{times[0]}:{times[1]}:{state.st_ino}", max(times)


def local_path(path: str, key: str = "") -> Path | None:
    """Return `path` as a local path (relative ones also from the repository), or None for a hub id.

    Raises:
        PipelineError: there is no such path and it is no hub id either.
    """
    for candidate in (Path(path).expanduser(), ROOT / path):
        if candidate.exists():
            return candidate.resolve()
    if HUB_ID.fullmatch(path):
        return None
    where = f"{key + '=' if key else ''}{path} does not exist"
    if ROOT / path == SMOLLM2:
        raise PipelineError(f"{where}: python -m tools.smollm2 makes it, and make reproduce, too")
    raise PipelineError(f"{where}, and is no hub id (owner/name) either")


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
    """Ask the hub for the commit of a revision; arguments as of `hub_files`.

    Raises:
        PipelineError: the hub does not tell.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

    asked = quote(revision or "main", safe="")
    with _asking(name, key):
        answer = http_backoff(
            "GET",
            f"{constants.ENDPOINT}/api/{kind}s/{name}/revision/{asked}",
            headers=build_hf_headers(),
            retry_on_exceptions=(),
            retry_on_status_codes=429,
        )
        hf_raise_for_status(answer)
        commit = str(answer.json()["sha"])
        if not COMMIT.fullmatch(commit):
            raise ValueError(f"{commit!r} is no commit")
    return commit


def keep_commit(name: str, revision: str | None, kind: str, commit: str) -> None:
    """Note the commit of a revision where the hub's client does: later runs need no hub for it."""
    if not COMMIT.fullmatch(revision or ""):
        place = _reference(name, revision, kind)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(commit)


def hub_commit(name: str, revision: str | None, kind: str, key: str) -> str:
    """Return the commit of a revision: the cache's, else the hub's; as `newest_commit`."""
    commit = cached_commit(name, revision, kind)
    if commit is None:
        commit = newest_commit(name, revision, kind, key)
        keep_commit(name, revision, kind, commit)
    return commit


def hub_files(
    name: str,
    revision: str | None,
    patterns: Sequence[str],
    key: str,
    kind: str = "model",
    *,
    optional: bool = False,
) -> Path:
    """Return a local snapshot of a hub model (or dataset) with the files of `patterns`.

    Args:
        name: owner/name.
        revision: a branch, tag or commit; None is main.
        patterns: of the files' paths, in which * crosses folders.
        key: of the configuration, for errors.
        kind: model or dataset.
        optional: allow a repository without such files.

    Raises:
        PipelineError: the hub does not give a file, or a damaged one.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    commit = hub_commit(name, revision, kind, key)
    weights = [pattern for pattern in patterns if pattern in ("*.safetensors", PICKLED)]
    needed = weights or patterns  # a snapshot may hold a tokenizer alone

    wanted: dict[str, Any] = {"revision": commit, "allow_patterns": list(patterns)}

    def snapshot(*, cached: bool) -> Path:
        return Path(snapshot_download(name, repo_type=kind, local_files_only=cached, **wanted))

    with suppress(LocalEntryNotFoundError):  # of the files of the repository, some are missing
        folder = snapshot(cached=True)
        if broken := _remove_damaged(folder, patterns):
            print(f"{key}={name}: {broken[0]} is damaged, fetching again", file=sys.stderr)
        elif optional or matching(folder, needed):
            return folder
    newest_commit(name, commit, kind, key)  # first: where there is no hub, a download waits long
    with _asking(name, key):
        folder = snapshot(cached=False)
        if folder.is_dir():
            snapshot(cached=True)  # raises where a file was served as one of another commit
        if broken := _remove_damaged(folder, patterns):
            raise OSError(f"{broken[0]} was damaged on its way, and is removed")
    if not optional and not matching(folder, needed):
        raise PipelineError(f"{key}={name}: the repository has none of {', '.join(needed)}")
    return folder


def matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files in or below a folder whose paths there match, sorted; * crosses folders."""
    from huggingface_hub.utils import filter_repo_objects

    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return list(
        filter_repo_objects(
            files, allow_patterns=list(patterns), key=lambda path: str(path.relative_to(folder))
        )
    )


def _reference(name: str, revision: str | None, kind: str) -> Path:
    """Return the file in which the hub's client notes the commit of a revision."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=kind)
    return folder / "refs" / (revision or "main")


def _remove_damaged(folder: Path, patterns: Sequence[str]) -> list[str]:
    """Remove links of a snapshot to damaged blobs of its repository, and these; return the names.

    Whatever else a link of the snapshot leads to is the user's: it is neither judged nor removed.
    """
    blobs, names = folder.parents[1] / "blobs", []
    for path in matching(folder, patterns):
        if path.is_symlink():
            blob = Path(os.path.normpath(path.parent / path.readlink()))
            if blob.parent.resolve() == blobs.resolve() and not _as_named(blob, _state(blob)[0]):
                names.append(str(path.relative_to(folder)))
                path.unlink(missing_ok=True)
                blob.unlink(missing_ok=True)
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
    """Ask the hub, with limits on what is waited for; errors are the client's, in one line."""
    from huggingface_hub.utils import get_session

    hooks, limits = get_session().event_hooks, _Limits()
    hooks["request"].append(limits.request)
    hooks["response"].append(limits.response)
    try:
        yield
    except Exception as error:  # the hub's client raises many kinds
        raise PipelineError(
            f"{key}={name}: {type(error).__name__}: {first_line(error)}. Try again, or give "
            f"a local directory: {key}=DIRECTORY"
        ) from error
    finally:
        hooks["request"].remove(limits.request)
        hooks["response"].remove(limits.response)


class _Limits:
    """Ends what the hub's client would go on with: asking in vain, and waiting for a busy hub."""

    def __init__(self) -> None:
        self._unanswered = Counter[str]()
        self._waited, self._until = 0.0, 0.0

    def request(self, request: Any) -> None:
        url, limits = str(request.url), request.extensions.get("timeout", {})
        if self._unanswered[url] == TRIES:
            raise TimeoutError(f"{request.url.host} does not answer")
        self._unanswered[url] += 1
        for step in ("connect", "read", "write", "pool"):
            given = limits.get(step)
            if given is None or request.method == "HEAD":
                limits[step] = min(given or SECONDS, SECONDS)
        request.extensions["timeout"] = limits

    def response(self, response: Any) -> None:
        from huggingface_hub.utils import parse_ratelimit_headers

        del self._unanswered[str(response.request.url)]
        if response.status_code >= 408:  # of what the client waits for; it reads the same headers
            limit = parse_ratelimit_headers(response.headers)
            after = response.headers.get("retry-after", "")
            seconds = int(after) if after.isdigit() else 0
            if limit and not limit.remaining:
                seconds = limit.reset_in_seconds
            now = time.monotonic()  # downloads beside each other wait at the same time
            self._waited += max(0.0, now + seconds - max(now, self._until))
            self._until = max(now + seconds, self._until)
            if self._waited > LONGEST:
                raise TimeoutError(f"the hub is busy, and asks for a wait of {seconds} s")
