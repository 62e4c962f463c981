"""Drift of served answers: how far the engine's model is from the one that scores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from analysis.statistics.drift import (
    ANOTHER,
    compare_texts,
    drift,
    drift_in_words,
    gaps,
    log_prob_differences,
    log_prob_drift,
)
from pipeline.plan.specs import DistributionsSpec
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.columns import numbers
from pipeline.store.node import Node

ROWS = 8192  # of a chunk of steps
COLUMNS = ("token_id", "top_ids", "top_logits", "logsumexp")
Drifts = dict[str, dict[str, Any]]  # by file
Listed = tuple[np.ndarray, np.ndarray, np.ndarray]  # step, token, log-probability; by step


def drifts_of(node: Node[DistributionsSpec], source: Artifact, pending: Pending) -> Drifts:
    """Return, and print, how far greedy answers are from the target's own, file by file.

    And where the answers of two files to the same prompts differ. Empty for sampled answers.
    """
    if node.spec.temperature > 0:
        return {}
    data = pq.ParquetFile(pending.directory / "data.parquet")
    names = data.read(["prompt_id"])["prompt_id"].to_pylist()
    places = {name: slice(begin, end) for name, begin, end in _runs(names)}
    token, gap, margin, stored, steps, differences = _measured(data, _listed(source, places))
    prompts = source.read(columns=["prompt_id", "source", "token_ids"]).to_pylist()
    file_of = {row["prompt_id"]: row["source"] for row in prompts}
    files = np.array([file_of[name] for name in names])
    facts: Drifts = {}
    for file in dict.fromkeys(file_of.values()):
        facts[file] = drift(*(column[files == file] for column in (gap, margin, stored)))
        facts[file] |= log_prob_drift(differences[files[steps] == file])
        print(f"distributions {node.label}: {file}: {drift_in_words(facts[file])}", flush=True)
        if facts[file]["share"] > ANOTHER:
            print(
                f"distributions {node.label}: {file}: at this share the answers are those of "
                "another model, of another chat template, or sampled: certificates along them "
                "hold, but are not those of what was served",
                flush=True,
            )
    if len(facts) > 1:
        texts: dict[str, dict[tuple[int, ...], slice]] = {file: {} for file in facts}
        for row in prompts:
            texts[row["source"]].setdefault(tuple(row["token_ids"]), places[row["prompt_id"]])
        first, *others = facts
        for other in others:
            both = [(texts[first][ids], texts[other][ids]) for ids in texts[first]
                    if ids in texts[other]]  # fmt: skip
            pair = compare_texts(token, gap, stored, both)
            facts[f"{first} and {other}"] = pair
            print(
                f"distributions {node.label}: {first} and {other}: {drift_in_words(pair)}",
                flush=True,
            )
    return facts


def _listed(source: Artifact, places: Mapping[str, slice]) -> Listed:
    """Return the log-probabilities in the files, of the steps that were scored."""
    if "log_probs.parquet" not in source.record.files:
        return np.empty(0, int), np.empty(0, int), np.empty(0)
    table = source.read("log_probs").combine_chunks()
    names = table["prompt_id"].combine_chunks().dictionary_encode()
    own = [places[name] for name in names.dictionary.to_pylist()]
    at, position = numbers(names.indices), numbers(table["position"])
    step = np.array([place.start for place in own])[at] + position
    scored = step < np.array([place.stop for place in own])[at]
    columns = step, numbers(table["token_id"]), numbers(table["log_prob"])
    order = np.argsort(step[scored], kind="stable")
    step, token, value = (column[scored][order] for column in columns)
    return step, token, value


def _measured(data: pq.ParquetFile, listed: Listed) -> Sequence[np.ndarray]:
    """Return each step's token and `gaps`; and each difference, with its step before it."""
    parts: list[tuple[np.ndarray, ...]] = []
    begin = 0
    for chunk in data.iter_batches(ROWS, columns=list(COLUMNS)):
        token, ids, logits, logsumexp = (numbers(chunk[name]) for name in COLUMNS)
        inside = slice(*np.searchsorted(listed[0], [begin, begin + len(token)]))
        steps, tokens, values = (column[inside] for column in listed)
        log_probs = logits.astype(np.float64) - logsumexp[:, None]
        stored, difference = log_prob_differences(steps - begin, tokens, values, ids, log_probs)
        parts.append((token, *gaps(token, ids, logits), steps[stored], difference))
        begin += len(token)
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _runs(names: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return each name with the begin and the end of its rows, which lie together."""
    starts = [at for at, name in enumerate(names) if not at or name != names[at - 1]]
    return [(names[a], a, b) for a, b in zip(starts, [*starts[1:], len(names)], strict=True)]
