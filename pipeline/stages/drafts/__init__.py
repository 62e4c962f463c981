"""Stage drafts: target and drafter on the target's own trajectories, over the full vocabulary.

Run it with ``python -m pipeline stage=drafts drafter=...``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.columns import STEP, TARGET, Column, Columns
from pipeline.errors import PipelineError
from pipeline.plan.plain import to_plain
from pipeline.plan.specs import DraftsSpec
from pipeline.stage import Stage, Task

if TYPE_CHECKING:
    from pipeline.study import Study

_SAMPLED = (
    'at the sampling temperature of the answers (`facts["sampled_temperature"]`); NaN for greedy '
    "answers"
)
PAIR: Columns = {  # target p against drafter q
    "kl": Column("float64", "KL(p‖q) over the whole vocabulary; inf where q lacks a token of p"),
    "tv": Column("float64", "total variation; speculative sampling accepts with 1 - tv"),
    "draft_token_id": Column("int32", "the drafter's argmax"),
    "draft_rank": Column("int32", "its rank under p, from 1"),
    "draft_log_prob": Column("float64", "its log-probability under p"),
    "argmax_rank": Column("int32", "rank of p's argmax under q, from 1"),
    "draft_entropy": Column("float64", "of q, nats"),
    "sampled_tv": Column("float64", f"the same {_SAMPLED}"),
    "sampled_erss_acceptance": Column(
        "float64", f"probability that exponential races accept the first draft, {_SAMPLED}"
    ),
    "sampled_harmonic_mean": Column("float64", f"its lower bound, {_SAMPLED}"),
}
# q' as HiddenDrafter.completed gives it
_FULL = (
    "only of a head with a reduced vocabulary: KL(p‖q′) at depth 1, where q′ gives probability to "
    'the missing tokens (`facts["completed"]`); inf where the draft is no first choice of q′'
)
FULL: Columns = {"full_kl": Column("float64", _FULL, optional=True)}
DRAFT: Columns = {  # with draft_entropy: kl and tv can be checked from them
    "draft_top_ids": Column("list<int32>", "as top_ids, of the drafter: min(64, V) tokens"),
    "draft_top_logits": Column("list<float32>", "as top_logits, of the drafter"),
    "draft_top_surprisal": Column("float64", "as top_surprisal, of the drafter"),
    "draft_log_tail": Column("float64", "as log_tail, of the drafter"),
}
_DEPTH = "the same at depths 1, 2, ... of a head's draft; a language model has one depth"
DEPTHS: Columns = {
    "depth_kl": Column("list<float64>", _DEPTH),
    "depth_tv": Column("list<float64>", _DEPTH),
    "depth_draft_token_id": Column("list<int32>", _DEPTH),
    "depth_draft_rank": Column("list<int32>", _DEPTH),
    "depth_draft_log_prob": Column("list<float64>", _DEPTH),
    "depth_argmax_rank": Column("list<int32>", _DEPTH),
}


def plan(study: Study) -> list[Task]:
    """Return one planned artifact a target, on its trajectories; none without a drafter.

    Raises:
        PipelineError: prompts may be too short for the depths of a head, or a model's tokenizer is
            not its target's.
    """
    config, drafter = study.config, study.config.drafter
    if drafter is None or config.distributions.source == "logs":
        return []
    if drafter.head is not None and "drafts" in study.wanted and _wanted(study):
        depths, shortest = drafter.head.depths, config.prompts.min_tokens
        if shortest <= depths:  # a draft follows a token with a hidden state, and one read with it
            raise PipelineError(
                f"prompts.min_tokens={shortest} is too small for drafter.head.depths={depths}: a "
                f"draft of that depth needs a prompt of at least {depths + 1} tokens"
            )
    spec = study.model_spec("drafter", drafter)
    made = []
    for steps in study.tasks["distributions"]:
        pair = DraftsSpec(steps.spec.model, spec, config.certificates.temperature)
        inputs = {"prompts": steps.inputs["prompts"], "distributions": steps}
        made.append(Task(STAGE, steps.label, to_plain(pair), inputs, pair))
    if STAGE.name in study.wanted and drafter.head is None:
        for task in made:
            if not study.made(task):
                _check_tokens(f"targets.{task.label}", task.spec.target.settings.path, drafter.path)
    return made


def _check_tokens(key: str, target: str, drafter: str) -> None:
    """Check, of local models, that drafter and target have the same tokens; none is loaded."""
    from pipeline.models.prompt_tokens import check_same_tokens, file_tokenizer

    ours, theirs = file_tokenizer(target), file_tokenizer(drafter)
    if ours is not None and theirs is not None:
        pair = f"{key}.path={target} and drafter.path={drafter}"
        check_same_tokens(ours.get_vocab(), theirs.get_vocab(), pair)


def _wanted(study: Study) -> bool:
    """Whether the artifacts are made: stage decoding takes them for some trees only."""
    from pipeline.methods import build_methods

    settings = study.config.decoding
    if study.config.stage != "decoding":
        return True
    methods = build_methods(settings.methods, study.decoded, settings.draft_length)
    return any(method.needs_drafts for method in methods)


STAGE = Stage(
    name="drafts",
    version=8,
    upstream=("prompts", "distributions"),
    tables={
        "data": STEP
        | {"token_id": Column("int32", "the token emitted")}
        | TARGET
        | PAIR
        | DRAFT
        | DEPTHS
        | FULL,
        "tokens": {
            "token_id": Column("int32", "every token that occurs"),
            "text": Column("string", "its text"),
        },
    },
    plan=plan,
    compute=f"{__name__}.compute:compute",
)
