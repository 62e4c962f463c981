"""Decodes prompts with every method, beside the target alone.

A shard is one
prompt: the baseline and all methods decode it one after the other, so that what is compared was
timed in the same minute. Tokens, calls and log-likelihoods are the artifact's content; seconds
are kept apart in timings/, which no digest covers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import torch

from analysis.rules import to_mapping
from pipeline.errors import PipelineError
from pipeline.execution.shards import Plan, Shard, compute_unfinished, out_of_memory
from pipeline.execution.stopwatch import describe_device
from pipeline.formats import spec_bench
from pipeline.models.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.pair import load_pair, pair_tokenizer
from pipeline.models.prompt_tokens import encode
from pipeline.models.vocabulary import common_rows
from pipeline.plan.methods import RACES, Method, with_baselines
from pipeline.plan.stage import Node, pair_label
from pipeline.stages.decoding import STAGE, records
from pipeline.stages.decoding.choices import TOKEN, Inversion, Noise
from pipeline.stages.decoding.drafters import (
    Drafter,
    LookupFirst,
    Nothing,
    PromptLookup,
    model_drafter,
)
from pipeline.stages.decoding.laws import laws
from pipeline.stages.decoding.loop import Answer, check_prompt, decode
from pipeline.stages.decoding.sequence import check_trees
from pipeline.stages.decoding.turns import decode_later_turns
from pipeline.stages.decoding.verifiers import Match, Verifier
from pipeline.store import columns
from pipeline.store.artifacts import Artifact, Pending

T = TypeVar("T")
WARM_UP = 8  # tokens decoded before anything is timed


@dataclass(frozen=True)
class DecodingPair:
    """A target, its drafter, and what both are asked to do."""

    target: LanguageModel
    drafter: LanguageModel | HiddenDrafter
    runs: list[Method]  # baselines first
    steps: int
    seed: int
    lookup: int


def compute(node: Node, upstream: dict[str, list[Artifact]], pending: Pending) -> None:
    """Decode the first prompts with every method."""
    config = node.config
    key = f"targets.{node.label}"
    tokenizer = pair_tokenizer(config, node.settings, key)
    pair = load_decoding_pair(node, 1 + max(tokenizer.get_vocab().values()))
    source = upstream["prompts"][0]
    rows = source.read().slice(0, config["prompts"]).to_pylist()
    warm_up(pair, rows)

    def later(row: dict[str, Any], shard: dict[str, Any]) -> dict[str, Any]:
        return later_turns(pair, row, shard, tokenizer, source.record["config"])

    shards = decode_prompts(pair, rows, pending, f"decoding {node.label}", later)
    write_tables(pending, shards, node)
    pending.facts |= decoding_facts(pair)
    spec_bench.write_answers(
        pending.directory / "timings" / "answers",
        [run_name(method) for method in pair.runs],
        in_order_of_source(rows, shards),
        lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
    )


def load_decoding_pair(node: Node, tokens: int) -> DecodingPair:
    """Load both models and cut their logits to the rows that both have."""
    config, settings = node.config, node.settings
    target, drafter = load_pair(config, settings, f"targets.{node.label}")
    rows = common_rows(target.vocab_size, drafter.vocab_size, tokens, pair_label(node))
    methods: list[Method] = settings["methods"]
    if any(method.tree is not None for method in methods):
        for model in (target, drafter):
            if isinstance(model, LanguageModel):  # a head reads with attention of its own
                check_trees(model)
    return DecodingPair(
        # reasons of failures are kept, and outlive the labels of today
        replace(target, vocab_size=rows, label="the target"),
        replace(drafter, vocab_size=rows, label="the drafter"),
        with_baselines(methods),
        config["steps"],
        config["seed"],
        config["lookup"],
    )


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


def attempt(work: Callable[[], T], device: torch.device) -> tuple[T | None, str | None]:
    """Return what `work` on a prompt gives, or the reason why it can't be done."""
    try:
        return work(), None
    except PipelineError as error:
        reason = str(error)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        reason = f"out of memory: {error}".splitlines()[0]
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return None, reason


