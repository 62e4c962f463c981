"""The commits of the hub's repositories, from the cache of the hub's client or from the hub.

If the cache has a commit, the hub is not asked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.core.errors import PipelineError, first_line
from pipeline.core.files import write_whole

COMMIT = re.compile(r"[0-9a-f]{40}")
TIMEOUT = 8.0  # seconds until the hub has to answer
TRIES = 2  # how often it is asked
MAX_WAIT = 300  # seconds that a busy hub may ask for before the next try


def hub_commit(name: str, revision: str | None, kind: str, key: str) -> str:
    """Return the commit of a revision, from the cache or the hub; arguments as of `hub_files`."""
    commit = cached_commit(name, revision, kind)
    if commit is None:
        commit = newest_commit(name, revision, kind, key)
        keep_commit(name, revision, kind, commit)
    return commit


def cached_commit(name: str, revision: str | None, kind: str) -> str | None:
    """Return the commit of a revision from the cache; None if it has none."""
    known = revision or ""
    if not COMMIT.fullmatch(known):
        reference = _reference(name, revision, kind)
        known = reference.read_text(errors="replace").strip() if reference.is_file() else ""
    return known if COMMIT.fullmatch(known) else None


def newest_commit(name: str, revision: str | None, kind: str, key: str) -> str:
    """Ask the hub for the commit of a revision; arguments as of `hub_files`."""
    from huggingface_hub import HfApi

    with asking(name, key):
        commit = str(HfApi().repo_info(name, revision=revision or "main", repo_type=kind).sha)
        if not COMMIT.fullmatch(commit):
            raise ValueError(f"{commit!r} is no commit")
    return commit


def keep_commit(name: str, revision: str | None, kind: str, commit: str) -> None:
    """Write the commit of a revision to the client's cache, so that later runs need no hub."""
    if not COMMIT.fullmatch(revision or ""):
        reference = _reference(name, revision, kind)
        reference.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError, FileNotFoundError):  # another process writes it
            write_whole(reference, commit.encode())


def _reference(name: str, revision: str | None, kind: str) -> Path:
    """Return the file in which the hub's client keeps the commit of a revision."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=kind)
    return folder / "refs" / (revision or "main")


@contextmanager
def asking(name: str, key: str) -> Iterator[None]:
    """Ask the hub inside the context, with limits that the client lacks; errors become one line."""
    from huggingface_hub.utils import get_session, parse_ratelimit_headers

    unanswered = Counter[str]()

    def request(asked: Any) -> None:
        if unanswered[str(asked.url)] == TRIES:
            raise TimeoutError(f"{asked.url.host} does not answer")
        unanswered[str(asked.url)] += 1
        steps = ("connect", "read", "write", "pool")
        asked.extensions["timeout"] = dict.fromkeys(steps, TIMEOUT)

    def response(answer: Any) -> None:
        unanswered[str(answer.request.url)] = 0
        after = answer.headers.get("retry-after", "")
        seconds = int(after) if after.isdigit() else 0
        if (limit := parse_ratelimit_headers(answer.headers)) and not limit.remaining:
            seconds = limit.reset_in_seconds
        if answer.status_code >= 408 and seconds > MAX_WAIT:  # of what the client waits for
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
