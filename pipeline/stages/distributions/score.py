"""Reads answers that an engine served with the target: the distributions along them, and drift."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from analysis.statistics.drift import ANOTHER, compare_texts, drift, gaps, said
from pipeline.errors import PipelineError
from pipeline.execution.stopwatch import Stopwatch
from pipeline.models.devices import in_threads
from pipeline.models.language_model import LanguageModel
from pipeline.models.logit_statistics import Found
from pipeline.models.passes import HELD, Batch, Texts, joined
from pipeline.stages.distributions.decode import stored_statistics
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.columns import numbers
from pipeline.store.node import Node

ROWS = 8192  # of a chunk in which drift is read


def served_answers(node: Node, source: Artifact) -> dict[str, list[int]]:
    """Return the first `distributions.steps` tokens of every answer.

    Raises:
        PipelineError: the requests say that they were sampled otherwise than the configuration.
    """
    for option, values in source.record["facts"]["sampling"].items():
        wanted = node.config[option]
        other = [value for value in values if max(value, 0) != wanted]  # top_k -1 is all, too
        if other:
            raise PipelineError(
                f"distributions.{option}={wanted:g} is not how the answers were sampled: requests "
                f"have {option} {', '.join(f'{value:g}' for value in other)}. Give "
                f"distributions.{option}={other[0]:g}, or only the answers that were sampled so"
            )
    table = source.read("answers").to_pydict()
    pairs = zip(table["prompt_id"], table["token_ids"], strict=True)
    return {name: ids[: node.config["steps"]] for name, ids in pairs}


@torch.inference_mode()
def score_batch(
    model: LanguageModel,
    prompts: list[list[int]],
    answers: list[list[int]],
    asked: Mapping[str, Any],
    watch: Stopwatch,
    progress: Callable[[int], object],
) -> Found:
    """Return what `decode_batch` returns, of given answers: one teacher-forced pass of blocks."""
    batch = Batch.make(prompts, answers, model.device)
    texts = Texts(model, batch.ids.shape[1], padding=batch.padding)
    k, parts = min(asked["k"], model.vocab_size), []

    def statistics(logits: torch.Tensor) -> Found:
        found = joined(
            in_threads(
                lambda rows: stored_statistics(logits[rows], k, asked["temperatures"]),
                len(logits),
                logits.device,
            )
        )
        return {name: tensor.unflatten(0, (len(answers), -1)) for name, tensor in found.items()}

    for begin, end, steps in batch.blocks(HELD[model.device.type], model.vocab_size):
        with watch("decode" if steps else "prefill"):
            logits = texts.read(batch.ids[:, begin:end], max(steps, 1))
        if steps:
            with watch("statistics"):
                parts.append(statistics(logits.flatten(0, 1)))
            progress(steps * len(answers))
    own = {"token_id": batch.ids[:, batch.width :].int(), "lengths": batch.lengths}
    return joined(parts, dim=1) | own


def tell_drift(node: Node, source: Artifact, pending: Pending) -> dict[str, Any]:
    """Return, and print, how far greedy answers are from the target's own, file by file.

    And where the answers of two files to the same prompts part.
    """
    if node.config["temperature"] > 0:
        return {}
    names: list[str] = []
    found: list[tuple[np.ndarray, ...]] = []
    asked = ["prompt_id", "token_id", "top_ids", "top_logits"]
    for chunk in pq.ParquetFile(pending.directory / "data.parquet").iter_batches(
        ROWS, columns=asked
    ):
        names += chunk["prompt_id"].to_pylist()
        token, ids, logits = (numbers(chunk[name]) for name in asked[1:])
        found.append((token, *gaps(token, ids, logits)))
    token, gap, margin = map(np.concatenate, zip(*found, strict=True))
    prompts = source.read(columns=["prompt_id", "source", "token_ids"]).to_pylist()
    file_of = {row["prompt_id"]: row["source"] for row in prompts}
    files = np.array([file_of[name] for name in names])
    facts: dict[str, Any] = {}
    for file in dict.fromkeys(file_of.values()):
        facts[file] = drift(gap[files == file], margin[files == file])
        print(f"distributions {node.label}: {file}: {said(facts[file])}", flush=True)
        if facts[file]["share"] > ANOTHER:
            print(
                f"distributions {node.label}: {file}: at this share the answers are those of "
                "another model, of another chat template, or sampled: certificates along them "
                "hold, but are not those of what was served",
                flush=True,
            )
    if len(facts) > 1:
        places = {name: slice(begin, end) for name, begin, end in _runs(names)}
        texts: dict[str, dict[tuple[int, ...], slice]] = {file: {} for file in facts}
        for row in prompts:
            texts[row["source"]].setdefault(tuple(row["token_ids"]), places[row["prompt_id"]])
        first, *others = facts
        for other in others:
            both = [(texts[first][ids], texts[other][ids]) for ids in texts[first]
                    if ids in texts[other]]  # fmt: skip
            pair = compare_texts(token, gap, both)
            facts[f"{first} and {other}"] = pair
            print(f"distributions {node.label}: {first} and {other}: {said(pair)}", flush=True)
    return facts


def _runs(names: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return each name with the begin and the end of its rows, which lie together."""
    starts = [at for at, name in enumerate(names) if not at or name != names[at - 1]]
    return [(names[a], a, b) for a, b in zip(starts, [*starts[1:], len(names)], strict=True)]
