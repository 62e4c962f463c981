"""Decodes prompts with every method, beside the target alone.

A shard is one prompt: the baseline and all methods decode it one after the other, so that what is
compared was timed in the same minute. Tokens, calls and nats given up are the artifact's content;
seconds are kept apart in timings/, which no digest covers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from analysis.trees.entropy import index_entropies
from pipeline.decoding.choices import Truncation
from pipeline.decoding.loop import Answer
from pipeline.decoding.pair import (
    DecodingPair,
    check_fits,
    compared,
    decode_timed,
    load_decoding_pair,
    nats_given_up,
    or_reason,
    read_again,
    read_both,
    run_facts,
)
from pipeline.errors import PipelineError
from pipeline.execution.shard_plan import Plan, Shard, ShardMeasured, at_most
from pipeline.execution.shards import write_tables
from pipeline.execution.stopwatch import describe_device
from pipeline.execution.workers import open_workers
from pipeline.formats import spec_bench
from pipeline.models.load import pair_tokenizer
from pipeline.models.logit_statistics import logit_statistics
from pipeline.models.prompt_tokens import encode
from pipeline.plan.method import RACES, SPECULATIVE, Method, baseline, with_baselines
from pipeline.stages.decoding import PASSES, RUN, STAGE
from pipeline.stages.decoding.batches import pass_rows
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.columns import schema
from pipeline.store.distributions import sibling_rates
from pipeline.store.node import Node

WARM_UP = 8  # tokens decoded before anything is timed
WIDEST = 64  # siblings of a tree whose acceptance is measured


def compute(node: Node, upstream: dict[str, list[Artifact]], pending: Pending) -> None:
    """Decode the first prompts with every method."""
    runs = with_baselines(with_measured_trees(node, upstream.get("drafts", [])).settings["methods"])
    tokenizer = pair_tokenizer(node.config, node.settings, f"targets.{node.label}")
    rows = first_rows(node, upstream)
    with open_workers(DecodingWorker, node, upstream) as workers:
        lengths = {row["prompt_id"]: 1 for row in rows}
        plan = Plan.open(pending, lengths, workers.cut)
        label = f"decoding {node.label}"
        workers.compute_unfinished(plan, steps=1, label=label, unit="prompt")
        facts = workers.facts(plan)
    shards = [json.loads(plan.file(shard).read_text()) for shard in plan.shards]
    of_prompts = [name for name in STAGE.columns if name != PASSES]
    write_tables(pending, STAGE.name, of_prompts, shards, node.label, "prompt")
    passes = pa.Table.from_pylist(facts.pop("passes"), schema=schema(STAGE.name, PASSES))
    pending.write(PASSES, passes)
    pending.facts |= facts | {"failed_prompts": pending.rows["failures"]}
    order = sorted(range(len(rows)), key=lambda at: rows[at]["source_row"])
    spec_bench.write_answers(
        pending.directory / "timings" / "answers",
        [f"{m.name} draft_length={m.draft_length} temperature={m.temperature:g}" for m in runs],
        [shards[at] for at in order],
        partial(tokenizer.decode, skip_special_tokens=True),
    )


def first_rows(node: Node, upstream: Mapping[str, Sequence[Artifact]]) -> list[dict[str, Any]]:
    """Return the first prompts."""
    found: list[dict[str, Any]] = (
        upstream["prompts"][0].read().slice(0, node.config["prompts"]).to_pylist()
    )
    return found


class DecodingWorker:
    """A target and its drafter, with all methods; see `pipeline.execution.workers.Worker`."""

    def __init__(self, node: Node, upstream: Mapping[str, Sequence[Artifact]]) -> None:
        """Load them, and decode a few tokens with every method."""
        self._prompts = upstream["prompts"][0].record["config"]
        self._rows = first_rows(node, upstream)
        self._turns = {row["prompt_id"]: at for at, row in enumerate(self._rows)}
        self._tokenizer = pair_tokenizer(node.config, node.settings, f"targets.{node.label}")
        self._pair = load_decoding_pair(
            with_measured_trees(node, upstream.get("drafts", [])),
            1 + max(self._tokenizer.get_vocab().values()),
            node.config["steps"],
        )
        self._batches, self._repeats = node.config["batches"], node.config.get("repeats", 1)
        self.device = self._pair.target.device
        warm_up(self._pair, self._rows)

    def cut(self, lengths: Sequence[int]) -> list[int]:
        """Return the sizes of the shards: a prompt each."""
        return at_most(1)(lengths)

    def compute(self, shard: Shard, path: Path, _: Callable[[int], object]) -> ShardMeasured:
        """Decode a prompt with every method, and the later turns of its conversation."""
        at = self._turns[shard.prompts[0]]
        found = decode_prompt(self._pair, self._rows[at], at, self._repeats)
        if self._rows[at]["later_turns"] and "data" in found:
            found |= self._later_turns(self._rows[at], found)
        path.write_text(json.dumps(found))
        return {}

    def _later_turns(
        self, prompt: Mapping[str, Any], shard: Mapping[str, Any]
    ) -> dict[str, list[Any]]:
        """Return what answer files hold of a prompt's later turns, run by run; no table has them.

        A conversation goes on from a run's own answer. A prompt of which one does not fit into a
        model's context has none of them.
        """
        pair, rows = self._pair, []

        def decode_all() -> bool:
            for run, data in enumerate(shard["data"]):
                said, tokens = [prompt["text"]], data["token_ids"]
                for number, turn in enumerate(prompt["later_turns"], start=2):
                    said += [self._tokenizer.decode(tokens, skip_special_tokens=True), turn]
                    thinking = self._prompts["enable_thinking"]
                    ids = encode(
                        self._tokenizer, said, self._prompts["template"], enable_thinking=thinking
                    )
                    name = f"{prompt['prompt_id']} turn {number}"  # its own sampling noise
                    row = {"prompt_id": name, "token_ids": ids}
                    check_fits(pair, row)
                    answer, _ = decode_timed(pair, pair.runs[run], row, pair.steps)
                    tokens, emitted = answer.tokens, [call.emitted for call in answer.calls]
                    rows.append({"run": run, "token_ids": tokens, "emitted": emitted,
                                 "seconds": answer.seconds})  # fmt: skip
            return True

        done, reason = or_reason(decode_all, self.device)
        if not done:
            prompt_id = prompt["prompt_id"]
            print(f"prompt {prompt_id}: answers hold its first turn only: {reason}", flush=True)
        return {"later turns": rows if done else []}

    def facts(self, _: Sequence[ShardMeasured]) -> dict[str, Any]:
        """Return the record's facts on the runs and the models, and the seconds of passes."""
        pair = self._pair
        models = (("target", pair.target), ("drafter", pair.drafter))
        return {
            "runs": [run_facts(method) for method in pair.runs],
            "bytes": {
                name: {"model": model.memory_bytes(), "cache_per_token": model.cache_bytes()}
                for name, model in models
            },
            **describe_device(self.device),
            "vocab_size": pair.target.vocab_size,
            "passes": pass_rows(pair, self._batches),
        }


