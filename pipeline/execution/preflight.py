"""Checks what a run's models can't do before any of them is read: minutes later is too late."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.execution.worker import execution_of, target_settings
from pipeline.models.devices import check_threads, choose_device
from pipeline.models.load import check_pair_skeletons, pair_tokenizer, skeleton
from pipeline.plan.stage import Node, stage_of


def check_models(nodes: Iterable[Node]) -> None:
    """Check the models that `nodes`, still to be computed, will load.

    Raises:
        PipelineError: there is no such device or are fewer processors; workers can't be had; a
            model is of a kind that can't be run; one that reads drafts can't take them back; or
            tokenizers differ.
    """
    checked = set()
    for node in nodes:
        models = stage_of(node).models(node)
        elsewhere = bool(models) and _join_workers(node)
        for _, _, settings in models:
            if not elsewhere:
                choose_device(settings["device"])
                check_threads(settings["threads"])
        if not models or (models[0].key, len(models)) in checked:
            continue
        key, config, settings = models[0]
        checked.add((key, len(models)))
        if len(models) == 1:
            skeleton(config, settings, key)
        else:
            check_pair_skeletons(node.config, node.settings, key)
            pair_tokenizer(node.config, node.settings, key)


def _join_workers(node: Node) -> bool:
    """Join the workers that a node asks for; return whether they may be on other machines."""
    asked = execution_of(node)
    if asked["engine"] == "inline":
        return False
    from pipeline.execution.ray_session import connect, share_out

    there = connect(asked["address"]).cluster_resources()
    settings = target_settings(node)
    share_out(there, asked["workers"], settings["device"], settings["threads"])
    return asked["address"] is not None
