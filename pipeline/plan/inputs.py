"""Parts of specifications from the configuration: models, files of engines, the bootstrap."""

from __future__ import annotations

from analysis.statistics.bootstrap import Resampling
from conf.schema import Config, DrafterConfig, ModelConfig
from pipeline.errors import PipelineError
from pipeline.plan.specs import FileSpec, LogSpec, ModelSpec
from pipeline.plan.stage import Request
from pipeline.store.identity import local_path

READER = 3  # version of what is read of the files of engines


def model_spec(key: str, model: ModelConfig, request: Request) -> ModelSpec:
    """Return the specification of a model; `key` is its configuration key."""
    identity = request.identities.model(model.path, model.revision, f"{key}.path")
    config, head = request.config, model.head if isinstance(model, DrafterConfig) else None
    return ModelSpec(
        key, identity, model, device=config.device, execution=config.execution, head=head
    )


def file_spec(key: str, path: str, request: Request) -> FileSpec:
    """Return the specification of an engine's file.

    Raises:
        PipelineError: there is no such file.
    """
    local = local_path(path, key)
    if local is None or not local.is_file():
        raise PipelineError(f"{key}={path}: there is no such file")
    return FileSpec(path, request.identities.source(path, None, key), READER)


def log_spec(key: str, path: str, request: Request) -> LogSpec:
    """Return the specification of an engine's log; errors are those of `file_spec`."""
    file, log = file_spec(f"{key}.path", path, request), request.config.distributions.log
    return LogSpec(**vars(file), part=log.part, error=log.error)


def statistics_of(config: Config) -> Resampling:
    """Return the settings of the bootstrap."""
    statistics = config.statistics
    return Resampling(statistics.resamples, statistics.confidence, statistics.seed)