def with_measured_trees(node: Node, drafts: Sequence[Artifact]) -> Node:
    """Return the node with methods whose trees all have a shape."""

    def known(method: Method) -> Method:
        if method.tree is None or not method.needs_drafts:
            return method
        most = method.tree.nodes or 0
        rates = sibling_rates(drafts[0], method, min(most, WIDEST))
        return replace(method, tree=method.tree.with_rates([*rates, *[0.0] * (most - len(rates))]))

    methods = [known(method) for method in node.settings["methods"]]
    return replace(node, settings={**node.settings, "methods": methods})


def warm_up(pair: DecodingPair, rows: list[dict[str, Any]]) -> None:
    """Decode a few tokens with every method, so that no first call is timed."""

    def warm(row: dict[str, Any]) -> bool:
        check_fits(pair, row)
        for method in pair.runs:
            decode_timed(pair, method, row, WARM_UP)
        return True

    reasons = []
    for row in rows:
        done, reason = or_reason(partial(warm, row), pair.target.device)
        if done:
            return
        reasons.append(reason)
    raise PipelineError(f"no prompt can be decoded: {reasons[0]}")


def decode_prompt(
    pair: DecodingPair, row: dict[str, Any], turn: int, repeats: int = 1
) -> dict[str, Any]:
    """Decode one prompt with every method; a prompt that fails is recorded with its reason.

    Every prompt, and every repeat, begins with another method, so that none gains from its place.
    """

    def decode_all() -> dict[str, Any]:
        check_fits(pair, row)
        tries: list[list[tuple[Answer, int | None]]] = [[] for _ in pair.runs]
        for repeat in range(repeats):
            for at in range(len(pair.runs)):
                index = (at + turn + repeat) % len(pair.runs)
                tries[index].append(decode_timed(pair, pair.runs[index], row, pair.steps))
        return prompt_rows(pair, row, tries)

    rows, reason = or_reason(decode_all, pair.target.device)
    return rows or {"failures": [{"prompt_id": row["prompt_id"], "reason": reason}]}


