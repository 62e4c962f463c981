"""The texts of tokens, from a tokenizer's file or as stored in artifacts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipeline.errors import PipelineError
from pipeline.hub import HUB_ID, cached_commit, hub_files, local_path
from pipeline.stage import Artifact, Task

TOKENIZER = "tokenizer.json"
ENGINES_IDS = "the engine's"  # token ids of a log, else they number its texts


def token_texts(
    task: Task, dump: Artifact, drafts: Artifact | None, ids: Iterable[int]
) -> dict[int, str]:
    """Return the text of tokens by id, of those that are known.

    The target's tokenizer knows them all. Where it is not at hand any more, what the artifacts
    stored of the emitted tokens is taken.

    Args:
        task: of the target's distributions.
        dump: its artifact.
        drafts: that of stage drafts, where there is a drafter.
        ids: of the tokens.
    """
    wanted = sorted(set(ids))
    file = _tokenizer(task, dump)
    if file is not None:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
        texts = tokenizer.decode_batch([[token] for token in wanted], skip_special_tokens=False)
        return dict(zip(wanted, texts, strict=True))
    for artifact in (dump, drafts):
        if artifact is not None and "tokens.parquet" in artifact.record["files"]:
            columns = artifact.read("tokens").to_pydict()
            stored = dict(zip(columns["token_id"], columns["text"], strict=True))
            return {token: stored[token] for token in wanted if token in stored}
    return {}


def _tokenizer(task: Task, dump: Artifact) -> Path | None:
    """Return the file of a target's tokenizer; None where it has none, or is not at hand.

    The model that an engine's log names may be a directory, or lie in the hub's cache.
    """
    facts = dump.facts
    if task.runtime.models:
        (model,) = task.runtime.models
        path, commit = model.settings.path, model.identity.commit
    elif facts.get("token_ids") == ENGINES_IDS:
        path = str(facts["model"])
        commit = cached_commit(path, None, "model") if HUB_ID.fullmatch(path) else None
    else:
        return None
    try:
        place = local_path(path)
        if place is None:
            place = hub_files(path, commit, [TOKENIZER], "target") if commit else Path(path)
    except PipelineError:
        return None
    file = place / TOKENIZER
    return file if file.is_file() else None
