"""Parts of specifications from the configuration: models, files of engines, the bootstrap."""

from __future__ import annotations

from analysis.statistics.bootstrap import Resampling
from conf.schema import Config, DrafterConfig, ModelConfig
from pipeline.errors import PipelineError
from pipeline.plan.specs import FileSpec, LogSpec, ModelRun, ModelSpec
from pipeline.store.identity import Identities, local_path

READER = 3  # version of what is read of the files of engines


def model_spec(key: str, model: ModelConfig, identities: Identities) -> ModelSpec:
    """Return the specification of a model; `key` is its configuration key."""
    return ModelSpec(
        identities.model(model.path, model.revision, f"{key}.path"),
        dtype=model.dtype,
        head_dtype=model.head_dtype,
        attention=model.attention,
        head=model.head if isinstance(model, DrafterConfig) else None,
    )


def model_run(config: Config, model: ModelConfig) -> ModelRun:
    """Return where a model is and how it runs."""
    return ModelRun(model.path, model.label, model.revision, config.device, config.execution)


def file_spec(key: str, path: str, identities: Identities) -> FileSpec:
    """Return the specification of an engine's file.

    Raises:
        PipelineError: there is no such file.
    """
    local = local_path(path, key)
    if local is None or not local.is_file():
        raise PipelineError(f"{key}={path}: there is no such file")
    return FileSpec(identities.source(path, None, key), READER)


def log_spec(key: str, path: str, config: Config, identities: Identities) -> LogSpec:
    """Return the specification of an engine's log.

    Raises:
        PipelineError: there is no such file.
    """
    file, log = file_spec(f"{key}.path", path, identities), config.distributions.log
    return LogSpec(file.identity, file.reader, log.part, log.error)


def statistics_of(config: Config) -> Resampling:
    """Return the settings of the bootstrap."""
    statistics = config.statistics
    return Resampling(statistics.resamples, statistics.confidence, statistics.seed)
