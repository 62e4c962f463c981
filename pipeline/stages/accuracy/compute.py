"""Lets every method answer the items of tasks, beside the target alone, and scores the answers.

A shard is one item: all methods answer it one after the other, so what is compared was asked in
the same minute. The items of the tasks take turns. The target reads every answer again: where
it departs from the target's choices, and the nats given up there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from lm_eval.models.utils import postprocess_generated_text
from torch import Tensor

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
from pipeline.methods import baseline
from pipeline.models.load import pair_tokenizer
from pipeline.plan.plain import to_plain
from pipeline.shards import Progress, Result, compute_shards, write_tables
from pipeline.stage import Inputs, Json, Task
from pipeline.stages.accuracy.tasks import Question, questions
from pipeline.store import Out
from pipeline.timing import describe_device


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Answer and score the first items of every task with every method."""
    names = [question.key for question in questions(task.spec, pair_tokenizer(*task.spec.models))]
    shards = compute_shards(task, inputs, out, names, AccuracyWorker, unit="item")
    write_tables(task, out, [json.loads(shard.content()) for shard in shards], "item")


class AccuracyWorker:
    """A target and its drafter, with all methods and questions; see `pipeline.shards.Worker`."""

    def __init__(self, task: Task, _: Inputs) -> None:
        """Load them."""
        self._task = task
        tokenizer = pair_tokenizer(*task.spec.models)
        self._questions = {asked.key: asked for asked in questions(task.spec, tokenizer)}
        limit = max(question.max_tokens for question in self._questions.values())
        tokens = 1 + max(tokenizer.get_vocab().values())
        self._pair = load_decoding_pair(task.spec, tokens, limit)
        self._text = partial(tokenizer.decode, skip_special_tokens=True)

    def batch(self) -> int:
        """Return how many items are a shard: one, which every method answers in turn."""
        return 1

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Answer an item with every method."""
        pair, question = self._pair, self._questions[names[0]]
        rows, reason = or_reason(lambda: answer(pair, question, self._text), pair.target.device)
        failed = {"task": question.task, "item_id": question.item_id, "reason": reason}
        progress(1)
        return {}, json.dumps(rows or {"failures": [failed]}).encode()

    def facts(self, _: Sequence[Json]) -> Json:
        """Return the record's facts on the tasks and the runs."""
        pair = self._pair
        runs = [
            replace(run_facts(method), baseline=pair.runs.index(baseline(method)))
            for method in pair.runs
        ]
        return {
            "tasks": list(dict.fromkeys(asked.task for asked in self._questions.values())),
            "runs": to_plain(runs),
            **describe_device(pair.target.device),
        }


def answer(pair: DecodingPair, question: Question, text: Callable[[list[int]], str]) -> Tables:
    """Return the rows of one question by table: an answer of every method, and its score."""
    limit, prompt = question.max_tokens, Prompt(question.key, question.token_ids)
    check_fits(replace(pair, steps=limit), prompt)
    answers = [decode_timed(pair, method, prompt, limit)[0] for method in pair.runs]

    decoded: dict[tuple[int, ...], tuple[list[float], Row]] = {}
    rows: Tables = {"data": [], "timings/runs": []}
    for run, (method, made) in enumerate(zip(pair.runs, answers, strict=True)):
        tokens = tuple(made.tokens)
        if tokens not in decoded:
            answer_text = postprocess_generated_text(text(made.tokens), question.until, None)
            gaps, counted = counted_steps(
                read_again(pair.target, question.token_ids, tokens), tokens
            )
            scored = {
                "answer": answer_text,
                "correct": question.right(answer_text),
                "ended": made.ended,
            }
            decoded[tokens] = gaps, scored | counted
        alone = answers[pair.runs.index(baseline(method))]
        key = {"task": question.task, "item_id": question.item_id, "run": run}
        rows["data"].append(
            key
            | decoded[tokens][1]
            | {
                "method": method.name,
                "drafter": method.drafter,
                "draft_length": method.draft_length,
                "temperature": method.temperature,
                **first_difference(made.tokens, alone.tokens, decoded[tuple(alone.tokens)][0]),
                **totals(made),
            }
        )
        rows["timings/runs"].append(key | {"seconds": made.seconds})
    return rows


def counted_steps(logits: Tensor, answer: tuple[int, ...]) -> tuple[list[float], Row]:
    """Return the gaps between the target's two largest logits (n, V), and an answer's counts."""
    first, second = logits.topk(2, dim=1).values.double().T
    nats = nats_given_up(logits, answer)
    return (first - second).tolist(), {
        "token_ids": list(answer),
        "n_tokens": len(answer),
        "nats_given_up": float(nats.sum()),
        "departures": int((nats > 0).sum()),
    }


def first_difference(answer: list[int], alone: list[int], gaps: list[float]) -> Row:
    """Return the tokens before an answer's first difference from the baseline's, and the gap there.

    The gap is that of the target's two largest logits: near 0 is near a tie.
    """
    prefix = compared(answer, alone)["common_prefix"]
    at = min(prefix, len(alone) - 1)  # one answer may be the beginning of the other
    return {"common_prefix": prefix, "gap": None if answer == alone else gaps[at]}


def totals(answer: Answer) -> dict[str, int]:
    """Return the totals of the target's calls, without that of the prompt."""
    names = ("drafted", "tested", "accepted", "emitted")
    sums = {name: sum(getattr(call, name) for call in answer.calls) for name in names}
    return {"calls": len(answer.calls), **sums}
