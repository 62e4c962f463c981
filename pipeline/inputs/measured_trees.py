"""Optimal draft trees, from the measured acceptance rates of siblings.

The rates R(1), R(2), ... are measured on the text of stage drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from analysis.topk import Floats
from analysis.trees.sibling_rates import StoredTokens, aligned, drawn_rates, greedy_rates
from pipeline.core.columns import numbers
from pipeline.core.stage import Artifact, Json
from pipeline.inputs.artifact_readers import MOMENTS, TOKENS
from pipeline.settings.methods import RACES, Method

MAX_STEPS = 4096  # on which rates are measured, spread evenly over the text
MAX_SIBLINGS = 64  # whose rates are measured


def with_measured_trees(methods: Sequence[Method], drafts: Artifact | None) -> tuple[Method, ...]:
    """Return the methods; a tree whose shape depends on acceptance rates gets the measured ones."""

    def shaped(method: Method) -> Method:
        if method.tree is None or drafts is None or not method.needs_drafts:
            return method
        most = method.tree.nodes or 0
        rates = sibling_rates(drafts, method, min(most, MAX_SIBLINGS)).tolist()
        acceptance = (*rates, *[0.0] * (most - len(rates)))
        return replace(method, tree=replace(method.tree, acceptance=acceptance))

    return tuple(map(shaped, methods))


def sibling_rates(artifact: Artifact, method: Method, count: int) -> Floats:
    """Return (count,) R(1), R(2), ...: the rates at which the siblings of a draft are accepted."""
    if method.temperature == 0:
        ranks = numbers(artifact.read(columns=["argmax_rank"])["argmax_rank"])
        return greedy_rates(ranks, count)
    metadata = artifact.metadata
    names = (*TOKENS, *MOMENTS[:2])
    table = artifact.read(columns=[*names, *(f"draft_{name}" for name in names)])
    steps = np.unique(np.linspace(0, len(table) - 1, MAX_STEPS).astype(np.intp))
    table = table.take(pa.array(steps))
    pair = [_stored(table, prefix, metadata, method.temperature) for prefix in ("", "draft_")]
    p, q = aligned(*pair)
    if method.drafts_most_probable:  # the drafter's tokens come first, by decreasing q
        rates = p[:, : min(count, pair[1][0].shape[1])].mean(axis=0)
    else:
        times = np.random.default_rng(0).exponential(size=p.shape)
        rates = drawn_rates(p, q, times, count, method.sampling == RACES) / len(p)
    return np.pad(rates, (0, count - len(rates)))


def _stored(table: pa.Table, prefix: str, metadata: Json, temperature: float) -> StoredTokens:
    """Return a model's stored tokens at a temperature, as if all others were equally probable.

    The mass of the others is exact at the artifact's temperature, a little too small at a lower
    one.
    """
    ids, logits, surprisal, log_tail = (
        numbers(table[prefix + name]) for name in (*TOKENS, *MOMENTS[:2])
    )
    below = logits.astype(np.float64) - logits[:, :1]
    others = metadata["vocab_size"] - ids.shape[1]
    if others == 0:
        return ids, np.exp(below / temperature), np.zeros(len(ids))
    mean = metadata["certified_temperature"] * (log_tail + surprisal - np.log(others))  # of a logit
    tail = others * np.exp(mean / temperature)
    return ids, np.exp(below / temperature), tail
