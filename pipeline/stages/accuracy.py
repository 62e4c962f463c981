"""Stage accuracy: tasks answered with every method, and whether the answers are right.

Run it with ``python -m pipeline stage=accuracy drafter=... accuracy.items=20``. A shard is one
item: all methods answer it one after the other, beside the target alone, so what is compared was
asked in the same minute. The items of the tasks take turns. The target reads every answer again:
where it departs from the target's choices, and the nats given up there.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pipeline.columns import COMMON, GIVEN_UP, METHOD, Column, Columns
from pipeline.errors import PipelineError
from pipeline.harness_tasks import INSTALL, Question, questions, task_entries
from pipeline.methods import baseline, build_methods, method_entries
from pipeline.stage import Json, Stage, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from pipeline.columns import Row, Tables
    from pipeline.decoding.loop import Answer
    from pipeline.decoding.pair import DecodingPair
    from pipeline.methods import Method
    from pipeline.shards import Progress, Result
    from pipeline.stage import Inputs
    from pipeline.store import Artifact, Out
    from pipeline.study import Study

RUN: Columns = {
    "task": Column("string", "name of the task"),
    "item_id": Column("string", "the item"),
    "run": Column("int32", 'the method: index in the record\'s `facts["runs"]`'),
}


def plan(study: Study) -> list[Task]:
    """Return one planned artifact a target; none without a drafter, or for logs.

    Raises:
        PipelineError: a file of a task is missing, a method is not defined, or the stage is wanted
            and lm-evaluation-harness is not installed.
    """
    config, settings = study.config, study.config.accuracy
    if not study.tasks["drafts"] or config.distributions.source == "logs":
        return []
    if config.stage == STAGE.name and find_spec("lm_eval") is None:
        raise PipelineError(f"stage=accuracy needs lm-evaluation-harness: {INSTALL}")
    decoded = build_methods(config.decoding.methods, study.decoded, config.decoding.draft_length)
    methods = scored(decoded)
    own = settings.model_dump(include={"items", "seed"})
    own |= config.decoding.model_dump(include={"lookup", "lookup_match"})
    own |= config.prompts.model_dump(include={"template", "enable_thinking"})
    own["tasks"] = [task_entries(name) for name in settings.tasks]
    own["methods"] = [method_entries(method) for method in methods]
    extra = {"margin": settings.margin, "tasks": settings.tasks}
    planned = []
    for drafts in study.tasks["drafts"]:
        pair = {name: drafts.settings[name] for name in ("target", "drafter")}
        runtime = replace(drafts.runtime, methods=tuple(methods), extra=extra)
        planned.append(Task(STAGE, drafts.label, pair | own, {}, runtime))
    return planned


def scored(methods: Sequence[Method]) -> list[Method]:
    """Return the methods whose answers are scored, of those that are decoded.

    Greedy lossless methods all answer with the target's own text: the first stands for them. A tree
    whose shape stage drafts has to measure is left out.
    """
    chosen: list[Method] = []
    for method in methods:
        exact = method.lossless and method.temperature == 0
        twice = exact and any(m.lossless and m.temperature == 0 for m in chosen)
        if not (twice or method.needs_drafts):
            chosen.append(method)
    return chosen


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Answer and score the first items of every task with every method."""
    from pipeline.models.load import pair_tokenizer
    from pipeline.shards import compute_shards, write_tables

    tokenizer = pair_tokenizer(*task.runtime.models)
    names = [question.key for question in questions(task, tokenizer)]
    shards = compute_shards(task, inputs, out, names, AccuracyWorker, unit="item")
    write_tables(task, out, [json.loads(shard.content()) for shard in shards], "item")


