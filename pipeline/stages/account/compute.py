"""Reads the answers of every item again, and counts what departs and what is certified.

A shard is one item. An answer that several methods gave is read once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.acceptance.realised import Steps, judge
from pipeline.decoding.pair import DecodingPair, load_decoding_pair
from pipeline.decoding.reading import read_both, steps_of
from pipeline.execution.shards import Plan, Shard, at_most, compute_unfinished, write_tables
from pipeline.models.pair import pair_tokenizer
from pipeline.plan.methods import Method, baseline
from pipeline.plan.stage import Node
from pipeline.stages.account import STAGE
from pipeline.store.artifacts import Artifact, Pending
from pipeline.tasks.questions import questions


def compute(node: Node, upstream: dict[str, list[Artifact]], pending: Pending) -> None:
    """Read the answers of an artifact of stage accuracy."""
    (answered,) = upstream["accuracy"]
    config = answered.record["config"]
    settings = node.settings
    tokenizer = pair_tokenizer(node.config, settings, f"targets.{node.label}")
    asked = questions(config, settings["tasks"], settings["include"], tokenizer)
    prompts = {(one.task, one.item_id): one.token_ids for one in asked}
    table = answered.read(columns=["task", "item_id", "run", "token_ids"]).to_pylist()
    items: dict[str, list[dict[str, Any]]] = {}
    for row in table:  # the runs of an item one after the other
        items.setdefault(f"{row['task']}/{row['item_id']}", []).append(row)
    both = replace(node, config={**node.config, "seed": config["seed"], "lookup": config["lookup"]})
    pair = load_decoding_pair(both, 1 + max(tokenizer.get_vocab().values()), 0)
    plan = Plan.open(pending, dict.fromkeys(items, 1), at_most(1), ".json")

    def account_shard(planned: Shard, path: Path, _: Callable[[int], object]) -> dict[str, Any]:
        rows = items[planned.prompts[0]]
        prompt = prompts[rows[0]["task"], rows[0]["item_id"]]
        found = account(pair, prompt, [row["token_ids"] for row in rows], node.config["stored"])
        keys = ("task", "item_id", "run")
        data = [{key: row[key] for key in keys} | one for row, one in zip(rows, found, strict=True)]
        path.write_text(json.dumps({"data": data}))
        return {}

    label, device = f"account {node.label}", pair.target.device
    compute_unfinished(plan, account_shard, steps=1, label=label, device=device, unit="item")
    shards = [json.loads(plan.file(shard).read_text()) for shard in plan.shards]
    write_tables(pending, STAGE.name, STAGE.columns, shards, node.label, "item")


def account(
    pair: DecodingPair, prompt: Sequence[int], answers: Sequence[Sequence[int]], stored: int
) -> list[dict[str, Any]]:
    """Return what both models say of the answers to one prompt, one of each run of the pair."""
    read: dict[tuple[int, ...], tuple[Steps, dict[str, Any]]] = {}
    for answer in answers:
        if tuple(answer) not in read:
            read[tuple(answer)] = _read(pair, prompt, answer, stored)
    rows = []
    for method, answer in zip(pair.runs, answers, strict=True):
        steps, counted = read[tuple(answer)]
        alone, _ = read[tuple(answers[pair.runs.index(baseline(method))])]
        rows.append(counted | _certified(method, steps, "") | _certified(method, alone, "_alone"))
    return rows


def _read(
    pair: DecodingPair, prompt: Sequence[int], answer: Sequence[int], stored: int
) -> tuple[Steps, dict[str, Any]]:
    """Return both models at the steps of an answer, and what does not depend on a rule."""
    logits, drafts = read_both(pair.target, pair.drafter, prompt, answer)
    exact = logits.double()
    chosen = exact.gather(1, logits.new_tensor(answer).long()[:, None])[:, 0]
    below = exact.amax(1) - chosen
    steps = steps_of(logits, drafts, stored)
    return steps, {
        "departures": int((below > 0).sum()),
        "conceded": float(below.sum()),
        "kl": float(np.mean(steps.kl)),
    }


def _certified(method: Method, steps: Steps, end: str) -> dict[str, Any]:
    """Return how many steps the method's rule certifies, and its mean certificate."""
    if method.rule is None or not method.uses_model or method.temperature > 0:
        return {f"certified{end}": None, f"certificate{end}": None}
    verdict = judge(steps, [method.rule])[0]
    capped = np.minimum(verdict.lower, method.rule.ceiling)
    return {
        f"certified{end}": int(verdict.certified.sum()),
        f"certificate{end}": float(capped.mean()),
    }