def prompt_rows(
    pair: DecodingPair, prompt: dict[str, Any], tries: Sequence[Sequence[tuple[Answer, int | None]]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a prompt by table; nothing in here is timed.

    `tries` are the repeats of each run, with the peak of CUDA memory. All emit the same tokens; the
    seconds of calls are of the repeat of middle seconds.
    """
    in_order = [sorted((one for one, _ in of), key=lambda one: one.seconds) for of in tries]
    answers = [repeats[len(repeats) // 2] for repeats in in_order]
    names = ("data", "calls", "levels", "timings/runs", "timings/calls")
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    alone = {
        run: answer.tokens
        for run, answer in zip(pair.runs, answers, strict=True)
        if run.drafter == "none"
    }
    given_up: dict[tuple[int, ...], float] = {}
    for at, (run, answer) in enumerate(zip(pair.runs, answers, strict=True)):
        key = {"prompt_id": prompt["prompt_id"], "run": at}
        tokens = tuple(answer.tokens)
        if tokens not in given_up:
            logits = read_again(pair.target, prompt["token_ids"], tokens)
            given_up[tokens] = float(nats_given_up(logits, tokens).sum())
        rows["data"].append(
            {
                **key,
                "source": prompt["source"],
                "method": run.name,
                **attributes(run, "drafter", "draft_length", "temperature"),
                "token_ids": answer.tokens,
                "n_tokens": len(tokens),
                "text_tokens": len(prompt["token_ids"]) + len(tokens),
                "ended": answer.ended,
                "nats_given_up": given_up[tokens],
                **compared(answer.tokens, alone[baseline(run)]),
            }
        )
        rows["timings/runs"] += [
            key
            | attributes(repeat, "first_seconds", "begin_seconds", "seconds")
            | {"peak_bytes": peak}  # None but on CUDA, where the thread waits for the device
            | {"processor_seconds": repeat.processor_seconds if peak is None else None}
            for repeat, peak in tries[at]
        ]
        for call in answer.calls:
            for name in ("calls", "timings/calls"):
                own = [column for column in STAGE.columns[name] if column not in RUN]
                rows[name].append(key | attributes(call, *own))
            rows["levels"] += [
                key | {"position": call.position, "level": level, "children": n, "accepted": taken}
                for level, (n, taken) in enumerate(call.levels if run.tree else (), start=1)
            ]
    greedy = next((tokens for run, tokens in alone.items() if run.temperature == 0), None)
    if greedy is not None:
        rows["trajectory"] = trajectory(pair, prompt, greedy)
    rows["contexts"] = [
        row for run in drawn_baselines(pair.runs) for row in contexts(pair, prompt, run, alone[run])
    ]
    return rows


def attributes(source: object, *names: str) -> dict[str, Any]:
    """Return some attributes by name."""
    return {name: getattr(source, name) for name in names}


def trajectory(pair: DecodingPair, prompt: dict[str, Any], answer: Sequence[int]) -> list[Any]:
    """Return what the drafter would draft at every step of the greedy baseline's answer."""
    logits, drafts = read_both(pair, prompt["token_ids"], answer)
    token = drafts.argmax(1)
    found, mine = logit_statistics(logits, 2), logits.gather(1, token[:, None])
    before = torch.arange(logits.shape[1], device=logits.device) < token[:, None]
    ahead = ((logits > mine) | ((logits == mine) & before)).sum(1)
    below = (mine[:, 0].double() - found["top_logits"][:, 0]) - found["top_surprisal"]
    columns = {
        "position": range(len(answer)),
        "token_id": answer,
        "draft_token_id": token.tolist(),
        "draft_rank": (1 + ahead).tolist(),
        "draft_log_prob": below.tolist(),
        "z1": found["top_logits"][:, 0].tolist(),
        "z2": found["top_logits"][:, 1].tolist(),
        "top_surprisal": found["top_surprisal"].tolist(),
    }
    return [
        {"prompt_id": prompt["prompt_id"], **dict(zip(columns, row, strict=True))}
        for row in zip(*columns.values(), strict=True)
    ]


def drawn_baselines(runs: Sequence[Method]) -> list[Method]:
    """Return the baselines at whose temperatures and cuts trees are drafted by draws or races."""
    found: dict[tuple[float, float, int], Method] = {}
    for run in runs:
        found.setdefault((run.temperature, run.top_p, run.top_k), run)  # baselines come first
    return list(
        dict.fromkeys(
            found[run.temperature, run.top_p, run.top_k]
            for run in runs
            if run.tree is not None and run.sampling in (SPECULATIVE, RACES)
        )
    )


def contexts(
    pair: DecodingPair, prompt: dict[str, Any], run: Method, answer: Sequence[int]
) -> list[dict[str, Any]]:
    """Return KL and H[R] at every token of an answer of the target alone."""
    kept = Truncation(run.top_p, run.top_k)
    both = read_both(pair, prompt["token_ids"], answer)
    laws = [kept.tempered(logits, run.temperature).log_softmax(1).cpu().numpy() for logits in both]
    names = ("kl", "greedy_entropy", "races_entropy")
    key = {"prompt_id": prompt["prompt_id"], "run": pair.runs.index(run)}
    return [
        key | {"position": at, **dict(zip(names, index_entropies(p, q), strict=True))}
        for at, (p, q) in enumerate(zip(*laws, strict=True))
    ]
