"""Stage prompts: samples prompts of the wanted length from a data set.

Run it with ``python -m pipeline stage=prompts``.
"""

from __future__ import annotations

from pipeline.errors import PipelineError, say
from pipeline.plan.specs import LoggedPrompts, SampledPrompts
from pipeline.plan.stage import Request, Stage
from pipeline.store.columns import Column
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
    wanted = STAGE.name in request.wanted and request.config.distributions.source == "model"
    missing = {node.fingerprint: node for node in nodes(request) if not request.made(node)}
    if wanted and missing:
        from pipeline.stages.prompts.compute import foreseen

        say([problem for node in missing.values() for problem in foreseen(node)])


def nodes(request: Request) -> list[Node]:
    """Return the planned prompts of each target: the same for targets that share a tokenizer.

    Of an engine's log they are its answers.
    """
    config, identities = request.config, request.identities
    prompts, source = config.prompts, config.distributions.source
    made: list[Node] = []
    for key, target in config.targets.items():
        spec: LoggedPrompts | SampledPrompts
        if source == "logs":
            spec = LoggedPrompts(request.log_spec(f"targets.{key}", target.path))
        else:
            tokenizer = identities.tokenizer(target.path, target.revision, f"targets.{key}.path")
            rows = identities.source(prompts.source, prompts.revision, "prompts.source")
            spec = SampledPrompts(tokenizer, rows, prompts, target)
        made.append(Node(STAGE.name, config.study, spec))
    return made


STAGE = Stage(
    name="prompts",
    version=4,
    upstream=(),
    columns={
        "data": {
            "prompt_id": Column("string", "id of the source"),
            "source": Column("string", "the row's `category`, else its file or data set"),
            "source_row": Column("int64", "the row in it; of an engine's log, the line"),
            "text": Column("string", "the first user message; empty of an engine's log"),
            "token_ids": Column(
                "list<int32>",
                "the prompt as the model reads it, template applied; empty of an engine's log",
            ),
            "n_tokens": Column("int32", "its length"),
        }
    },
    nodes=nodes,
    module=f"{__name__}.compute",
    check=check,
)
