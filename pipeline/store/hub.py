"""Takes commits and files from the hub, by way of the cache of the hub's own client.

What the cache holds is read there, without a question to the hub. Fetched files are checked against
the hashes that the hub lists. A hub that refuses, fails or hangs is one line: its status, the
reason, what to do.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError, first_line

MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
PICKLED = "pytorch_model.bin"  # weights of published heads without safetensors
HEAD_FILES = (*MODEL_FILES, PICKLED)
EXPECTED = {
    "model": "config.json, model*.safetensors and the tokenizer's files",
    "dataset": "its .parquet, .jsonl or .txt files (docs/reproduce.md)",
}
SECONDS = 8.0  # to wait for an answer
WAITS = 3  # times that a busy hub is waited for
LONGEST = 300  # s of one wait; the hub counts requests in windows of five minutes
COMMIT = re.compile(r"[0-9a-f]{40}")


class HubError(PipelineError):
    """The hub did not give what is wanted; `reason` is a part of the message."""

    def __init__(self, message: str, reason: str) -> None:
        """Take the message and its reason."""
        super().__init__(message)
        self.reason = reason


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
    from huggingface_hub import HfApi

    wanted = f"{EXPECTED[kind]} (revision {revision or 'main'})"
    info = _asked(
        lambda: HfApi().repo_info(
            name, repo_type=kind, revision=revision or "main", timeout=SECONDS
        ),
        (name, kind, wanted, key),
    )
    assert info.sha is not None
    return str(info.sha)


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
            etag_timeout=SECONDS,
        )
        return Path(place)

    try:
        folder = snapshot(cached=True)
        fetch = not optional and not matching(folder, needed)
    except LocalEntryNotFoundError:  # of the files that the repository lists, some are missing
        fetch = True
    if fetch:
        wanted = ", ".join(patterns)
        folder = _asked(lambda: snapshot(cached=False), (name, kind, wanted, key))
    if fetch or check:
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

    checked = _asked(
        lambda: HfApi().verify_repo_checksums(name, repo_type=kind, revision=commit),
        (name, kind, "the hashes of its files", key),
    )
    for missing in filter_repo_objects(checked.missing_paths, allow_patterns=list(patterns)):
        raise PipelineError(
            f"{key}={name}: the hub served {missing} as of another commit than {commit}. Give the "
            "same command again; if it happens again, ask who runs the hub or the proxy"
        )
    for file in checked.mismatches:
        path = folder / file["path"]
        for damaged in (path.resolve(), path):
            damaged.unlink(missing_ok=True)
        raise PipelineError(
            f"{key}={name}: {file['path']} was damaged on its way, and is removed: its "
            f"{file['algorithm']} is {file['actual'][:12]}..., the hub lists "
            f"{file['expected'][:12]}.... Give the same command again"
        )


def _asked(ask: Callable[[], Any], place: tuple[str, str, str, str]) -> Any:
    """Ask the hub, and again after the wait that a busy one demands; `place` as `_unreachable`."""
    for left in reversed(range(WAITS + 1)):
        _limit_requests()
        try:
            return ask()
        except Exception as error:  # the hub's client raises many kinds
            seconds = _demanded_wait(error)
            if not left or seconds is None or seconds > LONGEST:
                raise _unreachable(*place, error) from error
            name, _, _, key = place
            line = f"{key}={name}: the hub is busy (429) and demands a wait of {seconds} s"
            print(line, file=sys.stderr, flush=True)
            time.sleep(seconds)
    raise AssertionError


def _limit_requests() -> None:
    """Limit the time of every request: the client lists files, for one, without a limit."""
    from huggingface_hub.utils import get_session

    hooks = get_session().event_hooks
    if _limit not in hooks["request"]:
        hooks["request"].append(_limit)


def _limit(request: Any) -> None:
    limits = request.extensions.get("timeout", {})
    for step in ("connect", "read", "write", "pool"):
        given = limits.get(step)
        if given is None or request.method == "HEAD":
            limits[step] = min(given or SECONDS, SECONDS)
    request.extensions["timeout"] = limits


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _demanded_wait(error: BaseException) -> int | None:
    """Return the seconds that a hub with too many requests (429) demands; None: another error."""
    from huggingface_hub.utils import parse_ratelimit_headers

    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if getattr(response, "status_code", None) == 429:
            limit = parse_ratelimit_headers(response.headers)
            seconds = response.headers.get("Retry-After", "")
            if seconds.isdigit():
                return int(seconds)
            return limit.reset_in_seconds if limit is not None else int(SECONDS)
    return None


def _unreachable(name: str, kind: str, wanted: str, key: str, error: Exception) -> HubError:
    """Return the error for a hub that does not give what is wanted."""
    reason, advice = _diagnosis(name, kind, key, error)
    message = (
        f"{key}={name}: the hub did not give {wanted}: {reason}. {advice}. Or take a local copy: "
        f"{key}=DIRECTORY, with {EXPECTED[kind]}"
    )
    return HubError(message, reason)


def _diagnosis(name: str, kind: str, key: str, error: Exception) -> tuple[str, str]:
    """Return the reason of an error of the hub's client, and what to do."""
    for cause in _causes(error):
        classes = {parent.__name__ for parent in type(cause).__mro__}
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if status is not None:
            return _of_status(status, classes, name, kind, key, _demanded_wait(error))
        if "OfflineModeIsEnabled" in classes:
            return (
                "HF_HUB_OFFLINE is set",
                "Unset it and run `make fetch STUDY=...` where there is a network",
            )
        if "TimeoutException" in classes:
            return "it does not answer", "Check the network and try again later"
        if "NetworkError" in classes or "ProxyError" in classes:
            reason = f"it can't be reached ({type(cause).__name__}: {first_line(cause)})"
            return reason, "Check the network, or run `make fetch STUDY=...` where there is one"
    return f"{type(error).__name__}: {first_line(error)}", "Give the same command again"


def _of_status(
    status: int, classes: set[str], name: str, kind: str, key: str, wait: int | None
) -> tuple[str, str]:
    """Return the reason of an HTTP status, and what to do; `classes` are those of the error."""
    from huggingface_hub import constants

    page = f"{constants.ENDPOINT}/{'datasets/' if kind == 'dataset' else ''}{name}"
    if "GatedRepoError" in classes:
        reason = f"{status}, it is given only to those who accept its conditions"
        return reason, f"Accept them at {page}, then run `hf auth login`"
    if status == 401:
        reason = "401, no public repository has this name, or the token is not valid"
        return reason, "Check the name; for a private repository run `hf auth login`"
    if status == 403:
        return "403, the token may not read it", "Run `hf auth login` with one that may"
    if "RevisionNotFoundError" in classes:
        revision = "prompts.revision" if kind == "dataset" else f"{key.rpartition('.')[0]}.revision"
        return "404, it has no such revision", f"Check {revision}"
    if status == 404:
        return "404, no such repository or file", "Check the name"
    if status == 429:
        return "429, too many requests", f"Wait {wait} s, then give the same command"
    if status >= 500:
        return f"{status}, the hub is out of order", "Try again later"
    return f"HTTP status {status}", "Try again later"
