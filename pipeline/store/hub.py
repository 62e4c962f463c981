"""Takes commits and files from the hub, by way of the cache of the hub's own client.

What the cache holds is read there, without a question to the hub. Fetched files are checked against
the hashes that the hub lists.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import PipelineError
from pipeline.store.hub_errors import EXPECTED, demanded_wait, explained

MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
PICKLED = "pytorch_model.bin"  # weights of published heads without safetensors
HEAD_FILES = (*MODEL_FILES, PICKLED)
WAITS = 3  # times that a busy hub is waited for
LONGEST = 300  # s of one wait; the hub counts requests in windows of five minutes
COMMIT = re.compile(r"[0-9a-f]{40}")


def cached_commit(name: str, revision: str | None, kind: str) -> str | None:
    """Return the commit of a revision that the cache knows; None where it knows none."""
    if COMMIT.fullmatch(revision or ""):
        return revision
    place = _reference(name, revision, kind)
    return place.read_text().strip() if place.is_file() else None


def newest_commit(name: str, revision: str | None, kind: str, key: str) -> str:
    """Ask the hub for the commit of a revision.

    Args:
        name: owner/name.
        revision: a branch, tag or commit; None is main.
        kind: model or dataset.
        key: of the configuration, for errors.

    Raises:
        HubError: the hub does not tell.
    """
    wanted = f"{EXPECTED[kind]} (revision {revision or 'main'})"
    with explained(name, kind, wanted, key):
        return _ask_commit(name, revision or "main", kind, key)


def keep_commit(name: str, revision: str | None, kind: str, commit: str) -> None:
    """Note the commit of a revision where the hub's client does: later runs need no hub for it."""
    if not COMMIT.fullmatch(revision or ""):
        place = _reference(name, revision, kind)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(commit)


def hub_commit(name: str, revision: str | None, kind: str, key: str) -> str:
    """Return the commit of a revision: the cache's, else the hub's; arguments as `newest_commit`.

    Raises:
        PipelineError: neither tells.
    """
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
    check: bool = False,
    optional: bool = False,
) -> Path:
    """Return a local snapshot of a hub model (or dataset) with the files of `patterns`.

    Args:
        name: owner/name.
        revision: a branch, tag or commit; None is main.
        patterns: of the files' paths, in which * crosses folders.
        key: of the configuration, for errors.
        kind: model or dataset.
        check: ask for the hashes also of files that were fetched before.
        optional: allow a repository without such files.

    Raises:
        PipelineError: the hub does not give a file, or not the one that it lists.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    commit = hub_commit(name, revision, kind, key)
    weights = [pattern for pattern in patterns if pattern in ("*.safetensors", PICKLED)]
    needed = weights or patterns  # a snapshot may hold a tokenizer alone

    def snapshot(*, cached: bool) -> Path:
        place = snapshot_download(
            name,
            repo_type=kind,
            revision=commit,
            allow_patterns=list(patterns),
            local_files_only=cached,
        )
        return Path(place)

    try:
        folder = snapshot(cached=True)
        fetch = not optional and not matching(folder, needed)
    except LocalEntryNotFoundError:  # of the files that the repository lists, some are missing
        fetch = True
    if fetch:
        with explained(name, kind, ", ".join(patterns), key):
            _ask_commit(name, commit, kind, key)  # first: the download waits for minutes
            folder = snapshot(cached=False)
    if (fetch or check) and folder.is_dir():
        _check(name, commit, kind, folder, patterns, key)
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


def _check(
    name: str, commit: str, kind: str, folder: Path, patterns: Sequence[str], key: str
) -> None:
    """Compare files with the hashes in the hub's listing: SHA-256 for LFS, else Git's.

    The client itself compares sizes only. A file that differs is removed, to be fetched again.

    Raises:
        PipelineError: a file differs, or is missing: it was served as of another commit.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import filter_repo_objects

    with explained(name, kind, "the hashes of its files", key):
        checked = HfApi().verify_repo_checksums(name, repo_type=kind, revision=commit)
    for missing in filter_repo_objects(checked.missing_paths, allow_patterns=list(patterns)):
        raise PipelineError(
            f"{key}={name}: the hub served {missing} as of another commit than {commit}. Give the "
            "same command again; if it happens again, ask who runs the hub or the proxy"
        )
    for file in checked.mismatches:
        path = folder / file["path"]
        for damaged in (path.resolve(), path):
            damaged.unlink(missing_ok=True)
    for file in checked.mismatches[:1]:
        raise PipelineError(
            f"{key}={name}: {len(checked.mismatches)} files were damaged on their way, and are "
            f"removed: the {file['algorithm']} of {file['path']}, for one, is "
            f"{file['actual'][:12]}..., the hub lists {file['expected'][:12]}.... Give the same "
            "command again"
        )


def _ask_commit(name: str, revision: str, kind: str, key: str) -> str:
    """Ask for a commit; where the hub is busy, again after the wait that it demands.

    The client itself waits where it lists and downloads files, and not here.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    for left in reversed(range(WAITS + 1)):
        try:
            info = HfApi().repo_info(name, repo_type=kind, revision=revision)
            return str(info.sha)
        except HfHubHTTPError as error:
            seconds = demanded_wait(error)
            if not left or seconds is None or seconds > LONGEST:
                raise
            line = f"{key}={name}: the hub is busy (429) and demands a wait of {seconds} s"
            print(line, file=sys.stderr, flush=True)
            time.sleep(seconds)
    raise AssertionError
