"""Decodes prompts with every method, beside the target alone.

A shard is one
prompt: the baseline and all methods decode it one after the other, so that what is compared was
timed in the same minute. Tokens, calls and log-likelihoods are the artifact's content; seconds
are kept apart in timings/, which no digest covers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.errors import PipelineError
from pipeline.execution.shards import Plan, Shard, at_most, compute_unfinished, write_tables
from pipeline.execution.stopwatch import describe_device
from pipeline.formats import spec_bench
from pipeline.models.pair import pair_tokenizer
from pipeline.models.prompt_tokens import encode
from pipeline.plan.methods import Method
from pipeline.plan.stage import Node
from pipeline.stages.decoding import PASSES, STAGE, records
from pipeline.stages.decoding.along import along
from pipeline.stages.decoding.batches import pass_rows
from pipeline.stages.decoding.loop import Answer
from pipeline.stages.decoding.pair import (
    DecodingPair,
    attempt,
    check_fits,
    decode_timed,
    load_decoding_pair,
    run_facts,
)
from pipeline.stages.decoding.stopping import stopping_facts
from pipeline.stages.decoding.turns import decode_later_turns
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.columns import schema
from pipeline.store.siblings import sibling_rates

WARM_UP = 8  # tokens decoded before anything is timed
WIDEST = 64  # siblings of a tree whose acceptance is measured


def compute(node: Node, upstream: dict[str, list[Artifact]], pending: Pending) -> None:
    """Decode the first prompts with every method."""
    config, node = node.config, with_measured_trees(node, upstream.get("drafts", []))
    key = f"targets.{node.label}"
    tokenizer = pair_tokenizer(config, node.settings, key)
    source = upstream["prompts"][0]
    rows = source.read().slice(0, config["prompts"]).to_pylist()
    pair = load_decoding_pair(
        node,
        1 + max(tokenizer.get_vocab().values()),
        config["steps"],
        upstream.get("drafts", []),
        [row["prompt_id"] for row in rows],
    )
    warm_up(pair, rows)

    def later(row: dict[str, Any], shard: dict[str, Any]) -> dict[str, Any]:
        return later_turns(pair, row, shard, tokenizer, source.record["config"])

    shards = decode_prompts(pair, rows, pending, f"decoding {node.label}", later)
    of_prompts = [name for name in STAGE.columns if name != PASSES]
    write_tables(pending, STAGE.name, of_prompts, shards, node.label, "prompt")
    passes, columns = pass_rows(pair, config["batches"]), schema(STAGE.name, PASSES)
    pending.write(PASSES, pa.Table.from_pylist(passes, schema=columns))
    pending.facts["failed_prompts"] = pending.rows["failures"]
    pending.facts |= decoding_facts(pair) | stopping_facts(pair.stops)
    spec_bench.write_answers(
        pending.directory / "timings" / "answers",
        [run_name(method) for method in pair.runs],
        in_order_of_source(rows, shards),
        lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
    )


def with_measured_trees(node: Node, drafts: list[Artifact]) -> Node:
    """Return the node with methods whose trees all have a shape.

    Raises:
        PipelineError: at the acceptance measured, no tree pays at its costs.
    """

    def known(method: Method) -> Method:
        if method.tree is None or not method.needs_drafts:
            return method
        most = method.tree.most_nodes
        rates = sibling_rates(drafts[0], method, min(most, WIDEST))
        tree = method.tree.with_rates([*rates, *[0.0] * (most - len(rates))])
        try:
            tree.topology(method.draft_length)
        except ValueError as error:
            raise PipelineError(f"decoding.methods, {method.name}: {error}") from error
        return replace(method, tree=tree)

    methods = [known(method) for method in node.settings["methods"]]
    return replace(node, settings={**node.settings, "methods": methods})


def warm_up(pair: DecodingPair, rows: list[dict[str, Any]]) -> None:
    """Decode a few tokens with every method, so that no first call is timed."""

    def warm(row: dict[str, Any]) -> None:
        check_fits(pair, row)
        for method in pair.runs:
            decode_timed(pair, method, row, WARM_UP)

    reasons = []
    for row in rows:
        _, reason = attempt(partial(warm, row), pair.target.device)
        if reason is None:
            return
        reasons.append(reason)
    raise PipelineError("no prompt can be decoded: " + reasons[0])


def decode_prompts(
    pair: DecodingPair,
    rows: list[dict[str, Any]],
    pending: Pending,
    label: str,
    later: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Decode every prompt, each a shard of its own; return their rows by table, in order.

    `later` gives what a shard holds of the turns after a prompt's first.
    """
    turns = {row["prompt_id"]: at for at, row in enumerate(rows)}
    plan = Plan.open(pending, dict.fromkeys(turns, 1), at_most(1), ".json")

    def decode_shard(planned: Shard, path: Path, _: Callable[[int], object]) -> dict[str, Any]:
        at = turns[planned.prompts[0]]
        shard = decode_prompt(pair, rows[at], at)
        if rows[at]["later_turns"]:
            shard |= later(rows[at], shard)
        path.write_text(json.dumps(shard))
        return {}

    device = pair.target.device
    compute_unfinished(plan, decode_shard, steps=1, label=label, device=device, unit="prompt")
    return [json.loads(plan.file(shard).read_text()) for shard in plan.shards]


