"""Decodes prompts with every method, beside the target alone.

A shard is one prompt: the baseline and all methods decode it one after the other, so that what is
compared was timed in the same minute. Tokens, calls and nats given up are the artifact's content;
seconds are kept apart in timings/, which no digest covers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from pipeline.decoding.loop import Answer
from pipeline.decoding.pair import (
    DecodingPair,
    Prompt,
    check_fits,
    compared,
    decode_timed,
    load_decoding_pair,
    nats_given_up,
    or_reason,
    read_again,
    run_facts,
)
from pipeline.errors import PipelineError
from pipeline.execution.shard_plan import Plan, Shard, ShardMeasured, at_most
from pipeline.execution.shards import write_tables
from pipeline.execution.stopwatch import describe_device
from pipeline.execution.workers import open_workers
from pipeline.formats import spec_bench
from pipeline.models.load import pair_tokenizer
from pipeline.models.prompt_tokens import encode
from pipeline.plan.method import baseline, with_baselines
from pipeline.plan.specs import DecodingSpec
from pipeline.stages.decoding import PASSES, RUN, STAGE
from pipeline.stages.decoding.along import contexts, drawn_baselines, trajectory
from pipeline.stages.decoding.batches import pass_rows
from pipeline.stages.decoding.rates import with_measured_trees
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.columns import Row, Tables, schema
from pipeline.store.node import Node
from pipeline.store.plain import Plain, from_plain, to_plain

WARM_UP = 8  # tokens decoded before anything is timed


Tries = list[list[tuple[Answer, int | None]]]  # of each run: an answer and its peak of memory


@dataclass(frozen=True)
class FirstTurn(Prompt):
    """A row of stage prompts: a prompt as the models read it, and its conversation."""

    source: str
    source_row: int
    text: str
    later_turns: list[str]


def compute(
    node: Node[DecodingSpec], upstream: dict[str, list[Artifact]], pending: Pending
) -> None:
    """Decode the first prompts with every method."""
    spec = with_measured_trees(node.spec, upstream.get("drafts", []))
    tokenizer = pair_tokenizer(spec.target, spec.drafter)
    prompts = first_prompts(spec, upstream)
    with open_workers(DecodingWorker, node, upstream) as workers:
        plan = Plan.open(pending, {prompt.prompt_id: 1 for prompt in prompts}, workers.cut)
        label = f"decoding {node.label}"
        workers.compute_unfinished(plan, steps=1, label=label, unit="prompt")
        facts = workers.facts(plan)
    shards = [json.loads(plan.file(shard).read_text()) for shard in plan.shards]
    of_prompts = [name for name in STAGE.columns if name != PASSES]
    write_tables(pending, STAGE.name, of_prompts, shards, label=node.label, unit="prompt")
    passes = pa.Table.from_pylist(facts.pop("passes"), schema=schema(STAGE.name, PASSES))
    pending.write(PASSES, passes)
    pending.facts |= facts | {"failed_prompts": pending.rows["failures"]}
    order = sorted(range(len(prompts)), key=lambda at: prompts[at].source_row)
    spec_bench.write_answers(
        pending.directory / "timings" / "answers",
        [
            f"{run.name} draft_length={run.draft_length} temperature={run.temperature:g}"
            for run in with_baselines(spec.methods)
        ],
        [shards[at] for at in order],
        partial(tokenizer.decode, skip_special_tokens=True),
    )


def first_prompts(
    spec: DecodingSpec, upstream: Mapping[str, Sequence[Artifact]]
) -> list[FirstTurn]:
    """Return the first prompts."""
    rows = upstream["prompts"][0].read().slice(0, spec.prompts).to_pylist()
    return [from_plain(FirstTurn, row) for row in rows]


class DecodingWorker:
    """A target and its drafter, with all methods; see `pipeline.execution.workers.Worker`."""

    def __init__(
        self, node: Node[DecodingSpec], upstream: Mapping[str, Sequence[Artifact]]
    ) -> None:
        """Load them, and decode a few tokens with every method."""
        self._spec = with_measured_trees(node.spec, upstream.get("drafts", []))
        self._template = node.upstream["prompts"][0].spec.settings
        self._prompts = first_prompts(self._spec, upstream)
        self._turns = {prompt.prompt_id: at for at, prompt in enumerate(self._prompts)}
        self._tokenizer = pair_tokenizer(self._spec.target, self._spec.drafter)
        self._pair = load_decoding_pair(
            self._spec, 1 + max(self._tokenizer.get_vocab().values()), self._spec.steps
        )
        self.device = self._pair.target.device
        warm_up(self._pair, self._prompts)

    def cut(self, lengths: Sequence[int]) -> list[int]:
        """Return the sizes of the shards: a prompt each."""
        return at_most(1)(lengths)

    def compute(self, shard: Shard, path: Path, _: Callable[[int], object]) -> ShardMeasured:
        """Decode a prompt with every method, and the later turns of its conversation."""
        at = self._turns[shard.prompts[0]]
        prompt = self._prompts[at]
        tables = decode_prompt(self._pair, prompt, at, self._spec.repeats)
        if prompt.later_turns and "data" in tables:
            tables["later turns"] = self._later_turns(prompt, tables["data"])
        path.write_text(json.dumps(tables))
        return {}

    def _later_turns(self, prompt: FirstTurn, answers: Sequence[Row]) -> list[Row]:
        """Return a prompt's later turns as answer files hold them, run by run; no table has them.

        A conversation goes on from a run's own answer. A prompt of which one does not fit into a
        model's context has none of them.
        """
        pair, template = self._pair, self._template
        turns: list[Row] = []

        def decode_all() -> bool:
            for run, data in enumerate(answers):
                texts, tokens = [prompt.text], data["token_ids"]
                for number, turn in enumerate(prompt.later_turns, start=2):
                    texts += [self._tokenizer.decode(tokens, skip_special_tokens=True), turn]
                    ids = encode(
                        self._tokenizer,
                        texts,
                        template.template,
                        enable_thinking=template.enable_thinking,
                    )
                    # its own sampling noise
                    later = Prompt(f"{prompt.prompt_id} turn {number}", ids)
                    check_fits(pair, later)
                    answer, _ = decode_timed(pair, pair.runs[run], later, pair.steps)
                    tokens, emitted = answer.tokens, [call.emitted for call in answer.calls]
                    made: Row = {"run": run, "token_ids": tokens, "emitted": emitted}
                    turns.append(made | {"seconds": answer.seconds})
            return True

        done, reason = or_reason(decode_all, self.device)
        if not done:
            name = prompt.prompt_id
            print(f"prompt {name}: answers hold its first turn only: {reason}", flush=True)
        return turns if done else []

    def facts(self, _: Sequence[ShardMeasured]) -> Plain:
        """Return the record's facts on the runs and the models, and the seconds of passes."""
        pair = self._pair
        models = (("target", pair.target), ("drafter", pair.drafter))
        return {
            "runs": [to_plain(run_facts(method)) for method in pair.runs],
            "bytes": {
                name: {"model": model.memory_bytes(), "cache_per_token": model.cache_bytes()}
                for name, model in models
            },
            **describe_device(self.device),
            "vocab_size": pair.target.vocab_size,
            "passes": pass_rows(pair, self._spec.batches),
        }


