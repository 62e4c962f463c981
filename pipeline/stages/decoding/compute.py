"""Decodes prompts with every method, beside the target alone.

A shard is one
prompt: the baseline and all methods decode it one after the other, so that what is compared was
timed in the same minute. Tokens, calls and log-likelihoods are the artifact's content; seconds
are kept apart in timings/, which no digest covers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.decoding.loop import Answer
from pipeline.decoding.pair import (
    DecodingPair,
    attempt,
    check_fits,
    decode_timed,
    expect_texts,
    load_decoding_pair,
    run_facts,
    shape_facts,
)
from pipeline.decoding.reading import Reader
from pipeline.errors import PipelineError
from pipeline.execution.shard_plan import Plan, Shard, ShardMeasured, at_most
from pipeline.execution.shards import write_tables
from pipeline.execution.stopwatch import describe_device
from pipeline.execution.workers import open_workers
from pipeline.formats import spec_bench
from pipeline.models.load import pair_tokenizer
from pipeline.models.prompt_tokens import encode
from pipeline.plan.method import Method, with_baselines
from pipeline.stages.decoding import PASSES, STAGE, records
from pipeline.stages.decoding.batches import pass_rows
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.columns import schema
from pipeline.store.node import Node
from pipeline.store.siblings import sibling_rates

Decode = Callable[[int, dict[str, Any]], Answer]
WARM_UP = 8  # tokens decoded before anything is timed
WIDEST = 64  # siblings of a tree whose acceptance is measured


def compute(node: Node, upstream: dict[str, list[Artifact]], pending: Pending) -> None:
    """Decode the first prompts with every method."""
    runs = with_baselines(with_measured_trees(node, upstream.get("drafts", [])).settings["methods"])
    tokenizer = pair_tokenizer(node.config, node.settings, f"targets.{node.label}")
    rows = read_rows(node, upstream)
    with open_workers(open_decoder, node, upstream) as workers:
        plan = Plan.open(
            pending, {row["prompt_id"]: 1 for row in rows}, workers.cut, suffix=".json"
        )
        label = f"decoding {node.label}"
        workers.compute_unfinished(plan, steps=1, label=label, unit="prompt")
        facts = workers.facts(plan)
    shards = [json.loads(plan.file(shard).read_text()) for shard in plan.shards]
    of_prompts = [name for name in STAGE.columns if name != PASSES]
    write_tables(pending, STAGE.name, of_prompts, shards, node.label, "prompt")
    passes = pa.Table.from_pylist(facts.pop("passes"), schema=schema(STAGE.name, PASSES))
    pending.write(PASSES, passes)
    pending.facts |= facts | {"failed_prompts": pending.rows["failures"]}
    spec_bench.write_answers(
        pending.directory / "timings" / "answers",
        [run_name(method) for method in runs],
        in_order_of_source(rows, shards),
        lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
    )


def read_rows(node: Node, upstream: Mapping[str, Sequence[Artifact]]) -> list[dict[str, Any]]:
    """Return the first prompts."""
    found: list[dict[str, Any]] = (
        upstream["prompts"][0].read().slice(0, node.config["prompts"]).to_pylist()
    )
    return found


class Decoder:
    """A target and its drafter, with all methods; see `pipeline.execution.workers.Worker`."""

    def __init__(self, node: Node, upstream: Mapping[str, Sequence[Artifact]]) -> None:
        """Load them, and decode a few tokens with every method."""
        self._prompts = upstream["prompts"][0]
        self._rows = read_rows(node, upstream)
        self._turns = {row["prompt_id"]: at for at, row in enumerate(self._rows)}
        self._tokenizer = pair_tokenizer(node.config, node.settings, f"targets.{node.label}")
        drafts = upstream.get("drafts", [])
        self._pair = load_decoding_pair(
            with_measured_trees(node, drafts),
            1 + max(self._tokenizer.get_vocab().values()),
            node.config["steps"],
        )
        self._batches = node.config["batches"]
        self.device = self._pair.target.device
        warm_up(self._pair, self._rows)

    def cut(self, lengths: Sequence[int]) -> list[int]:
        """Return the sizes of the shards: a prompt each."""
        return at_most(1)(lengths)

    def compute(self, shard: Shard, path: Path, _: Callable[[int], object]) -> ShardMeasured:
        """Decode a prompt with every method, and the later turns of its conversation."""
        at = self._turns[shard.prompts[0]]
        row = self._rows[at]
        found = decode_prompt(self._pair, row, at)
        if row["later_turns"]:
            config = self._prompts.record["config"]
            found |= later_turns(self._pair, row, found, self._tokenizer, config)
        path.write_text(json.dumps(found))
        return {}

    def facts(self, _: Sequence[ShardMeasured]) -> dict[str, Any]:
        """Return what the record says of the runs and the models, and the seconds of passes."""
        passes = pass_rows(self._pair, self._batches)
        return decoding_facts(self._pair) | {"passes": passes}


def open_decoder(node: Node, upstream: Mapping[str, Sequence[Artifact]]) -> Decoder:
    """Load the pair of a node, and the prompts that it decodes."""
    return Decoder(node, upstream)


def with_measured_trees(node: Node, drafts: Sequence[Artifact]) -> Node:
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

    longest = max((len(row["token_ids"]) for row in rows), default=0) + pair.steps
    expect_texts(pair, int(min(longest, pair.target.context)))
    reasons = []
    for row in rows:
        _, reason = attempt(partial(warm, row), pair.target.device)
        if reason is None:
            return
        reasons.append(reason)
    raise PipelineError("no prompt can be decoded: " + reasons[0])


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
        reader = Reader(pair.target, pair.drafter, row["token_ids"])
        return records.shard(reader, row, pair.runs, ordered)

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


def decode_later_turns(
    prompt: Mapping[str, Any],
    answers: Sequence[Sequence[int]],
    decode: Decode,
    encode: Callable[[list[str]], list[int]],
    text: Callable[[Sequence[int]], str],
) -> list[dict[str, Any]]:
    """Return the later turns of a prompt, each run going on from its own answers.

    Args:
        prompt: its row: prompt_id, text, later_turns.
        answers: the tokens with which each run answered the first turn.
        decode: decodes a prompt (prompt_id and token_ids) with a run, by its index.
        encode: turns a conversation into tokens.
        text: turns tokens into text.

    Raises:
        PipelineError: a conversation does not fit into a model's context.
    """
    rows = []
    for run, first in enumerate(answers):
        said, tokens = [prompt["text"]], first
        for number, turn in enumerate(prompt["later_turns"], start=2):
            said += [text(tokens), turn]
            name = f"{prompt['prompt_id']} turn {number}"  # its own sampling noise
            answer = decode(run, {"prompt_id": name, "token_ids": encode(said)})
            tokens = answer.tokens
            rows.append(
                {
                    "run": run,
                    "token_ids": answer.tokens,
                    "emitted": [call.emitted for call in answer.calls],
                    "seconds": answer.seconds,
                }
            )
    return rows


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
        **shape_facts(pair),
        **describe_device(pair.target.device),
    }


def run_name(method: Method) -> str:
    """Return the name of a run's answer file."""
    return f"{method.name} draft_length={method.draft_length} temperature={method.temperature:g}"
