"""Stage accuracy: tasks answered with every method, and whether the answers are right.

Run it with ``python -m pipeline stage=accuracy drafter=... accuracy.items=20``.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from pipeline.columns import COMMON, GIVEN_UP, METHOD, Column, Columns
from pipeline.errors import PipelineError
from pipeline.plan.plain import to_plain
from pipeline.plan.specs import AccuracySpec
from pipeline.stage import Json, Stage, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.methods import Method
    from pipeline.store import Artifact
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
    from pipeline.methods import build_methods
    from pipeline.stages.accuracy.tasks import INSTALL, task_spec

    config, settings = study.config, study.config.accuracy
    if not study.tasks["drafts"] or config.distributions.source == "logs":
        return []
    if config.stage == STAGE.name and find_spec("lm_eval") is None:
        raise PipelineError(f"stage=accuracy needs lm-evaluation-harness: {INSTALL}")
    decoded = build_methods(config.decoding.methods, study.decoded, config.decoding.draft_length)
    tasks = tuple(task_spec(name) for name in settings.tasks)
    planned = []
    for drafts in study.tasks["drafts"]:
        spec = AccuracySpec(
            target=drafts.spec.target,
            drafter=drafts.spec.drafter,
            tasks=tasks,
            items=settings.items,
            seed=settings.seed,
            lookup=config.decoding.lookup,
            lookup_match=config.decoding.lookup_match,
            methods=tuple(scored(decoded)),
            prompts=config.prompts,
            statistics=study.statistics,
            margin=settings.margin,
        )
        planned.append(Task(STAGE, drafts.label, to_plain(spec), {}, spec))
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


def summary(task: Task, artifact: Artifact) -> list[Json]:
    """One row a method, the baselines included, over all tasks together."""
    from analysis.decoding import answers
    from analysis.decoding.answers import ALL, losses
    from pipeline.decoding.decoded import read_answered

    spec: AccuracySpec = task.spec
    answered = read_answered(spec.target.settings.label, artifact)
    scores = answers.accuracy(answered, *spec.statistics, spec.margin)
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
    compute=f"{__name__}.compute:compute",
    summary=summary,
    printed=True,
)
