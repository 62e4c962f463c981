"""Stage accuracy: tasks answered with every method, and whether the answers are right.

Run it with ``python -m pipeline stage=accuracy drafter=... accuracy.items=20``. A shard is one
item: all methods answer it one after the other, beside the target alone, so what is compared was
asked in the same minute. The items of the tasks take turns. The target reads every answer again:
where it departs from the target's choices, and the nats given up there.
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
from pipeline.settings.methods import baseline, build_methods, method_entries, methods_of

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
COUNTED = {  # of calls, summed
    "drafted": "tokens of these calls",
    "tested": "drafted tokens before and at the first rejection",
    "accepted": "drafted tokens that were accepted",
    "emitted": "tokens that the calls emitted",
}


@dataclass(frozen=True, kw_only=True)
class AccuracyRuntime(Runtime):
    """Besides, the harness tasks by name or file, and the loss of right answers to exclude."""

    tasks: tuple[str, ...]
    tolerated_loss: float


def _runtime(task: Task) -> AccuracyRuntime:
    assert isinstance(task.runtime, AccuracyRuntime)
    return task.runtime


def plan(study: Study) -> list[Task]:
    """Return one planned artifact a target; none without a drafter, or for logs."""
    config = study.config
    settings = study.config.accuracy
    if config.drafter is None or config.distributions.source == "logs":
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
    planned = []
    drafter = study.model_spec("drafter", config.drafter)
    for key, target in config.targets.items():
        models = (study.model_spec(f"targets.{key}", target), drafter)
        pair = {"target": models[0].entries, "drafter": drafter.entries}
        runtime = AccuracyRuntime(
            **vars(study.runtime(target)) | {"models": models},
            tasks=tuple(settings.tasks),
            tolerated_loss=settings.margin,
        )
        planned.append(Task(STAGE, key, pair | own, {}, runtime, Asked.of(config.device)))
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
    from pipeline.core.shards import compute_shards, write_tables

    shards = compute_shards(task, inputs, out, None, AccuracyWorker, unit="item")
    write_tables(task, out, shards, "item")


class AccuracyWorker:
    """A target and its drafter, with all methods and questions: a `Worker`."""

    def __init__(self, task: Task, _: Inputs) -> None:
        from pipeline.decoding.session import load_session
        from pipeline.drafters.pairs import pair_tokenizer

        runtime = _runtime(task)
        tokenizer = pair_tokenizer(*runtime.models)
        self._questions = {
            asked.key: asked for asked in questions(runtime.tasks, task.settings, tokenizer)
        }
        limit = max(question.max_tokens for question in self._questions.values())
        prompts = [question.token_ids for question in self._questions.values()]
        self._session = load_session(task, methods_of(task), tokenizer, limit, prompts)
        self._text = partial(tokenizer.decode, skip_special_tokens=True)

    def names(self) -> list[str]:
        """Return the keys of all questions, one of each task in turn."""
        return list(self._questions)

    def batch(self) -> int:
        """Return how many items are a shard: one, which every method answers in turn."""
        return 1

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Answer an item with every method."""
        from pipeline.core.shards import nested
        from pipeline.decoding.session import or_reason
        from pipeline.models.devices import describe_machine

        session = self._session
        question = self._questions[names[0]]
        rows, reason = or_reason(
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
            "tasks": list(dict.fromkeys(asked.task for asked in self._questions.values())),
            "runs": [run_metadata(run) | {"baseline": runs.index(baseline(run))} for run in runs],
            "machines": distinct(measured),
            **describe_device(self._session.target.device),
            "recorded_passes": can_record(self._session.target),
        }


def answer(session: DecodingSession, question: Question, text: Decode) -> Tables:
    """Return the rows of one question by table: an answer of every method, and its score."""
    from pipeline.decoding.answer_scoring import compare_with_baseline
    from pipeline.decoding.session import Prompt, decode_timed, read_prompt

    limit = question.max_tokens
    prompt = Prompt(question.key, question.token_ids)
    read = read_prompt(session, prompt, limit)
    answers = [decode_timed(session, method, prompt, read)[0] for method in session.runs]
    score = cache(partial(score_answer, read, question, text))
    rows: Tables = {"data": [], "timings/runs": []}
    for run, (method, made) in enumerate(zip(session.runs, answers, strict=True)):
        alone = answers[session.runs.index(baseline(method))].tokens
        prefix = compare_with_baseline(made.tokens, alone)["common_prefix"]
        at = min(prefix, len(alone) - 1)  # one answer may be the beginning of the other
        _, gaps = score(tuple(alone))
        rows["data"].append({
            **question.row,
            "run": run,
            "method": method.name,
            "drafter": method.drafter,
            "draft_length": method.draft_length,
            "temperature": method.temperature,
            "ended": made.ended,
            "common_prefix": prefix,
            "gap": None if made.tokens == alone else gaps[at],
            "calls": len(made.calls),
            **{name: sum(getattr(call, name) for call in made.calls) for name in COUNTED},
            **score(tuple(made.tokens))[0],
        })  # fmt: skip
        rows["timings/runs"].append({**question.row, "run": run, "seconds": made.seconds})
    return rows


def score_answer(
    read: Prefill, question: Question, text: Decode, tokens: Sequence[int]
) -> tuple[Row, list[float]]:
    """Return the columns of an answer's n tokens, and the gap of the two largest logits at each."""
    from lm_eval.models.utils import postprocess_generated_text

    from pipeline.decoding.answer_scoring import answer_logits, log_probability_given_up

    cut = postprocess_generated_text(text(list(tokens)), question.until, None)
    logits, _ = answer_logits(read, tokens)
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
    """One row a method, the baselines included, over all tasks together."""
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
