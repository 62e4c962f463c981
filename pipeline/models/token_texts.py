"""The texts of tokens, from a tokenizer's file or as stored in artifacts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipeline.errors import PipelineError
from pipeline.plan.specs import DistributionsSpec
from pipeline.store.artifacts import Artifact
from pipeline.store.hub import hub_files
from pipeline.store.identity import local_path
from pipeline.store.node import Node

TOKENIZER = "tokenizer.json"


def token_texts(
    node: Node, dump: Artifact, drafts: Artifact | None, ids: Iterable[int]
) -> dict[int, str]:
    """Return the text of tokens by id, of those that are known.

    The target's tokenizer knows them all. Where it is not at hand any more, what the artifacts
    stored of the emitted tokens is taken.

    Args:
        node: of the target's distributions.
        dump: its artifact.
        drafts: that of stage drafts, where there is a drafter.
        ids: of the tokens.
    """
    wanted = sorted(set(ids))
    file = _tokenizer(node)
    if file is not None:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
        texts = tokenizer.decode_batch([[token] for token in wanted], skip_special_tokens=False)
        return dict(zip(wanted, texts, strict=True))
    for artifact in (dump, drafts):
        if artifact is not None and "tokens.parquet" in artifact.record.files:
            columns = artifact.read("tokens").to_pydict()
            stored = dict(zip(columns["token_id"], columns["text"], strict=True))
            return {token: stored[token] for token in wanted if token in stored}
    return {}


def _tokenizer(node: Node) -> Path | None:
    """Return the file of a target's tokenizer; None where it has none, or is not at hand."""
    spec = node.spec
    if not isinstance(spec, DistributionsSpec):  # of an engine's log there is none
        return None
    path = spec.model.settings.path
    try:
        place = local_path(path)
        if place is None:
            place = hub_files(path, spec.model.identity.commit, [TOKENIZER], "target")
    except PipelineError:
        return None
    file = place / TOKENIZER
    return file if file.is_file() else None
