"""Stage prompts: samples prompts of the wanted length from a data set.

Run it with ``python -m pipeline stage=prompts``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.columns import Column
from pipeline.errors import PipelineError, say
from pipeline.plan.plain import to_plain
from pipeline.plan.specs import LoggedPrompts, SampledPrompts
from pipeline.stage import Stage, Task

if TYPE_CHECKING:
    from pipeline.study import Study


def check(study: Study) -> None:
    """Check that there are such prompts, of those that were not chosen yet: all at once.

    Raises:
        PipelineError: no length is allowed, or `compute` will refuse them.
    """
    prompts = study.config.prompts
    if prompts.min_tokens > prompts.max_tokens:
        raise PipelineError(
            f"prompts.min_tokens={prompts.min_tokens} exceeds "
            f"prompts.max_tokens={prompts.max_tokens}: no prompt has such a length"
        )
    wanted = STAGE.name in study.wanted and study.config.distributions.source == "model"
    missing = {task.key: task for task in plan(study) if not study.made(task)}
    if wanted and missing:
        from pipeline.stages.prompts.compute import foreseen

        say([problem for task in missing.values() for problem in foreseen(task)])


def plan(study: Study) -> list[Task]:
    """Return the planned prompts of each target: the same for targets that share a tokenizer.

    Of an engine's log they are its answers.
    """
    config, identities = study.config, study.identities
    prompts, source = config.prompts, config.distributions.source
    made: list[Task] = []
    for key, target in config.targets.items():
        spec: LoggedPrompts | SampledPrompts
        if source == "logs":
            spec = LoggedPrompts(study.log_spec(f"targets.{key}", target.path))
        else:
            tokenizer = identities.tokenizer(target.path, target.revision, f"targets.{key}.path")
            rows = identities.source(prompts.source, prompts.revision, "prompts.source")
            spec = SampledPrompts(tokenizer, rows, prompts, target)
        made.append(Task(STAGE, config.study, to_plain(spec), {}, spec))
    return made


STAGE = Stage(
    name="prompts",
    version=4,
    upstream=(),
    tables={
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
    plan=plan,
    compute=f"{__name__}.compute:compute",
    check=check,
)
