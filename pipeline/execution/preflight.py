"""Checks what a run's models can't do before any of them is read: minutes later is too late."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.models.devices import check_threads, choose_device
from pipeline.models.load import load_tokenizer, skeleton
from pipeline.models.vocabulary import check_same_tokens
from pipeline.plan.stage import Node, stage_of


def check_models(nodes: Iterable[Node]) -> None:
    """Check the models that `nodes`, still to be computed, will load.

    Raises:
        PipelineError: there is no such device or are fewer processors; a model is of a kind that
            can't be run; one that reads drafts can't take them back; or tokenizers differ.
    """
    checked = set()
    for node in nodes:
        models = stage_of(node).models(node)
        drafting = len(models) > 1  # the target and a drafter
        for key, config, settings in models:
            choose_device(settings["device"])
            check_threads(settings["threads"])
            if (key, len(models)) not in checked:
                found = skeleton(config, settings, key)
                if drafting:
                    found.check_drafts(key)
                checked.add((key, len(models)))
        if drafting:
            target, drafter = (
                load_tokenizer(settings["path"], config.get("commit"), key).get_vocab()
                for key, config, settings in models
            )
            check_same_tokens(target, drafter, " and ".join(key for key, _, _ in models))
