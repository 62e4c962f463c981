"""Slices of the configuration: what of a model, a rule or the bootstrap determines an artifact."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.schema import Config, Drafter, Model
from pipeline.errors import PipelineError
from pipeline.store.fingerprint import file_digest
from pipeline.store.identity import Identities, local_path

if TYPE_CHECKING:
    from pipeline.plan.method import Method


def model_slice(key: str, model: Model, identities: Identities) -> dict[str, Any]:
    """What of a model determines its numbers."""
    return {
        **identities.model(model.path, model.revision, f"{key}.path"),
        "dtype": model.dtype,
        "head_dtype": model.head_dtype,
        "attention": model.attention,
    }


def drafter_slice(drafter: Drafter, identities: Identities) -> dict[str, Any]:
    """What of the drafter determines its numbers."""
    head = {} if drafter.head is None else {"head": asdict(drafter.head)}
    return model_slice("drafter", drafter, identities) | head


def log_slice(key: str, path: str, config: Config, identities: Identities) -> dict[str, Any]:
    """What of an engine's log determines what is read of it.

    Raises:
        PipelineError: there is no such file.
    """
    local = local_path(path, f"{key}.path")
    if local is None or not local.is_file():
        raise PipelineError(f"{key}.path={path}: the file of a log is expected")
    log = config.distributions.log
    source = identities.source(path, None, f"{key}.path")
    part = log.draft_part if key == "drafter" else log.part
    return {**source, "part": part, "error": log.error}


def run_settings(config: Config, model: Model) -> dict[str, Any]:
    """Where and how a model runs; nothing here enters a fingerprint."""
    return {
        "path": model.path,
        "revision": model.revision,
        "label": model.label,
        "device": config.device.name,
        "threads": config.device.threads,
        "batch": config.device.batch,
        "cache": config.device.cache,
        "execution": asdict(config.execution),
    }


def rule_slice(rule: Any) -> dict[str, Any]:
    """What determines a rule: its parameters and, of a user's own, its source."""
    from analysis.rules import to_mapping

    if not rule.own:
        return {"rule": to_mapping(rule)}
    return {"rule": to_mapping(rule), "source": file_digest(Path(inspect.getfile(type(rule))))}


def method_slice(method: Method) -> dict[str, Any]:
    """What of a method determines what it decodes: its mapping, and its rule's own source."""
    from pipeline.plan.method import method_mapping

    return method_mapping(method) | ({} if method.rule is None else rule_slice(method.rule))


def statistics_slice(config: Config) -> dict[str, Any]:
    """The settings of the bootstrap."""
    return {
        "resamples": config.statistics.resamples,
        "confidence": config.statistics.confidence,
        "statistics_seed": config.statistics.seed,
    }


def check_stored_tokens(rules: Iterable[Any], k: int) -> None:
    """Check that `k` stored tokens a step are enough for all rules."""
    for rule in rules:
        if rule.minimum_k > k:
            raise PipelineError(
                f"distributions.k={k} is too small for {rule.label}: "
                f"store at least {rule.minimum_k} tokens a step"
            )
