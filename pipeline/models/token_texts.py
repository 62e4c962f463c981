"""The texts of a target's tokens."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipeline.errors import PipelineError
from pipeline.hub import HUB_ID, cached_commit, hub_files, local_path
from pipeline.stage import Artifact, Task

TOKENIZER = "tokenizer.json"
ENGINES_IDS = "the engine's"  # token ids of a log, else they number its texts


def token_texts(task: Task, dump: Artifact, ids: Iterable[int]) -> dict[int, str]:
    """Return the text of tokens by id, of those that are known.

    Without the target's tokenizer only the texts are known that a log has.
    """
    wanted = sorted(set(ids))
    if "tokens.parquet" in dump.record["files"]:
        columns = dump.read("tokens").to_pydict()
        stored = dict(zip(columns["token_id"], columns["text"], strict=True))
        return {token: stored[token] for token in wanted if token in stored}
    file = _tokenizer(task, dump)
    if file is None:
        return {}
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    texts = tokenizer.decode_batch([[token] for token in wanted], skip_special_tokens=False)
    return dict(zip(wanted, texts, strict=True))


def _tokenizer(task: Task, dump: Artifact) -> Path | None:
    """Return the file of the tokenizer of a target, or of a log's model; None if not at hand."""
    if task.runtime.models:
        (model,) = task.runtime.models
        path, commit = model.settings.path, model.identity.commit
    elif dump.facts.get("token_ids") == ENGINES_IDS:
        path = str(dump.facts["model"])
        commit = cached_commit(path, None, "model") if HUB_ID.fullmatch(path) else None
    else:
        return None
    try:
        folder = local_path(path)
        if folder is None and commit is not None:
            folder = hub_files(path, commit, [TOKENIZER], "target")
    except PipelineError:
        return None
    file = None if folder is None else folder / TOKENIZER
    return file if file is not None and file.is_file() else None
