"""Stage distributions: decodes every prompt and stores the distribution of every step.

Run it with ``python -m pipeline stage=distributions``.
"""

from __future__ import annotations

from pipeline.criteria import check_stored_tokens, judged_by_logs
from pipeline.errors import PipelineError
from pipeline.plan.specs import DistributionsSpec, LoggedDistributions
from pipeline.plan.stage import Request, Stage
from pipeline.store.columns import STEP, TARGET, Column
from pipeline.store.node import Node


def check(request: Request) -> None:
    """Check that enough tokens of a step are stored for the rules, and the settings of a log.

    Raises:
        PipelineError: it is not so.
    """
    config = request.config
    check_stored_tokens(request.rules, config.distributions.k)
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
    for rule in request.rules:
        if not judged_by_logs(rule):
            raise PipelineError(
                f"{rule.label} can't be certified with distributions.source=logs: it needs raw "
                "logits or counts of its own, and a log has rounded log-probabilities"
            )


def nodes(request: Request) -> list[Node]:
    """Return one planned artifact a target: its own trajectories, or an engine's log."""
    config = request.config
    settings = config.distributions
    made = []
    pairs = zip(config.targets.items(), request.by_target("prompts"), strict=True)
    for (key, target), prompts in pairs:
        spec: LoggedDistributions | DistributionsSpec
        if settings.source == "logs":
            log = request.log_spec(f"targets.{key}", target.path)
            assert settings.log.vocab_size is not None
            spec = LoggedDistributions(log, settings.log.vocab_size, settings.k, target.label)
        else:
            spec = DistributionsSpec(
                request.model_spec(f"targets.{key}", target),
                steps=settings.steps,
                k=settings.k,
                temperature=settings.temperature,
                seed=settings.seed,
                certified_temperature=config.certificates.temperature,
            )
        made.append(Node(STAGE.name, key, spec, {"prompts": prompts}))
    return made


STAGE = Stage(
    name="distributions",
    version=4,
    upstream=("prompts",),
    columns={
        "data": STEP | {"token_id": Column("int32", "the token emitted")} | TARGET,
        "tokens": {
            "token_id": Column("int32", "assigned to a token of a log without the engine's ids"),
            "text": Column("string", "its text"),
        },
    },
    nodes=nodes,
    module=f"{__name__}.compute",
    check=check,
)
