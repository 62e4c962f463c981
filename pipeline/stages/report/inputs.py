"""Inputs of the report: what the stages computed of every target, as frames and arrays of steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from analysis.acceptance.judgement import Judgement
from analysis.acceptance.summary import margins
from analysis.certificates.closed_forms import compared_steps
from analysis.report.bounds_table import RuleSteps
from analysis.report.measured import Results, Target, certificate_statistics, top_statistics
from analysis.report.parts import part_statistics
from analysis.report.table import together
from analysis.rules import Rule, StrictGreedy, Tree
from analysis.statistics.bootstrap import Floats, PromptBootstrap, top_probability
from analysis.statistics.trajectories import Trajectories, inside_repeats
from pipeline import stored
from pipeline.columns import numbers
from pipeline.models.token_texts import token_texts
from pipeline.stages.report.sources import ReportSpec, Source, Sources
from pipeline.store import Artifact

ACCEPTANCE = {"acceptance": "statistics", "breakdown": "breakdown"}  # frame: file of the stage
RANKS = (1, 3, 5, 10, 25)  # the paper's Table 1


def read_target(spec: ReportSpec, sources: Sources) -> Target:
    """Read a target from its artifacts."""
    dump = sources.distributions.artifact
    top, margin, undefined = _of_distributions(dump, spec.rules)
    certificates = {}
    for rule in spec.rules:
        table = sources.certificates.artifact.read(columns=["lower", "upper"], rule=rule.label)
        certificates[rule] = table["lower"].to_numpy(), table["upper"].to_numpy()
    steps = dump.read(columns=["prompt_id", "position", "token_id"])
    tokens = steps["token_id"].to_numpy()
    trajectories = Trajectories.from_positions(steps["position"].to_numpy())
    prompts = sources.prompts.artifact.read(columns=["prompt_id", "text"]).to_pandas()
    chosen = prompts.set_index("prompt_id").loc[
        steps["prompt_id"].take(trajectories.starts).to_pylist()
    ]
    drafts = None if sources.drafts is None else sources.drafts.artifact
    judged = {} if sources.acceptance is None else _judgements(sources.acceptance.artifact, spec)
    return Target(
        sources.label,
        certificates=certificates,
        bootstrap=PromptBootstrap(trajectories.prompts, *spec.statistics),
        tokens=tokens,
        prompts=list(chosen.reset_index().itertuples(index=False, name=None)),
        top=top,
        margin=margin,
        repeated=inside_repeats(tokens, trajectories.prompts),
        undefined=undefined,
        words=token_texts(sources.distributions.task, dump, np.unique(tokens).tolist()),
        kl=None if drafts is None else stored.drafted_kl(drafts),
        judged=judged,
    )


def _of_distributions(
    dump: Artifact, rules: Sequence[Rule]
) -> tuple[dict[int, Floats], Floats, dict[str, int]]:
    """Return the probability of the k most probable tokens, log p0 - log p1, and undefined steps.

    The latter count, by rule, the steps at which its test is undefined.
    """
    ranks = [k for k in RANKS if k <= dump.facts["k"]]
    undefined = {rule.label: 0 for rule in rules if rule.undefined_means}
    top, margin = [], []
    for _, dist in stored.chunks(dump):
        top.append(top_probability(dist, ranks))
        second = dist.log_probs[:, min(1, dist.k - 1)]
        margin.append(dist.log_probs[:, 0] - second)
        for rule in rules:
            if rule.undefined_means:
                undefined[rule.label] += int(rule.undefined(dist).sum())
    by_rank = np.ascontiguousarray(np.concatenate(top).T)
    return dict(zip(ranks, by_rank, strict=True)), np.concatenate(margin), undefined


def _judgements(artifact: Artifact, spec: ReportSpec) -> dict[str, Judgement]:
    """Return what stage acceptance judged, by label of the rule; strict greedy is always judged."""
    judged = {}
    for label, rule in {rule.label: rule for rule in (StrictGreedy(), *spec.rules)}.items():
        table = artifact.read(columns=["lower", "upper", "accepted", "certified"], rule=label)
        judged[label] = Judgement(rule, *(column.to_numpy() for column in table.columns))
    return judged


def read_results(
    spec: ReportSpec, targets: Sequence[Target], sources: Sequence[Sources]
) -> Results:
    """Compute the statistics of every target, and read those of a drafter where there is one."""

    def of_stage(made: Iterable[Source], name: str = "data") -> pd.DataFrame:
        pairs = zip(targets, made, strict=True)
        return together((t.label, source.artifact.read(name).to_pandas()) for t, source in pairs)

    certified = [
        certificate_statistics(
            t.label, rule, *ends, t.bootstrap, t.undefined.get(rule.label, math.nan)
        )
        for t in targets
        for rule, ends in t.certificates.items()
    ]
    frames = {
        "top": pd.concat([top_statistics(t.label, t.top, t.bootstrap) for t in targets]),
        "certificates": pd.concat(certified, ignore_index=True) if certified else pd.DataFrame(),
        "runs": of_stage(source.run_lengths for source in sources),
        "parts": pd.concat(map(part_statistics, targets), ignore_index=True),
    }
    rules = {rule.label: rule for rule in spec.rules}
    accepted = [source.acceptance for source in sources if source.acceptance is not None]
    if not accepted:
        return Results([t.label for t in targets], rules, frames)
    frames |= {name: of_stage(accepted, file) for name, file in ACCEPTANCE.items()}
    return Results(
        [t.label for t in targets],
        rules | {rule.label: rule for rule in (StrictGreedy(), *spec.rules)},
        frames,
        spec.drafter or "",
        accepted[0].artifact.facts["sampled_temperature"],
    )


def margins_of(targets: Sequence[Target]) -> dict[str, pd.DataFrame]:
    """Return `margins` of strict greedy by target: of R - KL, +inf where nothing is rejected."""
    found = {}
    for target in targets:
        if target.kl is not None and target.judged:
            greedy = target.judged[StrictGreedy().label]
            endless = np.isinf(greedy.lower)
            slack = np.where(endless, np.inf, np.where(endless, 0.0, greedy.lower) - target.kl)
            found[target.label] = margins(slack, greedy.accepted)
    return found


def comparisons(target: Target, sources: Sources) -> list[RuleSteps]:
    """Read the steps that a rule's certificates and closed forms are compared over, by rule.

    An engine's log has none: its log-probabilities are rounded.
    """
    dump = sources.distributions.artifact
    if dump.facts.get("log") is not None:
        return []
    columns = []
    for rule, ends in target.certificates.items():
        if rule.judges_tokens or type(rule) is Tree:  # a user's own tree has no closed form
            names = ["active_size", "accepted_count"]
            table = sources.certificates.artifact.read(columns=names, rule=rule.label)
            counts = numbers(table["accepted_count"].fill_null(-1))
            columns.append((rule, ends, numbers(table["active_size"]), counts))
    frames: dict[Rule, list[pd.DataFrame]] = {rule: [] for rule, *_ in columns}
    begun = 0
    for _, dist in stored.chunks(dump):
        at = slice(begun, begun + len(dist))
        begun = at.stop
        for rule, (lower, upper), sizes, counts in columns:
            of_chunk = compared_steps(dist, rule, (lower[at], upper[at]), sizes[at], counts[at])
            frames[rule].append(of_chunk)
    return [(rule, pd.concat(parts, ignore_index=True)) for rule, parts in frames.items()]
