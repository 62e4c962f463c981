"""Stage accuracy: tasks answered with every method, and whether the answers are right.

Run it with ``python -m pipeline stage=accuracy drafter=... accuracy.items=20``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.plan.slices import bootstrap_settings, method_slice, statistics_slice
from pipeline.plan.stage import Request, Stage, SummaryRow
from pipeline.store.columns import Columns
from pipeline.store.node import Node

if TYPE_CHECKING:
    from pipeline.store.artifacts import Artifact

RUN: Columns = {"task": "string", "item_id": "string", "run": "int32"}  # run: index in facts


def nodes(request: Request) -> list[Node]:
    """The tasks answered by each target with the drafter; none without a drafter, or of logs.

    Raises:
        PipelineError: there is no such task, an item is wrong, code is to run that is not allowed,
            or a method is not defined.
    """
    from pipeline.plan.methods import build_methods
    from pipeline.tasks.items import check_tasks, task_identity

    config, asked = request.config, request.config.accuracy
    if not request.nodes["drafts"] or config.distributions.source == "logs":
        return []
    if STAGE.name in request.asked:
        check_tasks(asked.tasks, foreign_code=asked.foreign_code)
    methods = build_methods(asked.methods, key="accuracy.methods")
    tasks = [task_identity(name) for name in asked.tasks]
    return [
        Node(
            STAGE.name,
            drafts.label,
            {
                "target": drafts.config["target"],
                "drafter": drafts.config["drafter"],
                "tasks": tasks,
                "items": asked.items,
                "seed": asked.seed,
                "lookup": asked.lookup,
                "template": config.prompts.template,
                "enable_thinking": config.prompts.enable_thinking,
                "methods": [method_slice(method) for method in methods],
            },
            settings={
                **drafts.settings,
                **statistics_slice(config),
                "methods": methods,
                "tasks": list(asked.tasks),
                "foreign_code": asked.foreign_code,
                "margin": asked.margin,
            },
        )
        for drafts in request.nodes["drafts"]
    ]


def summary(node: Node, artifact: Artifact) -> list[SummaryRow]:
    """One row a method, the baselines included, over all tasks together."""
    from analysis.decoding import answers
    from analysis.decoding.answers import ALL, decide, verdicts
    from pipeline.store.decoded import read_answered

    one = read_answered(node.settings["target"]["label"], artifact)
    found = answers.accuracy(one, *bootstrap_settings(node.settings), node.settings["margin"])
    found = found[found["task"] == ALL]
    shown = ["method", "draft_length", "temperature", "items", "accuracy", "accuracy_ci_low"]
    shown += ["accuracy_ci_high", "lost", "won", "difference", "difference_ci_low"]
    shown += ["difference_ci_high", "p_value", "changed", "nats_given_up", "tokens_per_call"]
    shown += ["tokens_per_call_ci_low", "tokens_per_call_ci_high", "speedup", "length_ratio", "cut"]
    shown += ["calls_finished", "seconds_ratio", "seconds_ratio_ci_low", "seconds_ratio_ci_high"]
    shown += ["right_per_second"]
    decided = decide(found, one.runs, node.settings["margin"], node.settings["confidence"])
    words = verdicts(decided)
    return [
        {"target": one.target, **dict(zip(shown, row, strict=True)), "loss": words.get(run, "")}
        for run, row in zip(found["run"], found[shown].itertuples(index=False), strict=True)
    ]


STAGE = Stage(
    name="accuracy",
    version=6,
    upstream=(),
    columns={
        "data": RUN
        | {  # one row an answer
            "method": "string",
            "drafter": "string",  # model, prompt_lookup, lookup_first or none
            "draft_length": "int32",
            "temperature": "float64",
            "answer": "string",
            "correct": "bool",
            "token_ids": "list<int32>",
            "n_tokens": "int32",
            "ended": "bool",  # by the model, not by the limit
            "nats_given_up": "float64",  # below the target's first choices, sum over the tokens
            # the target reads the answer again
            "departures": "int32",  # tokens that are not the target's first choice at their place
            "common_prefix": "int32",  # tokens before the first that differs from the baseline's
            "gap": "float64",  # of the target's two largest logits there; null where none differs
            "calls": "int32",  # of the target, after the prompt's
            "drafted": "int32",
            "tested": "int32",
            "accepted": "int32",
            "emitted": "int32",  # by these calls
        },
        "failures": {"task": "string", "item_id": "string", "reason": "string"},
        "timings/runs": RUN | {"seconds": "float64"},
    },
    nodes=nodes,
    module=f"{__name__}.compute",
    summary=summary,
    printed=True,
)