def decode_prompt(pair: DecodingPair, row: dict[str, Any], turn: int) -> dict[str, Any]:
    """Decode one prompt with every method; a prompt that fails is recorded with its reason.

    Every prompt begins with another method, so that none gains from its place.
    """
    count = len(pair.runs)

    def decode_all() -> dict[str, Any]:
        check_fits(pair, row)
        answers: dict[int, tuple[Answer, int | None]] = {}
        for at in range(count):
            index = (at + turn) % count
            answers[index] = decode_timed(pair, pair.runs[index], row, pair.steps)
        ordered = [answers[index] for index in range(count)]
        found = records.shard(pair.target, pair.drafter, row, pair.runs, ordered)
        decoded = [answer for answer, _ in ordered]
        return found | {"along": along(pair.target, pair.drafter, row, pair.runs, decoded)}

    rows, reason = attempt(decode_all, pair.target.device)
    return rows or {"failures": [{"prompt_id": row["prompt_id"], "reason": reason}]}


def later_turns(
    pair: DecodingPair,
    row: dict[str, Any],
    shard: Mapping[str, Any],
    tokenizer: Any,
    prompts: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what the answer files hold of a prompt's later turns; no table has them.

    `prompts` is the configuration of the prompts: how a conversation becomes tokens.
    """

    def decode_turn(at: int, turn: dict[str, Any]) -> Answer:
        check_fits(pair, turn)
        return decode_timed(pair, pair.runs[at], turn, pair.steps)[0]

    def encode_turns(turns: list[str]) -> list[int]:
        thinking = prompts["enable_thinking"]
        return encode(tokenizer, turns, prompts["template"], enable_thinking=thinking)

    def decode_all() -> list[dict[str, Any]]:
        text = partial(tokenizer.decode, skip_special_tokens=True)
        answers = [data["token_ids"] for data in shard["data"]]
        return decode_later_turns(row, answers, decode_turn, encode_turns, text)

    if "data" not in shard:
        return {}
    rows, reason = attempt(decode_all, pair.target.device)
    if rows is None:
        print(f"prompt {row['prompt_id']}: answers hold its first turn only: {reason}", flush=True)
    return {"later turns": rows or []}


def in_order_of_source(
    rows: list[dict[str, Any]], shards: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the shards of `rows` in the order in which their rows stand in the source."""
    order = sorted(range(len(rows)), key=lambda at: rows[at]["source_row"])
    return [shards[at] for at in order]


def decoding_facts(pair: DecodingPair) -> dict[str, Any]:
    """Return what the record says of the runs and the models."""
    return {
        "runs": [run_facts(method) for method in pair.runs],
        "bytes": {
            name: {"model": model.memory_bytes(), "cache_per_token": model.cache_bytes()}
            for name, model in (("target", pair.target), ("drafter", pair.drafter))
        },
        **describe_device(pair.target.device),
    }


def run_name(method: Method) -> str:
    """Return the name of a run's answer file."""
    return f"{method.name} draft_length={method.draft_length} temperature={method.temperature:g}"
