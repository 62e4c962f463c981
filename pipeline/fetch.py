"""Fetches a study's models, tokenizers and prompts from the hub, so that it runs without one.

Run it with ``make fetch STUDY=paper``, or ``python -m pipeline.fetch study=paper``. Moving
revisions are resolved anew. What is local or fetched already costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from conf import schema
from pipeline.console import command
from pipeline.plan.composition import composed, settings_of
from pipeline.plan.graph import models_named
from pipeline.store.identity import (
    HEAD_FILES,
    MODEL_FILES,
    hub_commit,
    hub_files,
    local_path,
    split_patterns,
)


def fetch(config: schema.Config) -> None:
    """Fetch what is not there, and say where what was fetched lies.

    Raises:
        PipelineError: the hub can't be reached, or lacks what is wanted.
    """
    prompts = config.prompts
    patterns = split_patterns(prompts.split)
    wanted = [("prompts.source", prompts.source, prompts.revision, "dataset", patterns)]
    for key, model in models_named(config).items():
        head = isinstance(model, schema.DrafterConfig) and model.head is not None
        files = list(HEAD_FILES if head else MODEL_FILES)
        wanted.append((key, model.path, model.revision, "model", files))
    for key, path, revision, kind, files in wanted:
        if local_path(path) is None:
            commit = hub_commit(path, revision, kind, key, refresh=True)
            place = hub_files(path, commit, files, key, kind)
            print(f"{key}: {path} -> {place}", flush=True)


def main(overrides: Sequence[str]) -> None:
    """Compose the configuration as ``python -m pipeline`` does, and fetch it."""
    with command("python -m pipeline.fetch [OVERRIDES]", __doc__, overrides):
        fetch(settings_of(composed(overrides)))


if __name__ == "__main__":
    main(sys.argv[1:])
