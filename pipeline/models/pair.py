"""A target and its drafter, loaded together: another language model, or a head on the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.models.head_files import check_head, load_head, read_head
from pipeline.models.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.load import load_model, load_tokenizer, skeleton
from pipeline.models.vocabulary import check_same_tokens

Given = Mapping[str, Any]
DRAFTER = "drafter"  # its configuration key


def load_pair(
    config: Given, settings: Given, key: str
) -> tuple[LanguageModel, LanguageModel | HiddenDrafter]:
    """Load target and drafter.

    Args:
        config: what determines the numbers of both, by "target" and "drafter"; that of a head has
            "head".
        settings: where they are and how they run, likewise.
        key: the target's configuration key.

    Raises:
        PipelineError: one can't be loaded, or drafted tokens can't be taken back.
    """
    target = load_model(config["target"], settings["target"], key)
    target.check_drafts(key)
    if "head" in config[DRAFTER]:
        return target, load_head(config[DRAFTER], settings[DRAFTER], DRAFTER, target)
    drafter = load_model(config[DRAFTER], settings[DRAFTER], DRAFTER)
    drafter.check_drafts(DRAFTER)
    return target, drafter


def check_pair_skeletons(config: Given, settings: Given, key: str) -> None:
    """Check, before any weight is read, what a pair can't do; arguments as of `load_pair`.

    Raises:
        PipelineError: as `load_pair`, as far as configurations tell.
    """
    target = skeleton(config["target"], settings["target"], key)
    target.check_drafts(key)
    if "head" in config[DRAFTER]:
        path, commit = settings[DRAFTER]["path"], config[DRAFTER].get("commit")
        vocabulary = config[DRAFTER]["head"]["vocabulary"]
        check_head(read_head(path, commit, DRAFTER), target, vocabulary, DRAFTER)
    else:
        skeleton(config[DRAFTER], settings[DRAFTER], DRAFTER).check_drafts(DRAFTER)


def pair_tokenizer(config: Given, settings: Given, key: str) -> Any:
    """Return the tokenizer of the target, which is the drafter's; arguments as of `load_pair`.

    Raises:
        PipelineError: one can't be read, or the two give a token different ids.
    """
    tokenizer = load_tokenizer(settings["target"]["path"], config["target"].get("commit"), key)
    if "head" not in config[DRAFTER]:
        path, commit = settings[DRAFTER]["path"], config[DRAFTER].get("commit")
        other = load_tokenizer(path, commit, DRAFTER)
        check_same_tokens(
            tokenizer.get_vocab(),
            other.get_vocab(),
            f"{settings['target']['label']} and {settings[DRAFTER]['label']}",
        )
    return tokenizer
