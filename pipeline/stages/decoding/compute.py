"""Decodes prompts with every method, beside the target alone.

A shard is one prompt: the baseline and all methods decode it one after the other, so that what is
compared was timed in the same minute. Tokens, calls and nats given up are the artifact's content;
seconds are kept apart in timings/, which no digest covers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pipeline.columns import Row, Tables
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
from pipeline.methods import baseline
from pipeline.models.load import pair_tokenizer
from pipeline.plan.plain import to_plain
from pipeline.shards import Progress, Result, compute_shards, write_tables
from pipeline.stage import Inputs, Json, Task
from pipeline.stages.decoding import RUN, STAGE
from pipeline.stages.decoding.along import contexts, drawn_baselines, trajectory
from pipeline.stages.decoding.rates import with_measured_trees
from pipeline.store import Artifact, Out
from pipeline.timing import describe_device

WARM_UP = 8  # tokens decoded before anything is timed

Timed = tuple[Answer, int | None]  # an answer and its peak of memory


@dataclass(frozen=True)
class SourcePrompt(Prompt):
    """A prompt of stage prompts, with its source."""

    source: str


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Decode the first prompts with every method."""
    names = [prompt.prompt_id for prompt in first_prompts(inputs["prompts"], task.spec.prompts)]
    shards = compute_shards(task, inputs, out, names, DecodingWorker)
    write_tables(task, out, [json.loads(shard.content()) for shard in shards], "prompt")
    out.facts["failed_prompts"] = out.rows["failures"]


def first_prompts(prompts: Artifact, count: int) -> list[SourcePrompt]:
    """Return the first prompts."""
    rows = prompts.read(columns=["prompt_id", "token_ids", "source"]).slice(0, count).to_pylist()
    return [SourcePrompt(**row) for row in rows]


class DecodingWorker:
    """A target and its drafter, with all methods; see `pipeline.shards.Worker`."""

    def __init__(self, task: Task, inputs: Inputs) -> None:
        """Load them, and decode a few tokens with every method."""
        spec = with_measured_trees(task.spec, inputs.get("drafts"))
        self._prompts = first_prompts(inputs["prompts"], spec.prompts)
        self._turns = {prompt.prompt_id: at for at, prompt in enumerate(self._prompts)}
        tokenizer = pair_tokenizer(*spec.models)
        self._pair = load_decoding_pair(spec, 1 + max(tokenizer.get_vocab().values()), spec.steps)
        warm_up(self._pair, self._prompts)

    def batch(self) -> int:
        """Return how many prompts are a shard: one, which every method decodes in turn."""
        return 1

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Decode a prompt with every method."""
        at = self._turns[names[0]]
        tables = decode_prompt(self._pair, self._prompts[at], at)
        progress(1)
        return {}, json.dumps(tables).encode()

    def facts(self, _: Sequence[Json]) -> Json:
        """Return the record's facts on the runs and the models, and the seconds of passes."""
        pair = self._pair
        models = (("target", pair.target), ("drafter", pair.drafter))
        return {
            "runs": [to_plain(run_facts(method)) for method in pair.runs],
            "bytes": {
                name: {"model": model.memory_bytes(), "cache_per_token": model.cache_bytes()}
                for name, model in models
            },
            **describe_device(pair.target.device),
            "vocab_size": pair.target.vocab_size,
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


def decode_prompt(pair: DecodingPair, prompt: SourcePrompt, turn: int) -> Tables:
    """Decode one prompt with every method; a prompt that fails is recorded with its reason.

    Every prompt begins with another method, so that none gains from its place.
    """

    def decode_all() -> Tables:
        check_fits(pair, prompt)
        made: dict[int, Timed] = {}
        for at in range(len(pair.runs)):
            index = (at + turn) % len(pair.runs)
            made[index] = decode_timed(pair, pair.runs[index], prompt, pair.steps)
        return prompt_rows(pair, prompt, [made[at] for at in range(len(pair.runs))])

    rows, reason = or_reason(decode_all, pair.target.device)
    return rows or {"failures": [{"prompt_id": prompt.prompt_id, "reason": reason}]}


def prompt_rows(pair: DecodingPair, prompt: SourcePrompt, timed: Sequence[Timed]) -> Tables:
    """Return the rows of a prompt by table, of an answer of each run; nothing here is timed."""
    answers = [answer for answer, _ in timed]
    names = ("data", "calls", "levels", "timings/runs", "timings/calls")
    rows: Tables = {name: [] for name in names}
    alone = {
        run: answer.tokens
        for run, answer in zip(pair.runs, answers, strict=True)
        if run.drafter == "none"
    }
    given_up: dict[tuple[int, ...], float] = {}
    for at, (run, (answer, peak)) in enumerate(zip(pair.runs, timed, strict=True)):
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
        rows["timings/runs"].append(
            key
            | attributes(answer, "first_seconds", "begin_seconds", "seconds")
            | {"peak_bytes": peak}  # None but on CUDA, where the thread waits for the device
            | {"processor_seconds": answer.processor_seconds if peak is None else None}
        )
        for call in answer.calls:
            for name in ("calls", "timings/calls"):
                own = [column for column in STAGE.tables[name] if column not in RUN]
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
