"""Stage prompts: samples prompts of the wanted length from a data set.

Run it with ``python -m pipeline stage=prompts``.
"""

from __future__ import annotations

from typing import Any

from pipeline.errors import PipelineError
from pipeline.plan.explain import say
from pipeline.plan.slices import file_slice, log_slice
from pipeline.plan.stage import Request, Stage
from pipeline.store.node import Node


def check(request: Request) -> None:
    """Check that there are such prompts, of those that were not chosen yet: all at once.

    Raises:
        PipelineError: no length is allowed, or `compute` will refuse them.
    """
    prompts = request.config.prompts
    if prompts.min_tokens > prompts.max_tokens:
        raise PipelineError(
            f"prompts.min_tokens={prompts.min_tokens} exceeds "
            f"prompts.max_tokens={prompts.max_tokens}: no prompt has such a length"
        )
    asked = STAGE.name in request.asked and request.config.distributions.source == "model"
    missing = {node.fingerprint: node for node in nodes(request) if not request.made(node)}
    if asked and missing:
        from pipeline.stages.prompts.compute import foreseen

        say([problem for node in missing.values() for problem in foreseen(node)])


def nodes(request: Request) -> list[Node]:
    """The prompts of each target: equal for targets that share a tokenizer.

    Of an engine's log they are its answers, of answers that it served what was asked.
    """
    prompts, identities = request.config.prompts, request.identities
    if request.config.distributions.source == "logs":
        return [
            Node(
                STAGE.name,
                request.config.study,
                {"log": log_slice(f"targets.{key}", target.path, request.config, identities)},
                settings={"source": target.path},
            )
            for key, target in request.config.targets.items()
        ]
    if request.config.distributions.source == "answers":
        key, paths = "distributions.answers", request.config.distributions.answers
        asked: dict[str, Any] = {"answers": [file_slice(key, path, identities) for path in paths]}
    else:
        asked = {
            "source": identities.source(prompts.source, prompts.revision, "prompts.source"),
            "split": prompts.split,
            "count": prompts.count,
            "min_tokens": prompts.min_tokens,
            "max_tokens": prompts.max_tokens,
            "seed": prompts.seed,
        }
    return [
        Node(
            STAGE.name,
            request.config.study,
            asked
            | {
                "template": prompts.template,
                "enable_thinking": prompts.enable_thinking,
                "tokenizer": identities.tokenizer(
                    target.path, target.revision, f"targets.{key}.path"
                ),
            },
            settings={
                "source": prompts.source,
                "revision": prompts.revision,
                "answers": list(request.config.distributions.answers),
                "model": target.path,
                "model_revision": target.revision,
            },
        )
        for key, target in request.config.targets.items()
    ]


STAGE = Stage(
    name="prompts",
    version=3,
    upstream=(),
    columns={
        "data": {
            "prompt_id": "string",
            "source": "string",
            "source_row": "int64",
            "text": "string",
            "later_turns": "list<string>",  # of the user, after the answer to text
            "token_ids": "list<int32>",
            "n_tokens": "int32",
        },
        "answers": {"prompt_id": "string", "token_ids": "list<int32>"},  # that an engine served
        "log_probs": {  # that it gave with them, of the emitted and the most probable tokens
            "prompt_id": "string",
            "position": "int32",
            "token_id": "int32",
            "log_prob": "float64",
        },
    },
    nodes=nodes,
    module=f"{__name__}.compute",
    check=check,
)
