"""Inputs of the report: the artifacts of every target, as frames and as arrays of its steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.acceptance.judgement import judge
from analysis.certificates.closed_forms import compared_steps
from analysis.report.measured import Results, Target, certificate_statistics, top_statistics
from analysis.report.records import together
from analysis.report.sections.bounds import RuleSteps
from analysis.rules import Rule, StrictGreedy, Tree
from analysis.statistics.bootstrap import PromptBootstrap, top_probability
from analysis.statistics.trajectories import Trajectories, inside_repeats
from pipeline import stored
from pipeline.columns import numbers
from pipeline.models.token_texts import token_texts
from pipeline.stages.report.sources import ReportSpec, Source, Sources

PAIR_FRAMES = {  # of Results, and the files of stage acceptance that they are
    "acceptance": "statistics",
    "breakdown": "breakdown",
}
RANKS = (1, 3, 5, 10, 25)  # the paper's Table 1


def read_target(spec: ReportSpec, sources: Sources) -> Target:
    """Read a target from its artifacts."""
    dump, drafts = sources.distributions.artifact, None
    rules = spec.rules
    ranks = [k for k in RANKS if k <= dump.facts["k"]]
    undefined = {rule.label: 0 for rule in rules if rule.undefined_means}
    top = []
    for _, dist in stored.chunks(dump):
        top.append(top_probability(dist, ranks))
        for rule in rules:
            if rule.undefined_means:
                undefined[rule.label] += int(rule.undefined(dist).sum())
    certificates = {}
    for rule in rules:
        table = sources.certificates.artifact.read(columns=["lower", "upper"], rule=rule.label)
        certificates[rule] = table["lower"].to_numpy(), table["upper"].to_numpy()
    steps = dump.read(columns=["prompt_id", "position", "token_id"])
    tokens = steps["token_id"].to_numpy()
    trajectories = Trajectories.from_positions(steps["position"].to_numpy())
    prompts = sources.prompts.artifact.read(columns=["prompt_id", "text"]).to_pandas()
    chosen = prompts.set_index("prompt_id").loc[
        steps["prompt_id"].take(trajectories.starts).to_pylist()
    ]
    draft, judged, completed = None, {}, False
    if sources.acceptance is not None and sources.drafts is not None:
        drafts = sources.drafts.artifact
        completed = drafts.facts.get("completed", False)
        drafted = stored.read_steps(drafts)
        judged = {
            judgement.rule.label: judgement for judgement in judge(drafted, list(certificates))
        }
        draft = pd.DataFrame({"kl": drafted.kl, "rank": drafted.draft_rank})
    return Target(
        sources.label,
        certificates=certificates,
        bootstrap=PromptBootstrap(trajectories.prompts, *spec.statistics),
        tokens=tokens,
        prompts=list(chosen.reset_index().itertuples(index=False, name=None)),
        top=dict(zip(ranks, np.ascontiguousarray(np.concatenate(top).T), strict=True)),
        repeated=inside_repeats(tokens, trajectories.prompts),
        undefined=undefined,
        words=token_texts(sources.distributions.task, dump, drafts, np.unique(tokens).tolist()),
        draft=draft,
        judged=judged,
        completed=completed,
    )


def read_results(
    spec: ReportSpec, targets: Sequence[Target], sources: Sequence[Sources]
) -> Results:
    """Compute the statistics of every target, and read those of a drafter where there is one."""
    frames = frames_of(targets)

    def of_stage(made: Iterable[Source], name: str = "data") -> pd.DataFrame:
        pairs = zip(targets, made, strict=True)
        return together({t.label: source.artifact.read(name).to_pandas() for t, source in pairs})

    frames["runs"] = of_stage(source.run_lengths for source in sources)
    rules = {rule.label: rule for rule in targets[0].certificates}
    facts: dict[str, Any] = {"completed": targets[0].completed}
    accepted = [source.acceptance for source in sources if source.acceptance is not None]
    if accepted:
        frames |= {name: of_stage(accepted, file) for name, file in PAIR_FRAMES.items()}
        first = accepted[0]
        facts["sampled"] = first.artifact.facts["sampled_temperature"]
        rules |= {rule.label: rule for rule in rules_of(first.task.runtime.rules)}
    drafter = spec.drafter or "" if accepted else ""
    return Results([t.label for t in targets], rules, frames, drafter, facts=facts)


def frames_of(targets: Sequence[Target]) -> dict[str, pd.DataFrame]:
    """Return the statistics of the targets' probabilities and certificates."""
    certified = [
        certificate_statistics(
            t.label, rule, *ends, t.bootstrap, t.undefined.get(rule.label, math.nan)
        )
        for t in targets
        for rule, ends in t.certificates.items()
    ]
    return {
        "top": concat_frames([top_statistics(t.label, t.top, t.bootstrap) for t in targets]),
        "certificates": concat_frames(certified),
    }


def rules_of(rules: Sequence[Rule]) -> list[Rule]:
    """Return every rule that was measured: of the study, and greedy."""
    return [StrictGreedy(), *rules]


def concat_frames(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return frames of the same columns as one; without any row where there is none."""
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def comparisons(target: Target, sources: Sources) -> list[RuleSteps]:
    """Read the steps that a rule's certificates and closed forms are compared over, by rule.

    An engine's log has none: its log-probabilities are rounded.
    """
    dump = sources.distributions.artifact
    if dump.facts.get("log") is not None:
        return []
    chosen = [
        (
            rule,
            target.certificates[rule],
            sources.certificates.artifact.read(
                columns=["active_size", "accepted_count"], rule=rule.label
            ),
        )
        for rule in target.certificates
        if rule.judges_tokens or type(rule) is Tree  # a user's own tree has no closed form
    ]
    columns = [
        (rule, ends, numbers(table["active_size"]), numbers(table["accepted_count"].fill_null(-1)))
        for rule, ends, table in chosen
    ]
    frames: dict[Rule, list[pd.DataFrame]] = {rule: [] for rule, *_ in chosen}
    begun = 0
    for _, dist in stored.chunks(dump):
        at = slice(begun, begun + len(dist))
        begun = at.stop
        for rule, (lower, upper), sizes, counts in columns:
            of_chunk = compared_steps(dist, rule, (lower[at], upper[at]), sizes[at], counts[at])
            frames[rule].append(of_chunk)
    return [(rule, concat_frames(parts)) for rule, parts in frames.items()]
