"""What decoding and its report read from artifacts: decoded answers, and acceptance of siblings.

Acceptance of siblings, R, on the text of stage drafts gives optimal trees their shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.decoding.metrics import Decoded
from analysis.decoding.paired_accuracy import Answered
from analysis.rules import Mars
from analysis.topk import Floats
from analysis.trees.sibling_rates import StoredTokens, aligned, drawn_rates, greedy_rates
from pipeline.core.columns import numbers
from pipeline.core.stage import Artifact, Json
from pipeline.inputs.artifact_readers import MOMENTS, TOKENS
from pipeline.settings.methods import RACES, SPECULATIVE, Method, read_method

RUN = (  # fields of a method
    *("drafter", "draft_length", "sampling", "rule", "temperature"),
    *("lossless", "tree", "scheme"),
)
STEPS = 4096  # of a text, at most, of which rates of siblings are computed: evenly spread over it
WIDEST = 64  # siblings of a tree whose acceptance is measured


def read_decoded(target: str, drafter: str, artifact: Artifact) -> Decoded:
    """Read the decoded answers of a target with a drafter, both given by their printed names."""
    metadata = artifact.metadata
    methods = [read_method(run) for run in metadata["runs"]]
    rules = {method.rule.label: method.rule for method in methods if method.rule is not None}
    printed: dict[str, Any] = {
        "rule": [None if method.rule is None else method.rule.label for method in methods],
        "tree": [run.get("shape") for run in metadata["runs"]],
    }
    files = {
        "answers": "data",
        "answer_seconds": "timings/runs",
        "call_seconds": "timings/calls",
        "passes": "timings/passes",
        **{name: name for name in ("calls", "trajectory", "levels", "contexts")},
    }
    tables = {name: artifact.read(file).to_pandas() for name, file in files.items()}
    return Decoded(
        target,
        drafter,
        _runs(methods, *RUN).assign(**printed),
        size=metadata["bytes"],
        rules=rules,
        vocabulary=metadata["vocab_size"],
        **tables,
    )


def _runs(methods: Sequence[Method], *names: str) -> pd.DataFrame:
    columns = {name: [getattr(method, name) for method in methods] for name in names}
    return pd.DataFrame({"method": [method.title for method in methods], **columns})


def thetas(decoded: Decoded) -> list[float]:
    """Return MARS's threshold of every run that drafts with the model, NaN of any other."""
    rules = map(decoded.rules.get, decoded.runs["rule"])
    return [
        rule.theta if isinstance(rule, Mars) and drafter == "model" else math.nan
        for rule, drafter in zip(rules, decoded.runs["drafter"], strict=True)
    ]


def read_answered(target: str, artifact: Artifact) -> Answered:
    """Read the answers of a target, given by its printed name."""
    metadata = artifact.metadata
    methods = [read_method(run) for run in metadata["runs"]]
    more: dict[str, Any] = {
        "baseline": [run["baseline"] for run in metadata["runs"]],
        "rule": [method.rule for method in methods],
        "exact": [method.lossless and method.sampling != SPECULATIVE for method in methods],
    }
    return Answered(
        target,
        metadata["tasks"],
        _runs(methods, "drafter", "draft_length", "temperature").assign(**more),
        artifact.read().to_pandas().drop(columns=["token_ids", "method", "drafter"]),
        seconds=artifact.read("timings/runs").to_pandas(),
    )


def with_measured_trees(methods: Sequence[Method], drafts: Artifact | None) -> tuple[Method, ...]:
    """Return the methods, with trees that all have a shape."""

    def shaped(method: Method) -> Method:
        if method.tree is None or drafts is None or not method.needs_drafts:
            return method
        most = method.tree.nodes or 0
        rates = sibling_rates(drafts, method, min(most, WIDEST)).tolist()
        acceptance = (*rates, *[0.0] * (most - len(rates)))
        return replace(method, tree=replace(method.tree, acceptance=acceptance))

    return tuple(map(shaped, methods))


def sibling_rates(artifact: Artifact, method: Method, count: int) -> Floats:
    """Return (count,) R(1), R(2), ... of the drafts of `method` on the text of stage drafts."""
    if method.temperature == 0:
        ranks = numbers(artifact.read(columns=["argmax_rank"])["argmax_rank"])
        return greedy_rates(ranks, count)
    metadata = artifact.metadata
    names = (*TOKENS, *MOMENTS[:2])
    table = artifact.read(columns=[*names, *(f"draft_{name}" for name in names)])
    steps = np.unique(np.linspace(0, len(table) - 1, STEPS).astype(np.intp))
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
    """Return the stored tokens of a model at a temperature, as if all others were equally probable.

    At the temperature of the artifact their mass is exact, at a lower one a little too small.
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
