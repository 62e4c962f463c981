"""Lets every method answer the items of tasks, beside the target alone, and scores the answers.

A shard is one item: all methods answer it one after the other, so what is compared was asked in
the same minute. The items of the tasks take turns. The target reads every answer again: where
it departs from the target's choices, and the nats given up there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from lm_eval.models.utils import postprocess_generated_text
from torch import Tensor

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
from pipeline.execution.shard_plan import Plan, Shard, ShardMeasured, at_most
from pipeline.execution.shards import compute_unfinished, write_tables
from pipeline.execution.stopwatch import describe_device
from pipeline.models.load import pair_tokenizer
from pipeline.plan.method import baseline
from pipeline.plan.specs import AccuracySpec
from pipeline.stages.accuracy import STAGE
from pipeline.stages.accuracy.tasks import Question, questions
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.columns import Row, Tables
from pipeline.store.node import Node
from pipeline.store.plain import to_plain


def compute(node: Node[AccuracySpec], _: dict[str, list[Artifact]], pending: Pending) -> None:
    """Answer and score the first items of every task with every method."""
    tokenizer = pair_tokenizer(node.spec.target, node.spec.drafter)
    all_questions = questions(node.spec, tokenizer)
    limit = max(question.max_tokens for question in all_questions)
    pair = load_decoding_pair(node.spec, 1 + max(tokenizer.get_vocab().values()), limit)
    text = partial(tokenizer.decode, skip_special_tokens=True)
    shards = answer_all(pair, all_questions, text, pending, f"accuracy {node.label}")
    write_tables(pending, STAGE.name, STAGE.columns, shards, label=node.label, unit="item")
    runs = [
        replace(run_facts(method), baseline=pair.runs.index(baseline(method)))
        for method in pair.runs
    ]
    pending.facts |= {
        "tasks": list(dict.fromkeys(question.task for question in all_questions)),
        "runs": to_plain(runs),
        **describe_device(pair.target.device),
    }


def answer_all(
    pair: DecodingPair,
    all_questions: list[Question],
    text: Callable[[list[int]], str],
    pending: Pending,
    label: str,
) -> list[Tables]:
    """Answer every question, each a shard of its own; return their rows by table, in order."""
    named = {question.key: question for question in all_questions}
    plan = Plan.open(pending, dict.fromkeys(named, 1), at_most(1))

    def answer_shard(planned: Shard, path: Path, _: Callable[[int], object]) -> ShardMeasured:
        question = named[planned.prompts[0]]
        rows, reason = or_reason(lambda: answer(pair, question, text), pair.target.device)
        failed = {"task": question.task, "item_id": question.item_id, "reason": reason}
        path.write_text(json.dumps(rows or {"failures": [failed]}))
        return {}

    device = pair.target.device
    compute_unfinished(plan, answer_shard, steps=1, label=label, device=device, unit="item")
    return [json.loads(plan.file(shard).read_text()) for shard in plan.shards]


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
