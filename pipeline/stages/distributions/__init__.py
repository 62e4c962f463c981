"""Stage distributions: decodes every prompt and stores the distribution of every step.

Run it with ``python -m pipeline stage=distributions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.columns import STEP, TARGET, Column
from pipeline.criteria import check_stored_tokens, judged_by_logs
from pipeline.errors import PipelineError
from pipeline.plan.plain import to_plain
from pipeline.plan.specs import DistributionsSpec, LoggedDistributions
from pipeline.stage import Stage, Task

if TYPE_CHECKING:
    from pipeline.study import Study


def check(study: Study) -> None:
    """Check that enough tokens of a step are stored for the rules, and the settings of a log.

    Raises:
        PipelineError: it is not so.
    """
    config = study.config
    check_stored_tokens(study.rules, config.distributions.k)
    settings = config.distributions
    if settings.source != "logs":
        return
    if config.drafter is not None:
        raise PipelineError(
            f"drafter {config.drafter.label} is not allowed with distributions.source=logs, which "
            "has no model to compare it with: give drafter=none"
        )
    if config.distributions.log.vocab_size is None:
        raise PipelineError(
            "distributions.log.vocab_size must be given: the size of the logged model's vocabulary "
            "(vocab_size of its config.json)"
        )
    if config.certificates.temperature != 1.0:
        raise PipelineError(
            f"certificates.temperature={config.certificates.temperature:g} is not allowed with "
            "distributions.source=logs: a log has distributions at temperature 1 only"
        )
    for rule in study.rules:
        if not judged_by_logs(rule):
            raise PipelineError(
                f"{rule.label} can't be certified with distributions.source=logs: it needs raw "
                "logits or counts of its own, and a log has rounded log-probabilities"
            )


def plan(study: Study) -> list[Task]:
    """Return one planned artifact a target: its own trajectories, or an engine's log."""
    config = study.config
    settings = config.distributions
    made = []
    pairs = zip(config.targets.items(), study.tasks["prompts"], strict=True)
    for (key, target), prompts in pairs:
        spec: LoggedDistributions | DistributionsSpec
        if settings.source == "logs":
            log = study.log_spec(f"targets.{key}", target.path)
            assert settings.log.vocab_size is not None
            spec = LoggedDistributions(log, settings.log.vocab_size, settings.k, target.label)
        else:
            spec = DistributionsSpec(
                study.model_spec(f"targets.{key}", target),
                steps=settings.steps,
                k=settings.k,
                temperature=settings.temperature,
                seed=settings.seed,
                certified_temperature=config.certificates.temperature,
            )
        made.append(Task(STAGE, key, to_plain(spec), {"prompts": prompts}, spec))
    return made


STAGE = Stage(
    name="distributions",
    version=4,
    upstream=("prompts",),
    tables={
        "data": STEP | {"token_id": Column("int32", "the token emitted")} | TARGET,
        "tokens": {
            "token_id": Column("int32", "assigned to a token of a log without the engine's ids"),
            "text": Column("string", "its text"),
        },
    },
    plan=plan,
    compute=f"{__name__}.compute:compute",
    check=check,
)