class AccuracyWorker:
    """A target and its drafter, with all methods and questions; see `pipeline.shards.Worker`."""

    def __init__(self, task: Task, _: Inputs) -> None:
        """Load them."""
        from pipeline.decoding.pair import load_decoding_pair
        from pipeline.models.load import pair_tokenizer

        self._task = task
        tokenizer = pair_tokenizer(*task.runtime.models)
        self._questions = {asked.key: asked for asked in questions(task, tokenizer)}
        limit = max(question.max_tokens for question in self._questions.values())
        tokens = 1 + max(tokenizer.get_vocab().values())
        self._pair = load_decoding_pair(task, tokens=tokens, steps=limit)
        self._text = partial(tokenizer.decode, skip_special_tokens=True)

    def batch(self) -> int:
        """Return how many items are a shard: one, which every method answers in turn."""
        return 1

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Answer an item with every method."""
        from pipeline.decoding.pair import or_reason

        pair, question = self._pair, self._questions[names[0]]
        rows, reason = or_reason(lambda: answer(pair, question, self._text), pair.target.device)
        failed = {"task": question.task, "item_id": question.item_id, "reason": reason}
        progress(1)
        return {}, json.dumps(rows or {"failures": [failed]}).encode()

    def facts(self, _: Sequence[Json]) -> Json:
        """Return the record's facts on the tasks and the runs."""
        from pipeline.decoding.pair import run_facts
        from pipeline.timing import describe_device

        pair = self._pair
        runs = [
            run_facts(method) | {"baseline": pair.runs.index(baseline(method))}
            for method in pair.runs
        ]
        return {
            "tasks": list(dict.fromkeys(asked.task for asked in self._questions.values())),
            "runs": runs,
            **describe_device(pair.target.device),
        }


def answer(pair: DecodingPair, question: Question, text: Callable[[list[int]], str]) -> Tables:
    """Return the rows of one question by table: an answer of every method, and its score."""
    from lm_eval.models.utils import postprocess_generated_text

    from pipeline.decoding.pair import Prompt, check_fits, decode_timed, read_again

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
    from pipeline.decoding.pair import nats_given_up

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
    from pipeline.decoding.pair import compared

    prefix = compared(answer, alone)["common_prefix"]
    at = min(prefix, len(alone) - 1)  # one answer may be the beginning of the other
    return {"common_prefix": prefix, "gap": None if answer == alone else gaps[at]}


def totals(answer: Answer) -> dict[str, int]:
    """Return the totals of the target's calls, without that of the prompt."""
    names = ("drafted", "tested", "accepted", "emitted")
    sums = {name: sum(getattr(call, name) for call in answer.calls) for name in names}
    return {"calls": len(answer.calls), **sums}


def summary(task: Task, artifact: Artifact) -> list[Json]:
    """One row a method, the baselines included, over all tasks together."""
    from analysis.decoding import answers
    from analysis.decoding.answers import ALL, losses
    from pipeline.decoding.decoded import read_answered

    runtime = task.runtime
    answered = read_answered(runtime.label, artifact)
    scores = answers.accuracy(answered, *runtime.statistics, runtime.extra["margin"])
    scores = scores[scores["task"] == ALL]
    shown = ["method", "draft_length", "temperature", "items", "accuracy", "accuracy_ci_low"]
    shown += ["accuracy_ci_high", "lost", "won", "difference", "difference_ci_low"]
    shown += ["difference_ci_high", "p_value", "changed", "nats_given_up", "tokens_per_call"]
    shown += ["tokens_per_call_ci_low", "tokens_per_call_ci_high", "speedup"]
    decisions = losses(scores)["decision"]
    return [
        {
            "target": answered.target,
            "rule": None
            if answered.runs["rule"][run] is None
            else answered.runs["rule"][run].label,
            **dict(zip(shown, row, strict=True)),
            "loss": decisions.get(run, ""),
        }
        for run, row in zip(scores["run"], scores[shown].itertuples(index=False), strict=True)
    ]


STAGE = Stage(
    name="accuracy",
    version=8,
    upstream=(),
    tables={
        "data": RUN
        | METHOD
        | {
            "answer": Column("string", "its text, up to what ends it"),
            "correct": Column("bool", "the task accepts it"),
            "token_ids": Column("list<int32>", "its tokens"),
            "n_tokens": Column("int32", "their number"),
            "ended": Column("bool", "by the model, not by the limit"),
            **GIVEN_UP,
            "departures": Column("int32", "tokens that are not the target's first choice"),
            **COMMON,
            "gap": Column(
                "float64", "of the target's two largest logits there; null: no difference"
            ),
            "calls": Column("int32", "of the target, after the prompt's"),
            "drafted": Column("int32", "tokens of these calls"),
            "tested": Column("int32", "drafted tokens before and at the first rejection"),
            "accepted": Column("int32", "drafted tokens that were accepted"),
            "emitted": Column("int32", "tokens that the calls emitted"),
        },
        "failures": {
            "task": Column("string", "name of the task"),
            "item_id": Column("string", "the item"),
            "reason": Column("string", "why it has no answer"),
        },
        "timings/runs": RUN | {"seconds": Column("float64", "of the answer")},
    },
    plan=plan,
    compute=compute,
    summary=summary,
    printed=True,
)
