"""Acceptance over sibling indices of a method, from an artifact of stage drafts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.trees.acceptance import Stored, aligned, drawn_rates, greedy_rates
from analysis.trees.topology import Floats
from pipeline.plan.method import RACES, Method
from pipeline.store.artifacts import Artifact
from pipeline.store.columns import numbers

STEPS = 4096  # of the text, at most: evenly spread over it
NAMES = ("top_ids", "top_logits", "top_surprisal", "log_tail")
CHUNK = 1 << 22  # numbers of a table of whole vocabularies


def sibling_rates(artifact: Artifact, method: Method, count: int) -> Floats:
    """Return (count,) R(1), R(2), ... of the drafts of `method` on the text of stage drafts."""
    if method.temperature == 0:
        ranks = artifact.read(columns=["argmax_rank"])["argmax_rank"].to_numpy()
        return greedy_rates(ranks, count)
    steps, target, draft = stored_pair(artifact, STEPS, method.temperature)
    target, draft = (one.truncated(method.top_p, method.top_k) for one in (target, draft))
    size = artifact.record["facts"]["vocab_size"]
    generator = np.random.default_rng(0)
    sums = np.zeros(count)
    rows = max(1, CHUNK // size)
    for start in range(0, len(steps), rows):
        part = slice(start, start + rows)
        p, q = aligned(target.rows(part), draft.rows(part), size)
        times = generator.exponential(size=p.shape)
        found = drawn_rates(p, q, times, count, method.sampling == RACES)
        sums[: len(found)] += found
    return sums / len(steps)


def stored_pair(
    artifact: Artifact, most: int, temperature: float
) -> tuple[NDArray[np.intp], Stored, Stored]:
    """Return steps of the text, evenly spread, and what is stored there of target and draft."""
    facts = artifact.record["facts"]
    table = artifact.read(columns=[*NAMES, *(f"draft_{name}" for name in NAMES)])
    steps = np.unique(np.linspace(0, len(table) - 1, most).astype(np.intp))
    table = table.take(pa.array(steps))
    target, draft = (
        _stored(table, prefix, facts["vocab_size"], facts["temperature"], temperature)
        for prefix in ("", "draft_")
    )
    return steps, target, draft


def _stored(table: pa.Table, prefix: str, size: int, known_at: float, temperature: float) -> Stored:
    """Return the stored tokens of a model at a temperature.

    What lies outside is known at the temperature of the artifact. At another the unstored tokens
    are taken to be equally probable, which makes them a little too improbable where it is lower.
    """
    ids, logits, surprisal, log_tail = (numbers(table[prefix + name]) for name in NAMES)
    below = logits.astype(np.float64) - logits[:, :1]
    others = size - ids.shape[1]
    if others == 0:
        return Stored(ids, np.exp(below / temperature), np.zeros(len(ids)))
    each = known_at * (log_tail + surprisal - np.log(others))  # its logit, less the largest
    tail = others * np.exp(np.minimum(each, below[:, -1]) / temperature)
    return Stored(ids, np.exp(below / temperature), tail)
