"""What certificates say of a drafter besides a bound of its KL at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.acceptance.budgets import budget_curves, budget_of_drafter, exceeds_budget
from analysis.acceptance.confidence import Asked, DraftedSteps, stopping_statistics
from analysis.acceptance.coverage import coverage, finite_shares
from analysis.acceptance.ranking import ranking, scores
from analysis.acceptance.realised import Steps, Verdict, judge
from analysis.acceptance.sampling import SampledSteps, sampling_statistics
from analysis.rules import Rule
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.topk import TopK
from pipeline.errors import PipelineError
from pipeline.store.artifacts import Artifact
from pipeline.store.distributions import read_drafter

LEVELS = tuple(np.geomspace(1e-3, 1.0, 25).tolist())  # of a mean KL, nats
FEWER_LEVELS = LEVELS[::6]  # of certified probabilities, whose mean budgets take longer
Judged = dict[str, dict[str, Verdict]]  # by divergence, then by the label of the rule
Floats = np.ndarray[Any, np.dtype[np.float64]]


def read_distances(drafts: Artifact, divergences: Sequence[str]) -> dict[str, Floats]:
    """Read how target and drafter differ at each step, by divergence."""
    table = drafts.read(columns=list(divergences))
    return {name: table[name].to_numpy() for name in divergences}


def judge_by_divergence(
    steps: Steps,
    rules: Mapping[str, Rule],
    by_kl: Mapping[str, Verdict],
    distances: Mapping[str, Floats],
) -> Judged:
    """Judge every rule at every step, by the certificates of each divergence; `by_kl` has KL's."""
    return {
        name: {label: by_kl[label] for label in rules}
        if name == "kl"
        else dict(zip(rules, judge(steps, list(rules.values()), name, distance), strict=True))
        for name, distance in distances.items()
    }


def divergence_rows(
    judged: Judged, distances: Mapping[str, Floats], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Return what the certificates of each divergence, and their union, cover of each rule."""
    rules = next(iter(judged.values()))
    by_rule = [
        coverage({name: found[label] for name, found in judged.items()}, bootstrap)
        for label in rules
    ]
    return pd.concat([finite_shares(distances, bootstrap), *by_rule], ignore_index=True)


def budget_rows(
    steps: Steps, verdicts: Sequence[Verdict], bootstrap: PromptBootstrap, draft_length: int
) -> pd.DataFrame:
    """Return what a mean KL certifies of each rule, along the KL and at the drafter's own.

    There also of drafts of at most `draft_length` tokens.

    Raises:
        PipelineError: the drafter is rejected more often than its mean KL allows.
    """
    frames = []
    for verdict in verdicts:
        if exceeds_budget(steps, verdict):
            raise PipelineError(
                f"rule {verdict.rule.label}: {int(np.sum(~verdict.accepted))} steps are rejected, "
                f"more than a mean KL of {float(steps.kl.mean())!r} can reject, which cannot be. "
                "Please report it"
            )
        frames += [
            budget_curves(verdict, LEVELS, steps.trajectories),
            budget_of_drafter(steps, verdict, bootstrap, draft_length),
        ]
    return pd.concat(frames, ignore_index=True)


def read_sampled(drafts: Artifact, target: TopK) -> SampledSteps | None:
    """Read drafter and target at the temperature of the answers; None where it has none."""
    temperature = drafts.record["facts"]["sampled_temperature"]
    if temperature is None:
        return None
    names = ("top_surprisal", "log_tail", "entropy", "kl", "tv", "draft_prob")
    table = drafts.read(columns=[f"sampled_{name}" for name in names])
    found = {name: table[f"sampled_{name}"].to_numpy() for name in names}
    moments = {name: found.pop(name) for name in names[:3]}
    assert target.logits is not None
    dist = TopK.from_columns(
        target.ids, target.logits, **moments, vocab_size=target.vocab_size, temperature=temperature
    )
    return SampledSteps(dist, **found)


def sampling_rows(
    drafts: Artifact, steps: Steps, rules: Sequence[Rule], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Return certified probabilities beside the measured; none where no answers were sampled.

    Raises:
        PipelineError: a step accepts with a smaller probability than certified.
    """
    sampled = read_sampled(drafts, steps.target)
    if sampled is None:
        return pd.DataFrame()
    for law, count in sampled.violations().items():
        if count:
            raise PipelineError(
                f"{law}: {count} steps accept with a smaller probability than their certificates "
                "say, which cannot be. Please report it"
            )
    return sampling_statistics(sampled, rules, FEWER_LEVELS, bootstrap)


def stopping_rows(
    drafts: Artifact, steps: Steps, asked: Mapping[str, Any], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Return what tells the drafter to stop, under strict greedy; none of a single prompt."""
    if bootstrap.count < 2:
        return pd.DataFrame()
    tv = read_distances(drafts, ["tv"])["tv"]
    drafted = DraftedSteps(
        read_drafter(drafts), steps.kl, tv, steps.draft_rank == 1, steps.trajectories
    )
    return stopping_statistics(drafted, Asked(**asked), bootstrap)


def ranking_rows(
    steps: Steps, judged: Judged, distances: Mapping[str, Floats], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Return how well certificates rank acceptance; none without both KL and total variation."""
    if not {"kl", "tv"} <= judged.keys():
        return pd.DataFrame()
    frames = []
    for label, kl in judged["kl"].items():
        ranked = scores(steps, kl, judged["tv"][label], distances["tv"])
        found = {name: verdicts[label] for name, verdicts in judged.items()}
        frames.append(ranking(found, ranked, bootstrap))
    return pd.concat(frames, ignore_index=True)
