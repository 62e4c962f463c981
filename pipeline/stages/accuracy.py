"""Stage accuracy: answers benchmark tasks with every method, and scores the answers.

Run it with ``python -m pipeline stage=accuracy drafter=... accuracy.items=20``. A shard is one
item, which the target alone and all methods answer one after the other, so that the times that are
compared were measured within a minute. Items of the tasks alternate. The target then scores every
answer: at how many tokens it departs from the target's choices, and by how many nats.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pipeline.core.columns import COMMON, GIVEN_UP, METHOD, Column, Columns
from pipeline.core.errors import PipelineError
from pipeline.core.stage import Json, Runtime, Stage, Task
from pipeline.core.timings import Asked, distinct
from pipeline.inputs.harness_tasks import INSTALL, Question, check_tasks, questions, task_entries
from pipeline.settings.method_config import build_methods
from pipeline.settings.methods import baseline, method_entries, methods_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.core.columns import Row, Tables
    from pipeline.core.stage import Artifact, Inputs, Out
    from pipeline.core.workers import Progress, Result
    from pipeline.decoding.loop import Prefill
    from pipeline.decoding.session import DecodingSession
    from pipeline.settings.methods import Method
    from pipeline.study import Study

    Decode = Callable[[list[int]], str]  # tokens to their text

ITEM: Columns = {
    "task": Column("string", "name of the task"),
    "item_id": Column("string", "the item"),
}
RUN = ITEM | {"run": Column("int32", 'the method: index in the record\'s `facts["runs"]`')}
COUNTED = {  # attributes of calls, summed over an answer
    "drafted": "tokens of these calls",
    "tested": "drafted tokens before and at the first rejection",
    "accepted": "drafted tokens that were accepted",
    "emitted": "tokens that the calls emitted",
}


@dataclass(frozen=True, kw_only=True)
class AccuracyRuntime(Runtime):
    """The runtime of this stage."""

    tasks: tuple[str, ...]  # of lm-evaluation-harness, by name or file
    tolerated_loss: float  # of accuracy: the largest that is acceptable


def _runtime(task: Task) -> AccuracyRuntime:
    assert isinstance(task.runtime, AccuracyRuntime)
    return task.runtime


def plan(study: Study) -> list[Task]:
    """Return a task for each target; none without a drafter, or for logs."""
    config = study.config
    options = config.accuracy
    if config.drafter is None or config.distributions.source == "logs":
        return []
    if config.stage == STAGE.name and find_spec("lm_eval") is None:
        raise PipelineError(f"stage=accuracy needs lm-evaluation-harness: {INSTALL}")
    decoded = build_methods(config.decoding.methods, study.decoded, config.decoding.draft_length)
    methods = scored(decoded)
    settings = options.model_dump(include={"items", "seed"})
    settings |= config.decoding.model_dump(include={"lookup", "lookup_match"})
    settings |= config.prompts.model_dump(include={"template", "enable_thinking"})
    settings["tasks"] = [task_entries(name) for name in options.tasks]
    settings["methods"] = [method_entries(method) for method in methods]
    tasks = []
    drafter = study.model_spec("drafter", config.drafter)
    for key, target in config.targets.items():
        models = (study.model_spec(f"targets.{key}", target), drafter)
        pair = {"target": models[0].entries, "drafter": drafter.entries}
        runtime = AccuracyRuntime(
            **vars(study.runtime(target)) | {"models": models},
            tasks=tuple(options.tasks),
            tolerated_loss=options.margin,
        )
        tasks.append(Task(STAGE, key, pair | settings, {}, runtime, Asked.of(config.device)))
    return tasks


def scored(methods: Sequence[Method]) -> list[Method]:
    """Return the methods of stage decoding whose answers are scored.

    Lossless greedy methods all give the target's own answers, so only the first is kept. Trees
    whose shape stage drafts has to measure are left out.
    """
    chosen: list[Method] = []
    has_exact = False
    for method in methods:
        exact = method.lossless and method.temperature == 0
        if method.needs_drafts or (exact and has_exact):
            continue
        has_exact = has_exact or exact
        chosen.append(method)
    return chosen


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Answer and score the first items of every task with every method."""
    from pipeline.core.shards import compute_shards, write_tables

    shards = compute_shards(task, inputs, out, None, AccuracyWorker, unit="item")
    write_tables(task, out, shards, "item")


