"""Checks what a run's models can't do before any of them is read: minutes later is too late."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.models.devices import check_threads, choose_device
from pipeline.models.load import load_tokenizer, skeleton
from pipeline.models.vocabulary import check_same_tokens
from pipeline.plan.graph import DRAFTING, Node

Wanted = tuple[str, Mapping[str, Any], Mapping[str, Any]]


def check(nodes: Iterable[Node]) -> None:
    """Check the models that `nodes`, still to be computed, will load.

    Raises:
        PipelineError: there is no such device or are fewer processors; a model is of a kind that
            can't be run; one that reads drafts can't take them back; or tokenizers differ.
    """
    checked = set()
    for node in nodes:
        models = list(models_of(node))
        for key, config, settings in models:
            choose_device(settings["device"])
            check_threads(settings["threads"])
            if (key, len(models)) not in checked:
                found = skeleton(config, settings, key)
                if node.stage in DRAFTING:
                    found.check_drafts(key)
                checked.add((key, len(models)))
        if node.stage in DRAFTING:
            target, drafter = (
                load_tokenizer(settings["path"], config.get("commit"), key).get_vocab()
                for key, config, settings in models
            )
            check_same_tokens(target, drafter, " and ".join(key for key, _, _ in models))


def models_of(node: Node) -> Iterator[Wanted]:
    """Yield key, configuration and settings of the models that a node loads, the target first."""
    target = f"targets.{node.label}"
    if node.stage == "distributions":
        yield target, node.config["model"], node.settings
    elif node.stage in DRAFTING:
        yield target, node.config["target"], node.settings["target"]
        yield "drafter", node.config["drafter"], node.settings["drafter"]
