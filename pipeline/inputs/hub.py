"""Files of the hub, fetched if the cache lacks them.

Before a cached file is used, it is compared with the hash in its blob's name; a damaged one is
fetched again.
"""

from __future__ import annotations

import glob
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.core.errors import PipelineError
from pipeline.inputs import hub_commits
from pipeline.inputs.hub_commits import asking, hub_commit, newest_commit
from pipeline.inputs.integrity import damaged_blobs
from pipeline.inputs.local_files import PICKLED, local_path, matching


def model_folder(path: str, commit: str | None, patterns: Sequence[str], key: str) -> Path:
    """Return a model's directory, local or a snapshot of the hub; arguments as of `hub_files`."""
    return local_path(path, key) or hub_files(path, commit, patterns, key)


def hub_files(
    name: str, revision: str | None, patterns: Sequence[str], key: str, kind: str = "model"
) -> Path:
    """Return the local snapshot of a repository of the hub, with the files that match `patterns`.

    Args:
        name: of the repository, owner/name.
        revision: a branch, tag or commit; None: main.
        patterns: of paths in the repository; * crosses folders.
        key: the configuration key, for errors.
        kind: model or dataset.

    Raises:
        PipelineError: the hub does not answer, or has no such repository or files.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    commit = hub_commit(name, revision, kind, key)
    weights = [pattern for pattern in patterns if pattern in ("*.safetensors", PICKLED)]
    needed = weights or patterns  # a snapshot may hold a tokenizer alone

    snapshot: Any = partial(
        snapshot_download, name, repo_type=kind, revision=commit, etag_timeout=hub_commits.TIMEOUT
    )
    broken: list[str] = []
    with suppress(LocalEntryNotFoundError):  # files of the repository are missing
        folder = Path(snapshot(allow_patterns=patterns, local_files_only=True))
        broken = damaged_blobs(folder, patterns)
        if not broken and matching(folder, needed):
            return folder
    newest_commit(name, commit, kind, key)  # without a hub it fails sooner than a download
    with asking(name, key):
        if broken:
            print(f"{key}={name}: {broken[0]} is damaged, fetching again", file=sys.stderr)
            snapshot(allow_patterns=[glob.escape(file) for file in broken], force_download=True)
        folder = Path(snapshot(allow_patterns=patterns))
        if folder.is_dir():  # raises if the hub has served a file of another commit
            snapshot(allow_patterns=patterns, local_files_only=True)
        if broken := damaged_blobs(folder, patterns):
            raise OSError(f"{broken[0]} was damaged on its way")
    if not matching(folder, needed):
        raise PipelineError(f"{key}={name}: the repository has none of {', '.join(needed)}")
    return folder
