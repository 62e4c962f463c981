"""Reads the steps of every target as the page takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.page.steps import TargetSteps
from analysis.statistics.bootstrap import Flags
from pipeline.store.artifacts import Artifact
from pipeline.store.distributions import words
from pipeline.store.node import Node

DRAFT = {  # of stage drafts, and their names here
    "kl": "kl",
    "draft_token_id": "token",
    "draft_top_surprisal": "q",
    "draft_log_prob": "p_draft",
}


def read_steps_shown(
    node: Node, targets: Sequence[Any], upstream: Mapping[str, list[Artifact]], drafted: bool
) -> Iterator[TargetSteps]:
    """Yield the steps of every target, and what its drafter says there.

    Args:
        node: of the report.
        targets: `pipeline.stages.report.inputs.Target` of each.
        upstream: artifacts by stage, in the order of the targets.
        drafted: whether a drafter was compared with them, step by step.
    """
    for at, (source, target) in enumerate(
        zip(node.upstream["distributions"], targets, strict=True)
    ):
        tokens = target.dump.read(columns=["token_id"])["token_id"].to_numpy()
        drafts = upstream["drafts"][at] if drafted else None
        draft, judged, ids = None, {}, [tokens, target.candidates.ravel()]
        if drafts is not None:
            draft, judged = read_draft(drafts), read_judged(upstream["acceptance"][at])
            ids.append(draft["token"].to_numpy())
        yield TargetSteps(
            target.label,
            {item.rule: item.lower for item in target.certificates},
            target.bootstrap,
            tokens,
            target.candidates,
            target.probabilities,
            read_prompts(target),
            words(source, target.dump, drafts, np.unique(np.concatenate(ids)).tolist()),
            draft,
            judged,
        )


def read_draft(drafts: Artifact) -> pd.DataFrame:
    """Read what a drafter says."""
    table = drafts.read(columns=list(DRAFT)).to_pandas().rename(columns=DRAFT)
    return table.assign(q=np.exp(-table["q"]), p_draft=np.exp(table["p_draft"]))


def read_judged(acceptance: Artifact) -> dict[str, tuple[Flags, Flags]]:
    """Return the (N,) steps that each rule, by label, accepted, and those it certified."""
    table = acceptance.read(columns=["rule", "accepted", "certified"])
    column = table["rule"].combine_chunks().dictionary_encode()
    at = column.indices.to_numpy()
    flags = [table[name].to_numpy() for name in ("accepted", "certified")]
    return {
        label: (flags[0][at == place], flags[1][at == place])
        for place, label in enumerate(column.dictionary.to_pylist())
    }


def read_prompts(target: Any) -> list[tuple[str, str]]:
    """Return the id and the text of each prompt, in the order of the steps."""
    table = target.prompts.read(columns=["prompt_id", "text"]).to_pydict()
    texts = dict(zip(table["prompt_id"], table["text"], strict=True))
    ids = target.dump.read(columns=["prompt_id"])["prompt_id"]
    first = np.cumsum(target.bootstrap.steps) - target.bootstrap.steps
    return [(name, texts[name]) for name in ids.take(first).to_pylist()]
