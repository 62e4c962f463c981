"""The graph of stages, in order. The STAGE of each describes the rest.

`prepare` turns a configuration into nodes; a node is one artifact to be.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from omegaconf import DictConfig

from analysis.rules import Rule
from conf import schema
from conf.schema import Config, ModelConfig
from pipeline.config import settings_of
from pipeline.errors import PipelineError, noted, say
from pipeline.hub import Identities, local_path
from pipeline.plan.rules import build_rules, rules_by_name
from pipeline.plan.stage import Request, Stage
from pipeline.store.artifacts import Store
from pipeline.store.node import Node

STAGES: dict[str, Stage] = {
    name: import_module(f"pipeline.stages.{name}").STAGE for name in schema.STAGE_NAMES
}


def with_upstream(nodes: Iterable[Node]) -> dict[str, Node]:
    """Return `nodes` and all they are made from, by fingerprint."""
    nodes_by_fingerprint: dict[str, Node] = {}
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node.fingerprint not in nodes_by_fingerprint:
            nodes_by_fingerprint[node.fingerprint] = node
            todo += node.upstream_nodes
    return nodes_by_fingerprint


def prepare(composed: DictConfig) -> tuple[Config, dict[str, list[Node]], Store]:
    """Check a composed configuration and plan every stage, without computing anything.

    Returns:
        Typed settings, the nodes of every stage, target by target, and their store.

    Raises:
        PipelineError: the configuration or an input is not usable; all that is wrong, a line each.
    """
    problems, rules = list[str](), list[Rule]()
    config = settings_of(composed)
    store = Store(Path(config.outputs) / "artifacts")
    identities = Identities(store.root / ".identities.json")
    with noted(problems):
        rules = build_rules(config.criteria)
    named: dict[str, list[Rule]] = {}
    with noted(problems):
        named = rules_by_name(config, rules)
    if not config.targets:
        raise PipelineError(
            "no target: add target=mini_large, or target=local "
            "targets.local.path=DIRECTORY_OR_HUB_ID"
        )
    request = Request(
        config, rules, named, identities, wanted=frozenset(_closure(config.stage)), made=store.has
    )
    for stage in STAGES.values():
        with noted(problems):
            stage.check(request)
    for key, model in models_named(config).items():
        with noted(problems):
            local_path(model.path, key)
    if not named:  # the rules are wrong: nothing that takes them can be planned
        say(problems)
    with noted(problems):
        for stage in STAGES.values():
            request.nodes[stage.name] = list(stage.nodes(request))
    say(problems)
    identities.save()
    return config, request.nodes, store


def models_named(config: Config) -> dict[str, ModelConfig]:
    """Return the models of a configuration, by the key of their paths."""
    models = {f"targets.{name}.path": target for name, target in config.targets.items()}
    return models if config.drafter is None else models | {"drafter.path": config.drafter}


def _closure(name: str) -> set[str]:
    """Return a stage and all it is made from, by name."""
    return {name}.union(*(_closure(above) for above in STAGES[name].upstream))