class AccuracyWorker:
    """Answers items with every method: a `pipeline.core.workers.Worker`."""

    def __init__(self, task: Task, _: Inputs) -> None:
        from pipeline.decoding.session import load_session
        from pipeline.drafters.pairs import pair_tokenizer

        runtime = _runtime(task)
        tokenizer = pair_tokenizer(*runtime.models)
        self._questions = {
            question.key: question
            for question in questions(runtime.tasks, task.settings, tokenizer)
        }
        limit = max(question.max_tokens for question in self._questions.values())
        prompts = [question.token_ids for question in self._questions.values()]
        self._session = load_session(task, methods_of(task), tokenizer, limit, prompts)
        self._text = partial(tokenizer.decode, skip_special_tokens=True)

    def names(self) -> list[str]:
        """Return the keys of all items; the tasks alternate."""
        return list(self._questions)

    def batch(self) -> int:
        """Return the number of items in a shard: one, which every method answers."""
        return 1

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Answer an item with every method."""
        from pipeline.core.shards import nested
        from pipeline.decoding.session import result_or_reason
        from pipeline.models.devices import describe_machine

        session = self._session
        question = self._questions[names[0]]
        rows, reason = result_or_reason(
            lambda: answer(session, question, self._text), session.target.device
        )
        progress(1)
        rows = rows or {"failures": [question.row | {"reason": reason}]}
        return describe_machine(session.target.device), [nested(STAGE, rows)]

    def metadata(self, measured: Sequence[Json]) -> Json:
        """Return the record's metadata on the tasks and the runs."""
        from pipeline.decoding.session import run_metadata
        from pipeline.models.devices import describe_device
        from pipeline.models.recorded_passes import can_record

        runs = self._session.runs
        return {
            "tasks": list(dict.fromkeys(question.task for question in self._questions.values())),
            "runs": [run_metadata(run) | {"baseline": runs.index(baseline(run))} for run in runs],
            "machines": distinct(measured),
            **describe_device(self._session.target.device),
            "recorded_passes": can_record(self._session.target),
        }


def answer(session: DecodingSession, question: Question, text: Decode) -> Tables:
    """Answer a question with every method; return the rows by table, with scores."""
    from pipeline.decoding.answer_scoring import compare_with_baseline
    from pipeline.decoding.session import Prompt, decode_timed, read_prompt

    limit = question.max_tokens
    prompt = Prompt(question.key, question.token_ids)
    prefill = read_prompt(session, prompt, limit)
    answers = [decode_timed(session, method, prompt, prefill)[0] for method in session.runs]
    score = cache(partial(score_answer, prefill, question, text))
    rows: Tables = {"data": [], "timings/runs": []}
    for run, (method, decoded) in enumerate(zip(session.runs, answers, strict=True)):
        alone = answers[session.runs.index(baseline(method))].tokens
        prefix = compare_with_baseline(decoded.tokens, alone)["common_prefix"]
        difference = min(prefix, len(alone) - 1)  # an answer may be a prefix of the other
        _, gaps = score(tuple(alone))
        rows["data"].append({
            **question.row,
            "run": run,
            "method": method.name,
            "drafter": method.drafter,
            "draft_length": method.draft_length,
            "temperature": method.temperature,
            "ended": decoded.ended,
            "common_prefix": prefix,
            "gap": None if decoded.tokens == alone else gaps[difference],
            "calls": len(decoded.calls),
            **{name: sum(getattr(call, name) for call in decoded.calls) for name in COUNTED},
            **score(tuple(decoded.tokens))[0],
        })  # fmt: skip
        rows["timings/runs"].append({**question.row, "run": run, "seconds": decoded.seconds})
    return rows


def score_answer(
    prefill: Prefill, question: Question, text: Decode, tokens: Sequence[int]
) -> tuple[Row, list[float]]:
    """Score an answer of n tokens.

    Returns:
        Its columns, and the gap of the target's two largest logits at each token.
    """
    from lm_eval.models.utils import postprocess_generated_text

    from pipeline.decoding.answer_scoring import answer_logits, log_probability_given_up

    cut = postprocess_generated_text(text(list(tokens)), question.until, None)
    logits, _ = answer_logits(prefill, tokens)
    first, second = logits.topk(2, dim=1).values.double().T
    nats = log_probability_given_up(logits, tokens)
    return {
        "answer": cut,
        "correct": question.right(cut),
        "token_ids": list(tokens),
        "n_tokens": len(tokens),
        "nats_given_up": float(nats.sum()),
        "departures": int((nats > 0).sum()),
    }, (first - second).tolist()


def summary(task: Task, artifact: Artifact) -> list[Json]:
    """Return a row for each method, the baselines included, over all tasks together."""
    from analysis.decoding.paired_accuracy import ALL, accuracy, losses
    from analysis.statistics.estimate import interval_columns
    from pipeline.inputs.decoded_artifacts import read_answered

    runtime = _runtime(task)
    answered = read_answered(runtime.label, artifact)
    scores = accuracy(answered, *runtime.statistics, runtime.tolerated_loss)
    decisions = losses(scores)["decision"]
    rows = scores[scores["task"] == ALL].assign(
        target=answered.target,
        rule=[rule and rule.label for rule in answered.runs["rule"]],
        loss=[decisions.get(run, "") for run in answered.runs.index],
    )
    shown = ["target", "rule", "method", "draft_length", "temperature", "items", "accuracy"]
    shown += [*interval_columns("accuracy"), "lost", "won"]
    shown += ["difference", *interval_columns("difference"), "p_value", "changed", "nats_given_up"]
    shown += ["tokens_per_call", *interval_columns("tokens_per_call"), "speedup", "loss"]
    return [dict(zip(shown, row, strict=True)) for row in rows[shown].itertuples(index=False)]


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
            **{name: Column("int32", meaning) for name, meaning in COUNTED.items()},
        },
        "failures": ITEM | {"reason": Column("string", "why it has no answer")},
        "timings/runs": RUN | {"seconds": Column("float64", "of the answer")},
    },
    plan=plan,
    compute=compute,
    check_task=lambda task: check_tasks(_runtime(task).tasks),
    summary=summary,
    printed=True,
)
