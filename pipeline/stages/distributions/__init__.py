"""Stage distributions: decodes every prompt and keeps what is known of every step's distribution.

Run it with ``python -m pipeline stage=distributions``.
"""

from __future__ import annotations

from conf.schema import Config
from pipeline.plan.slices import check_stored_tokens, model_slice, run_settings
from pipeline.plan.stage import Node, Request, Stage, UsedModel
from pipeline.store.columns import STEP, TARGET, TEMPERED


def check(request: Request) -> None:
    """Check that enough tokens of a step are stored for the rules."""
    check_stored_tokens(request.rules, request.config.distributions.k)


def nodes(request: Request) -> list[Node]:
    """The distributions of each target's trajectories."""
    config = request.config
    asked = config.distributions
    return [
        Node(
            STAGE.name,
            key,
            {
                "model": model_slice(f"targets.{key}", target, request.identities),
                "steps": asked.steps,
                "k": asked.k,
                "temperature": asked.temperature,
                "top_p": asked.top_p,
                "top_k": asked.top_k,
                "seed": asked.seed,
                "temperatures": stored_temperatures(config),
            },
            {"prompts": prompts},
            settings=run_settings(config, target),
        )
        for (key, target), prompts in zip(
            config.targets.items(), request.by_target("prompts"), strict=True
        )
    ]


def stored_temperatures(config: Config) -> list[float]:
    """Return the temperatures besides 1 at which distributions are stored, increasing.

    Those of the configuration, and that of the certificates: one that is listed needs no new pass.
    """
    asked = {*config.distributions.temperatures, config.certificates.temperature}
    return sorted(asked - {1.0})


def models(node: Node) -> list[UsedModel]:
    """The target."""
    return [UsedModel(f"targets.{node.label}", node.config["model"], node.settings)]


STAGE = Stage(
    name="distributions",
    version=3,
    upstream=("prompts",),
    columns={"data": STEP | {"token_id": "int32"} | TARGET | TEMPERED},
    nodes=nodes,
    module=f"{__name__}.compute",
    check=check,
    models=models,
    resumable=True,
)
