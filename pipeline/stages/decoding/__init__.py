"""Stage decoding: real speculative decoding, every method beside the target alone.

Run it with ``python -m pipeline stage=decoding drafter=... decoding=default``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.report.text import limits
from pipeline.plan.slices import bootstrap_settings, method_slice, statistics_slice
from pipeline.plan.stage import Request, Stage, SummaryRow
from pipeline.store.columns import STEP, Columns
from pipeline.store.node import Node

if TYPE_CHECKING:
    from pipeline.store.artifacts import Artifact

PASSES = "timings/passes"  # the table of all passes over batches; others have rows of prompts
RUN: Columns = {"prompt_id": "string", "run": "int32"}  # run: index in the record's facts["runs"]


def nodes(request: Request) -> list[Node]:
    """Decoding with a drafter, beside each target alone; none without a drafter.

    Raises:
        PipelineError: a method is not defined.
    """
    from pipeline.plan.methods import build_methods

    config, asked = request.config, request.config.decoding
    if not request.nodes["drafts"] or config.distributions.source == "logs":
        return []
    methods = build_methods(asked.methods, asked.draft_length, measured=True)
    measured = any(method.needs_drafts for method in methods)
    return [
        Node(
            STAGE.name,
            drafts.label,
            {
                "target": drafts.config["target"],
                "drafter": drafts.config["drafter"],
                "prompts": min(asked.prompts, config.prompts.count),
                "steps": asked.steps,
                "seed": asked.seed,
                "lookup": asked.lookup,
                "batches": asked.batches,
                "methods": [method_slice(method) for method in methods],
                **({"repeats": asked.repeats} if asked.repeats > 1 else {}),
            },
            {"prompts": drafts.upstream["prompts"], **({"drafts": (drafts,)} if measured else {})},
            settings={**drafts.settings, **statistics_slice(config), "methods": methods},
        )
        for drafts in request.nodes["drafts"]
    ]


def summary(node: Node, artifact: Artifact) -> list[SummaryRow]:
    """One row a method, the baselines included."""
    from analysis.decoding import metrics, speed
    from pipeline.store.decoded import read_decoded

    target, drafter = (node.settings[model]["label"] for model in ("target", "drafter"))
    bootstrap = bootstrap_settings(node.settings)
    one = read_decoded(target, drafter, artifact)
    speeds = speed.speedups(one, *bootstrap)
    found = metrics.acceptance(one, *bootstrap)
    ends = dict(zip(("ci_low", "ci_high"), limits("speedup"), strict=True))
    ends |= dict(zip(("tpot_ci_low", "tpot_ci_high"), limits("tpot_speedup"), strict=True))
    found = found.join(speeds.rename(columns=ends)).join(metrics.finished_runs(one, *bootstrap))
    shown = ["method", "draft_length", "temperature"]
    for name in ("rate", "tokens_per_call"):
        shown += [name, *limits(name)]
    shown += ["agreement", "nats_given_up", "tokens_per_second"]
    for name in ("speedup", "tpot_speedup"):  # of whole answers; after their first token
        shown += [name, *limits(name)]
    shown += ["length_ratio", "cut", "calls_finished", "seconds_ratio", *limits("seconds_ratio")]
    return [
        {"target": one.target, "prompts": one.prompts, **dict(zip(shown, row, strict=True))}
        for row in found[shown].itertuples(index=False)
    ]


STAGE = Stage(
    name="decoding",
    version=11,
    upstream=("prompts", "drafts"),  # the latter for methods that take what it measured
    columns={
        "data": RUN
        | {  # one row a decoded answer
            "source": "string",
            "method": "string",
            "drafter": "string",  # model, prompt_lookup, lookup_first or none
            "draft_length": "int32",
            "temperature": "float64",
            "token_ids": "list<int32>",
            "n_tokens": "int32",
            "text_tokens": "int32",  # of prompt and answer
            "ended": "bool",  # by the model, not by the limit
            "nats_given_up": "float64",  # below the target's first choices, sum over the tokens
            "agreement": "float64",  # share of positions with the token of the baseline
            "common_prefix": "int32",  # tokens before the first that differs from the baseline's
        },
        "calls": RUN
        | {  # one row a target call after the prompt's
            "position": "int32",  # in the answer, of the first drafted token
            "drafted": "int32",
            "depth": "int32",  # drafted tokens in a row: of a chain all of them
            "reach": "int32",  # of these, those before one that would end the answer
            "tested": "int32",
            "accepted": "int32",
            "emitted": "int32",
        },
        "levels": RUN
        | {  # one row a node of a tree whose children were tested
            "position": "int32",  # of the call
            "level": "int32",  # from 1
            "children": "int32",
            "accepted": "int32",  # the sibling index of the accepted child, from 1; 0 is none
        },
        "trajectory": STEP
        | {  # the greedy baseline, read again by both models
            "token_id": "int32",
            "draft_token_id": "int32",
            "draft_rank": "int32",
            "draft_log_prob": "float64",
            "z1": "float64",
            "z2": "float64",
            "top_surprisal": "float64",
        },
        "failures": {"prompt_id": "string", "reason": "string"},
        "timings/runs": RUN
        | {  # seconds
            "first_seconds": "float64",  # until the first token
            "begin_seconds": "float64",  # the drafter's pass over the prompt
            "seconds": "float64",  # all of it
            "processor_seconds": "float64",  # of the thread that decodes; null on CUDA
            "peak_bytes": "int64",  # of a CUDA device, null elsewhere
        },
        "timings/calls": RUN
        | {
            "drafted": "int32",
            "depth": "int32",
            "emitted": "int32",
            "draft_seconds": "float64",
            "verify_seconds": "float64",  # the target's pass
            "other_seconds": "float64",
        },
        PASSES: {  # one row a pass over a batch of texts
            "model": "string",  # target or drafter
            "batch": "int32",  # texts
            "tokens": "int32",  # of each
            "seconds": "float64",  # the least of a few
        },
    },
    nodes=nodes,
    module=f"{__name__}.compute",
    summary=summary,
    printed=True,
)
