"""Stage decoding: real speculative decoding, every method beside the target alone.

Run it with ``python -m pipeline stage=decoding drafter=... decoding=default``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.report.text import limits
from pipeline.columns import COMMON, GIVEN_UP, METHOD, STEP, Column, Columns
from pipeline.plan.plain import to_plain
from pipeline.plan.specs import DecodingSpec
from pipeline.stage import Json, Stage, Task

if TYPE_CHECKING:
    from pipeline.store import Artifact
    from pipeline.study import Study

RUN: Columns = {
    "prompt_id": Column("string", "the prompt"),
    "run": Column("int32", 'the method: index in the record\'s `facts["runs"]`'),
}
CALL: Columns = {  # a target call after the prompt's
    "drafted": Column("int32", "tokens"),
    "depth": Column("int32", "drafted tokens in a row: of a chain all of them"),
}


def plan(study: Study) -> list[Task]:
    """Return one planned artifact a target; none without a drafter.

    Raises:
        PipelineError: a method is not defined.
    """
    from pipeline.methods import build_methods

    config, settings = study.config, study.config.decoding
    if not study.tasks["drafts"] or config.distributions.source == "logs":
        return []
    methods = build_methods(settings.methods, study.decoded, settings.draft_length)
    measured = any(method.needs_drafts for method in methods)
    tasks = []
    for drafts in study.tasks["drafts"]:
        spec = DecodingSpec(
            drafts.spec.target,
            drafts.spec.drafter,
            prompts=min(settings.prompts, config.prompts.count),
            steps=settings.steps,
            seed=settings.seed,
            lookup=settings.lookup,
            lookup_match=settings.lookup_match,
            methods=tuple(methods),
            statistics=study.statistics,
        )
        inputs = {"prompts": drafts.inputs["prompts"]} | ({"drafts": drafts} if measured else {})
        tasks.append(Task(STAGE, drafts.label, to_plain(spec), inputs, spec))
    return tasks


def summary(task: Task, artifact: Artifact) -> list[Json]:
    """One row a method, the baselines included."""
    from analysis.decoding import metrics, speed
    from pipeline.decoding.decoded import read_decoded

    spec, bootstrap = task.spec, task.spec.statistics
    decoded = read_decoded(spec.target.settings.label, spec.drafter.settings.label, artifact)
    speeds = speed.speedups(decoded, *bootstrap)
    rows = metrics.acceptance(decoded, *bootstrap)
    ends = dict(zip(("ci_low", "ci_high"), limits("speedup"), strict=True))
    ends |= dict(zip(("tpot_ci_low", "tpot_ci_high"), limits("tpot_speedup"), strict=True))
    rows = rows.join(speeds.rename(columns=ends))
    shown = ["method", "draft_length", "temperature"]
    for name in ("rate", "tokens_per_call"):
        shown += [name, *limits(name)]
    shown += ["agreement", "nats_given_up", "tokens_per_second"]
    for name in ("speedup", "tpot_speedup"):  # of whole answers; after their first token
        shown += [name, *limits(name)]
    rules = decoded.runs["rule"].loc[rows.index]
    return [
        {
            "target": decoded.target,
            "rule": rule,
            "prompts": decoded.prompts,
            **dict(zip(shown, row, strict=True)),
        }
        for rule, row in zip(rules, rows[shown].itertuples(index=False), strict=True)
    ]


STAGE = Stage(
    name="decoding",
    version=17,
    upstream=("prompts", "drafts"),  # the latter for methods that take what it measured
    tables={
        "data": RUN
        | {"source": Column("string", "of the prompt")}
        | METHOD
        | {
            "token_ids": Column("list<int32>", "the answer"),
            "n_tokens": Column("int32", "its length"),
            "text_tokens": Column("int32", "of prompt and answer"),
            "ended": Column("bool", "by the model, not by the limit"),
            **GIVEN_UP,
            "agreement": Column("float64", "share of positions with the baseline's token"),
            **COMMON,
        },
        "calls": RUN
        | {"position": Column("int32", "in the answer, of the first drafted token")}
        | CALL
        | {
            "reach": Column("int32", "of depth, the tokens before one that would end the answer"),
            "tested": Column(
                "int32", "tokens before and at the first rejection; of a tree, levels"
            ),
            "accepted": Column("int32", "drafted tokens that were accepted"),
            "emitted": Column("int32", "tokens"),
        },
        "levels": RUN
        | {
            "position": Column("int32", "of the call"),
            "level": Column("int32", "of the tree, from 1"),
            "children": Column("int32", "that were tested"),
            "accepted": Column("int32", "sibling index of the accepted child, from 1; 0: none"),
        },
        "trajectory": STEP
        | {
            "token_id": Column("int32", "the token emitted"),
            "draft_token_id": Column("int32", "the drafter's argmax"),
            "draft_rank": Column("int32", "its rank under p, from 1"),
            "draft_log_prob": Column("float64", "its log-probability under p"),
            "z1": Column("float64", "the target's largest logit"),
            "z2": Column("float64", "the second largest"),
            "top_surprisal": Column("float64", "-log p of rank 1"),
        },
        "contexts": RUN
        | {
            "position": Column("int32", "in the baseline's answer"),
            "kl": Column("float64", "KL(p‖q) at the temperature, nats; inf where q lacks a token"),
            "greedy_entropy": Column("float64", "H[R] of speculative sampling, drafts independent"),
            "races_entropy": Column("float64", "H[R] of exponential races, drafts independent"),
        },
        "failures": {
            "prompt_id": Column("string", "the prompt"),
            "reason": Column("string", "why it has no answer"),
        },
        "timings/runs": RUN
        | {
            "first_seconds": Column("float64", "until the first token"),
            "begin_seconds": Column("float64", "the drafter's pass over the prompt"),
            "seconds": Column("float64", "of the whole answer"),
            "processor_seconds": Column("float64", "of the decoding thread; null on CUDA"),
            "peak_bytes": Column("int64", "of a CUDA device, null elsewhere"),
        },
        "timings/calls": RUN
        | CALL
        | {
            "emitted": Column("int32", "tokens"),
            "draft_seconds": Column("float64", "drafting"),
            "verify_seconds": Column("float64", "the target's pass"),
            "other_seconds": Column("float64", "acceptance, roll-back, bookkeeping"),
        },
    },
    plan=plan,
    compute=f"{__name__}.compute:compute",
    summary=summary,
    printed=True,
)