def check_fits(pair: DecodingPair, row: Mapping[str, Any]) -> None:
    """Check that a prompt and its answer fit into the contexts of the models that decode it."""
    models = [pair.target]
    if isinstance(pair.drafter, LanguageModel) and any(run.uses_model for run in pair.runs):
        models.append(pair.drafter)
    for model in models:
        check_prompt(model, row["token_ids"], pair.steps)


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
    plan = Plan.open(pending, dict.fromkeys(turns, 1), lambda _: 1, ".json")

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
        return records.shard(pair.target, pair.drafter, row, pair.runs, ordered)

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


def decode_timed(
    pair: DecodingPair, method: Method, row: Mapping[str, Any], steps: int
) -> tuple[Answer, int | None]:
    """Decode one prompt with one method; return the answer and the peak of CUDA memory."""
    device = pair.target.device
    drafter, verifier = strategies(pair, method, row["prompt_id"], steps)
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    answer = decode(pair.target, drafter, verifier, row["token_ids"], method.draft_length, steps)
    return answer, torch.cuda.max_memory_allocated(device) if cuda else None


def strategies(
    pair: DecodingPair, method: Method, prompt_id: str, steps: int
) -> tuple[Drafter, Verifier]:
    """Return what drafts and what verifies under `method`."""
    device, tree = pair.target.device, method.topology
    noise = Noise(pair.seed, prompt_id, steps, device, method.draft_length)
    choice, verifier = laws(method, noise)
    if method.drafter == "none":
        drawn = method.temperature > 0 and method.sampling != RACES
        alone = Inversion(method.temperature, noise, TOKEN) if drawn else choice
        return Nothing(device), Match(alone)
    if method.drafter == "prompt_lookup":
        return PromptLookup(pair.lookup, device), verifier
    drafter = model_drafter(pair.drafter, choice, tree)
    if method.drafter == "lookup_first":
        drafter = LookupFirst(PromptLookup(pair.lookup, device, pair.lookup), drafter)
    return drafter, verifier


def write_tables(pending: Pending, shards: list[dict[str, Any]], node: Node) -> None:
    """Write the tables of the artifact from its shards, in the order of the prompts."""
    (pending.directory / "timings").mkdir(exist_ok=True)
    for name in STAGE.columns:
        rows = [row for shard in shards for row in shard.get(name, [])]
        pending.write(name, pa.Table.from_pylist(rows, schema=columns.schema(STAGE.name, name)))
    failed = pending.rows["failures"]
    if failed:
        first = next(shard["failures"][0]["reason"] for shard in shards if "failures" in shard)
        if failed == len(shards):
            raise PipelineError(
                f"decoding {node.label}: every prompt failed, the first with: {first}"
            )
        print(
            f"decoding {node.label}: {failed} of {len(shards)} prompts failed, the first with: "
            f"{first} (failures.parquet names them)",
            flush=True,
        )
    pending.facts["failed_prompts"] = failed


def decoding_facts(pair: DecodingPair) -> dict[str, Any]:
    """Return what the record says of the runs and the models."""
    return {
        "runs": [
            {
                "method": method.name,
                "drafter": method.drafter,
                "sampling": method.sampling,
                "rule": None if method.rule is None else to_mapping(method.rule),
                "lossless": method.lossless,
                "draft_length": method.draft_length,
                "temperature": method.temperature,
                **tree_facts(method),
            }
            for method in pair.runs
        ],
        "bytes": {
            name: {"model": model.memory_bytes(), "cache_per_token": model.cache_bytes()}
            for name, model in (("target", pair.target), ("drafter", pair.drafter))
        },
        **describe_device(pair.target.device),
    }


def tree_facts(method: Method) -> dict[str, Any]:
    """Return what the record says of the tree of a method; nothing of a chain."""
    if method.tree is None or method.topology is None:
        return {}
    return {"tree": {"shown": method.tree.shown, "parents": list(method.topology.parents)}}


def run_name(method: Method) -> str:
    """Return the name of a run's answer file."""
    return f"{method.name} draft_length={method.draft_length} temperature={method.temperature:g}"
