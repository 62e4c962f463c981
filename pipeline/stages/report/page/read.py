"""Reads the steps of a target as the page takes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from analysis.page.steps import Drafted, TargetSteps
from analysis.rules import Rule
from analysis.statistics.bootstrap import Flags
from pipeline.stages.report.inputs import Target
from pipeline.store.artifacts import Artifact
from pipeline.store.distributions import words
from pipeline.store.node import Node


def target_steps(
    node: Node, target: Target, drafts: Artifact | None, acceptance: Artifact | None
) -> TargetSteps:
    """Return the steps of a target, and what its drafter says there.

    Args:
        node: of the target's distributions.
        target: its artifacts.
        drafts: of stage drafts; None without a drafter, or where both were only logged.
        acceptance: of stage acceptance, likewise.
    """
    tokens = target.dump.read(columns=["token_id"])["token_id"].to_numpy()
    rules = [item.rule for item in target.certificates]
    drafted = None
    if drafts is not None and acceptance is not None:
        drafted = read_drafted(drafts, accepted(acceptance, rules))
    ids = [tokens, target.candidates.ravel()]
    ids += [] if drafted is None else [drafted.token]
    return TargetSteps(
        target.label,
        target.certificates,
        target.bootstrap,
        tokens,
        target.candidates,
        target.probabilities,
        drafted,
        read_prompts(target),
        words(node, target.dump, drafts, np.unique(np.concatenate(ids)).tolist()),
    )


def read_drafted(drafts: Artifact, by_rule: Mapping[str, Flags]) -> Drafted:
    """Read what a drafter says; `by_rule` has what each rule accepts."""
    names = ["kl", "draft_token_id", "draft_top_surprisal", "draft_log_prob"]
    table = drafts.read(columns=names)
    kl, token, surprisal, log_prob = (table[name].to_numpy() for name in names)
    return Drafted(kl, token, np.exp(-surprisal), np.exp(log_prob), by_rule)


def accepted(acceptance: Artifact, rules: list[Rule]) -> dict[str, Flags]:
    """Return the (N,) steps at which each of some rules accepted the drafter, by its label."""
    table = acceptance.read(columns=["rule", "accepted"])
    column = table["rule"].combine_chunks().dictionary_encode()
    place = {label: at for at, label in enumerate(column.dictionary.to_pylist())}
    at, flags = column.indices.to_numpy(), table["accepted"].to_numpy()
    return {rule.label: flags[at == place[rule.label]] for rule in rules if rule.label in place}


def read_prompts(target: Target) -> list[tuple[str, str]]:
    """Return the id and the text of each prompt, in the order of the steps."""
    table = target.prompts.read(columns=["prompt_id", "text"]).to_pydict()
    texts = dict(zip(table["prompt_id"], table["text"], strict=True))
    ids = target.dump.read(columns=["prompt_id"])["prompt_id"]
    first = np.cumsum(target.bootstrap.steps) - target.bootstrap.steps
    return [(name, texts[name]) for name in ids.take(first).to_pylist()]