def warm_up(pair: DecodingPair, prompts: Sequence[Prompt]) -> None:
    """Decode a few tokens with every method, so that no first call is timed."""

    def warm(prompt: Prompt) -> bool:
        check_fits(pair, prompt)
        for method in pair.runs:
            decode_timed(pair, method, prompt, WARM_UP)
        return True

    reasons = []
    for prompt in prompts:
        done, reason = or_reason(partial(warm, prompt), pair.target.device)
        if done:
            return
        reasons.append(reason)
    raise PipelineError(f"no prompt can be decoded: {reasons[0]}")


def decode_prompt(pair: DecodingPair, prompt: FirstTurn, turn: int, repeats: int = 1) -> Tables:
    """Decode one prompt with every method; a prompt that fails is recorded with its reason.

    Every prompt, and every repeat, begins with another method, so that none gains from its place.
    """

    def decode_all() -> Tables:
        check_fits(pair, prompt)
        tries: Tries = [[] for _ in pair.runs]
        for repeat in range(repeats):
            for at in range(len(pair.runs)):
                index = (at + turn + repeat) % len(pair.runs)
                tries[index].append(decode_timed(pair, pair.runs[index], prompt, pair.steps))
        return prompt_rows(pair, prompt, tries)

    rows, reason = or_reason(decode_all, pair.target.device)
    return rows or {"failures": [{"prompt_id": prompt.prompt_id, "reason": reason}]}


def prompt_rows(pair: DecodingPair, prompt: FirstTurn, tries: Tries) -> Tables:
    """Return the rows of a prompt by table; nothing in here is timed.

    `tries` are the repeats of each run, with the peak of CUDA memory. All emit the same tokens; the
    seconds of calls are of the repeat of middle seconds.
    """
    in_order = [
        sorted((run_of for run_of, _ in of), key=lambda run_of: run_of.seconds) for of in tries
    ]
    answers = [repeats[len(repeats) // 2] for repeats in in_order]
    names = ("data", "calls", "levels", "timings/runs", "timings/calls")
    rows: Tables = {name: [] for name in names}
    alone = {
        run: answer.tokens
        for run, answer in zip(pair.runs, answers, strict=True)
        if run.drafter == "none"
    }
    given_up: dict[tuple[int, ...], float] = {}
    for at, (run, answer) in enumerate(zip(pair.runs, answers, strict=True)):
        key = {"prompt_id": prompt.prompt_id, "run": at}
        tokens = tuple(answer.tokens)
        if tokens not in given_up:
            logits = read_again(pair.target, prompt.token_ids, tokens)
            given_up[tokens] = float(nats_given_up(logits, tokens).sum())
        rows["data"].append(
            {
                **key,
                "source": prompt.source,
                "method": run.name,
                **attributes(run, "drafter", "draft_length", "temperature"),
                "token_ids": answer.tokens,
                "n_tokens": len(tokens),
                "text_tokens": len(prompt.token_ids) + len(tokens),
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


def attributes(source: object, *names: str) -> Row:
    """Return some attributes by name."""
    return {name: getattr(source, name) for name in names}
