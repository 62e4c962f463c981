"""Fetches a study's models, tokenizers and prompts, so that it then runs without a network.

Run it with ``make fetch STUDY=paper``, or ``python -m pipeline.fetch study=paper``. Moving
revisions are resolved anew, and all files are checked against their hashes. Where the hub can't be
asked, a full cache is enough.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from conf import schema
from pipeline.core.commands import command
from pipeline.core.errors import PipelineError, collect_errors, first_line, raise_collected
from pipeline.core.paths import ROOT
from pipeline.inputs.hub import hub_files
from pipeline.inputs.hub_commits import cached_commit, keep_commit, newest_commit
from pipeline.inputs.local_files import HEAD_FILES, MODEL_FILES, SMOLLM2, local_path
from pipeline.inputs.prompt_files import KEY, source_files
from pipeline.settings.composition import composed, settings_of
from pipeline.study import models_named


def fetch(config: schema.Config) -> None:
    """Fetch missing files, and print where each model and data set is, and its commit."""
    problems = list[str]()
    prompts = config.prompts
    with collect_errors(problems):
        _fetch(
            *(KEY, prompts.source, prompts.revision, "dataset"),
            lambda commit: source_files(prompts.source, commit, prompts.split)[0].parent,
        )
    for key, model in models_named(config).items():
        head = isinstance(model, schema.DrafterConfig) and model.head is not None
        patterns = HEAD_FILES if head else MODEL_FILES
        with collect_errors(problems):
            if ROOT / model.path == SMOLLM2:
                from tools import smollm2

                smollm2.make()
            weights = partial(hub_files, model.path, patterns=patterns, key=key)
            _fetch(key, model.path, model.revision, "model", weights)
    raise_collected(problems)


def _fetch(
    key: str, name: str, revision: str | None, kind: str, files: Callable[[str], Path]
) -> None:
    """Fetch the `files` of the newest commit, or, where the hub does not tell it, the cache's."""
    if (local := local_path(name, key)) is not None:
        print(f"{key}: {local} is here", flush=True)
        return
    note = ""
    try:
        commit = newest_commit(name, revision, kind, key)
    except PipelineError as error:
        cached = cached_commit(name, revision, kind)
        if cached is None:
            raise
        commit = cached
        note = f" (from the cache: {first_line(error.__cause__ or error)})"
    folder = files(commit)
    keep_commit(name, revision, kind, commit)  # now that its files are there
    print(f"{key}: {name} at commit {commit} -> {folder}{note}", flush=True)


def main(overrides: Sequence[str]) -> None:
    """Compose the configuration as ``python -m pipeline`` does, and fetch it."""
    with command("python -m pipeline.fetch [OVERRIDES]", __doc__, overrides, goes_on=True):
        fetch(settings_of(composed(overrides)))


if __name__ == "__main__":
    main(sys.argv[1:])
