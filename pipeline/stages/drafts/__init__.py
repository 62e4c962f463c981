"""Stage drafts: target and drafter on the target's own trajectories, over the full vocabulary.

Run it with ``python -m pipeline stage=drafts drafter=...``.
"""

from __future__ import annotations

from pipeline.errors import PipelineError
from pipeline.plan.slices import drafter_slice, run_settings
from pipeline.plan.stage import Request, Stage
from pipeline.store.columns import STEP, TARGET, Columns
from pipeline.store.node import Node

PAIR: Columns = {  # target p against drafter q
    "kl": "float64",  # KL(p||q)
    "reverse_kl": "float64",  # KL(q||p)
    "tv": "float64",
    "hellinger": "float64",  # squared distance
    "draft_token_id": "int32",  # the drafter's argmax
    "draft_rank": "int32",  # its rank under p, from 1
    "draft_log_prob": "float64",  # log p of it
    "argmax_rank": "int32",  # rank of p's argmax under q, from 1
    "draft_entropy": "float64",
    "erss_acceptance": "float64",  # probability: exponential races accept the first draft
    "harmonic_mean": "float64",  # its lower bound
    # at the temperature the answers were sampled at; NaN where they were not, or from a part of p
    "sampled_kl": "float64",
    "sampled_tv": "float64",
    "sampled_erss_acceptance": "float64",
    "sampled_harmonic_mean": "float64",
    "sampled_draft_prob": "float64",  # p of the drafter's argmax
    "sampled_top_surprisal": "float64",  # of p there, as in TARGET
    "sampled_log_tail": "float64",
    "sampled_entropy": "float64",
}
# of a drafter that can't draft all tokens: KL(p||q') of a q' that has them all, as
# HiddenDrafter.completed gives it; inf where the drafted token is no first choice of q'
FULL: Columns = {"full_kl": "float64?"}
DRAFT: Columns = {  # of q itself, with draft_entropy, so that kl and tv can be checked
    "draft_top_ids": "list<int32>",
    "draft_top_logits": "list<float32>",
    "draft_top_surprisal": "float64",
    "draft_log_tail": "float64",
}

# as in PAIR at each depth of a draft from 1, at which q is that of the other columns; a head's q
# depends on how many of the tokens before are drafted, that of a language model does not: one depth
DEPTHS: Columns = {
    "depth_kl": "list<float64>",
    "depth_tv": "list<float64>",
    "depth_draft_token_id": "list<int32>",
    "depth_draft_rank": "list<int32>",
    "depth_draft_log_prob": "list<float64>",
    "depth_argmax_rank": "list<int32>",
}


def nodes(request: Request) -> list[Node]:
    """The drafter beside each target, on the target's trajectories; none without a drafter.

    Raises:
        PipelineError: prompts may be too short for the depths of a head, or a model's tokenizer is
            not its target's.
    """
    config, drafter = request.config, request.config.drafter
    if drafter is None or config.distributions.source == "logs":
        return []
    if drafter.head is not None and "drafts" in request.asked and _wanted(request):
        depths, shortest = drafter.head.depths, config.prompts.min_tokens
        if shortest <= depths:  # a draft follows a token with a hidden state, and one read with it
            raise PipelineError(
                f"prompts.min_tokens={shortest} is too small for drafter.head.depths={depths}: a "
                f"draft of that depth needs a prompt of at least {depths + 1} tokens"
            )
    found = [
        Node(
            STAGE.name,
            distributions.label,
            {
                "target": distributions.config["model"],
                "drafter": drafter_slice(drafter, request.identities),
                "temperature": config.certificates.temperature,
            },
            {"prompts": distributions.upstream["prompts"], "distributions": (distributions,)},
            settings={"target": distributions.settings, "drafter": run_settings(config, drafter)},
        )
        for distributions in request.nodes["distributions"]
    ]
    if STAGE.name in request.asked and drafter.head is None:
        for node in found:
            if not request.made(node):
                _check_tokens(
                    f"targets.{node.label}", node.settings["target"]["path"], drafter.path
                )
    return found


def _check_tokens(key: str, target: str, drafter: str) -> None:
    """Check, of local models, that drafter and target have the same tokens; none is loaded."""
    from pipeline.models.prompt_tokens import check_same_tokens, file_tokenizer

    ours, theirs = file_tokenizer(target), file_tokenizer(drafter)
    if ours is not None and theirs is not None:
        pair = f"{key}.path={target} and drafter.path={drafter}"
        check_same_tokens(ours.get_vocab(), theirs.get_vocab(), pair)


def _wanted(request: Request) -> bool:
    """Whether the artifacts are made: stage decoding takes them for some trees only."""
    from pipeline.plan.methods import build_methods

    asked = request.config.decoding
    if request.config.stage != "decoding":
        return True
    methods = build_methods(asked.methods, asked.draft_length, measured=True)
    return any(method.needs_drafts for method in methods)


STAGE = Stage(
    name="drafts",
    version=6,
    upstream=("prompts", "distributions"),
    columns={
        "data": STEP | {"token_id": "int32"} | TARGET | PAIR | DRAFT | DEPTHS | FULL,
        "tokens": {"token_id": "int32", "text": "string"},
    },
    nodes=nodes,
    module=f"{__name__}.compute",
)
