"""Fetches a study's models, tokenizers and prompts from the hub, so that it runs without one.

Run it with ``make fetch STUDY=paper``, or ``python -m pipeline.fetch study=paper``. Moving
revisions are resolved anew, and all files are checked against the hashes that the hub lists. Where
the hub can't be asked, a full cache is enough.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from conf import schema
from pipeline.config import composed, settings_of
from pipeline.errors import command, noted, say
from pipeline.formats.prompt_files import source_files
from pipeline.plan.graph import models_named
from pipeline.store.hub import (
    HEAD_FILES,
    MODEL_FILES,
    cached_commit,
    hub_files,
    keep_commit,
    newest_commit,
)
from pipeline.store.hub_errors import HubError
from pipeline.store.identity import local_path

# the folder of the files of a commit, fetched where they are missing, checked if that is wanted
Files = Callable[[str, bool], Path]


def fetch(config: schema.Config) -> None:
    """Fetch missing files, and print the commit and the folder of each model and data set.

    Raises:
        PipelineError: the hub can't be reached, or lacks a file; a line for each repository.
    """
    prompts = config.prompts

    def texts(commit: str, check: bool) -> Path:
        return source_files(prompts.source, commit, prompts.split, check=check)[0].parent

    wanted: list[tuple[str, str, str | None, str, Files]] = [
        ("prompts.source", prompts.source, prompts.revision, "dataset", texts)
    ]
    for key, model in models_named(config).items():
        head = isinstance(model, schema.DrafterConfig) and model.head is not None
        patterns = HEAD_FILES if head else MODEL_FILES
        weights = partial(_weights, model.path, patterns, key)
        wanted.append((key, model.path, model.revision, "model", weights))
    problems: list[str] = []
    for key, name, revision, kind, files in wanted:
        with noted(problems):
            if local_path(name) is None:
                commit, note = _commit(name, revision, kind, key)
                folder = files(commit, not note)
                keep_commit(name, revision, kind, commit)  # now that its files are there
                print(f"{key}: {name} at commit {commit} -> {folder}{note}", flush=True)
    say(problems)


def _weights(name: str, patterns: Sequence[str], key: str, commit: str, check: bool) -> Path:
    return hub_files(name, commit, patterns, key, check=check)


def _commit(name: str, revision: str | None, kind: str, key: str) -> tuple[str, str]:
    """Return the hub's commit, else the cache's and why the hub did not tell."""
    try:
        return newest_commit(name, revision, kind, key), ""
    except HubError as error:
        commit = cached_commit(name, revision, kind)
        if commit is None:
            raise
        return commit, f" (all from the cache: {error.reason})"


def main(overrides: Sequence[str]) -> None:
    """Compose the configuration as ``python -m pipeline`` does, and fetch it."""
    with command("python -m pipeline.fetch [OVERRIDES]", __doc__, overrides):
        fetch(settings_of(composed(overrides)))


if __name__ == "__main__":
    main(sys.argv[1:])
