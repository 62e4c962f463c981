"""Judges every rule on every step, and compares with the certificates.

Certificates are computed from the drafts artifact's own columns: they must belong to the same p as
its ranks and KL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.acceptance.judgement import Judgement, Steps, judge
from analysis.acceptance.summary import (
    depth_statistics,
    finite_share,
    rule_statistics,
    stochastic_statistics,
)
from analysis.rules import Rule, StrictGreedy
from analysis.statistics.bootstrap import Floats, PromptBootstrap
from pipeline.criteria import mistakes
from pipeline.errors import PipelineError
from pipeline.plan.specs import DraftsSpec
from pipeline.stage import Inputs, Json, Task
from pipeline.store import Artifact, Out
from pipeline.stored import read_steps

SAMPLED = ("tv", "erss_acceptance", "harmonic_mean")  # at the temperature of the answers


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Judge every rule, check soundness, and write all statistics.

    Raises:
        PipelineError: a certified step was rejected; names the rule and the step.
    """
    drafts, spec = inputs["drafts"], task.spec
    pair: DraftsSpec = task.inputs["drafts"].spec
    steps, prompts = read_steps(drafts), drafts.read(columns=["prompt_id"])["prompt_id"]
    all_rules = [StrictGreedy(), *spec.rules]
    per_step = {rule.label: rule for rule in all_rules}  # each once, in order
    chosen = judge_soundly(pair.label, prompts, steps, list(per_step.values()))
    bootstrap = PromptBootstrap(steps.trajectories.prompts, *spec.statistics)
    frames = {
        "statistics": [
            *(rule_statistics(steps, judgement, bootstrap) for judgement in chosen),
            _sampled(drafts, bootstrap),
        ],
        "breakdown": [finite_share(steps, bootstrap), _by_depth(steps, chosen, bootstrap)],
    }
    tables = {
        name: pd.concat(parts).assign(prompts=bootstrap.count) for name, parts in frames.items()
    }
    for name, frame in tables.items():
        out.write_frame(frame, name)
    schema = task.stage.schema()
    with out.writer() as writer:
        for judgement in chosen:
            label = pa.repeat(judgement.rule.label, len(steps))
            own = [label, judgement.lower, judgement.upper, judgement.accepted, judgement.certified]
            writer.write_table(pa.table([prompts, steps.position, *own], schema=schema))
    out.facts |= soundness(pair, steps, chosen)
    out.facts["sampled_temperature"] = drafts.facts["sampled_temperature"]


def _by_depth(
    steps: Steps, verdicts: Sequence[Judgement], bootstrap: PromptBootstrap
) -> pd.DataFrame:
    """Return the statistics at each depth of a draft; none where there is one: it is the first."""
    if not steps.deeper:
        return pd.DataFrame()
    frames = [
        depth_statistics(1 + at, deep, [verdict.by_depth[at] for verdict in verdicts], bootstrap)
        for at, deep in enumerate(steps.by_depth)
    ]
    return pd.concat(frames)


def _sampled(drafts: Artifact, bootstrap: PromptBootstrap) -> pd.DataFrame:
    """Return the acceptance rates of stochastic verification; none where nothing was sampled."""
    if drafts.facts["sampled_temperature"] is None:
        return pd.DataFrame()
    table = drafts.read(columns=[f"sampled_{name}" for name in SAMPLED])
    tv, races, harmonic = (column.to_numpy() for column in table.columns)
    return stochastic_statistics(tv, races, harmonic, bootstrap)


def judge_soundly(
    pair: str, prompts: pa.ChunkedArray, steps: Steps, rules: Sequence[Rule]
) -> list[Judgement]:
    """Return `judge` of steps, and check that no certified step is rejected, under any rule.

    Raises:
        PipelineError: one is; the theory or a computation is wrong. Or a user's rule fails.
    """
    with mistakes(rules):
        verdicts = judge(steps, rules)
    for verdict, deep in (
        pair for first in verdicts for pair in zip(first.by_depth, steps.by_depth, strict=False)
    ):
        if len(verdict.violations):
            step = int(verdict.violations[0])
            raise PipelineError(
                f"{pair}: {len(verdict.violations)} "
                f"steps are certified and rejected, which cannot be. The first: rule "
                f"{verdict.rule.label}, prompt {prompts[step]}, position "
                f"{int(steps.position[step])}, KL {float(deep.kl[step])!r} < certificate "
                f"{float(verdict.lower[step])!r}, target rank of the draft "
                f"{int(deep.draft_rank[step])}, rank of the target's argmax "
                f"{int(deep.argmax_rank[step])}. Please report it with this step"
            )
    return verdicts


def soundness(pair: DraftsSpec, steps: Steps, verdicts: Sequence[Judgement]) -> Json:
    """Return, and print, the record's facts on soundness; `check_sound` has passed.

    Rules that decide alike at every step count once, as additive with t = 0 and strict greedy do.
    tightest_rejected is the least KL - R of a rejected step, tightest_certified the least R - KL
    of a certified one, over all rules, in nats, R the lower end: how near the steps come to
    contradicting the theory, and to losing its guarantee.
    """
    different: dict[tuple[bytes, bytes], Judgement] = {}
    for verdict in verdicts:
        different.setdefault((verdict.accepted.tobytes(), verdict.certified.tobytes()), verdict)

    def tightest(slack: Callable[[Judgement], Floats]) -> Json | None:
        least = [
            (float(slack(verdict).min(initial=np.inf)), verdict.rule.label) for verdict in verdicts
        ]
        nats, rule = min(least, key=lambda pair: pair[0])
        return {"nats": nats, "rule": rule} if np.isfinite(nats) else None

    near = {
        "tightest_rejected": tightest(
            lambda verdict: -steps.slack(verdict.lower)[~verdict.accepted]
        ),
        "tightest_certified": tightest(
            lambda verdict: steps.slack(verdict.lower)[verdict.certified]
        ),
    }
    facts = {
        "target": pair.target.settings.label,
        "drafter": pair.drafter.settings.label,
        "steps": len(steps),
        "prompts": len(steps.trajectories.starts),
        "rules": len(different),
        "checked": len(steps) * len(different),
        "certified": sum(int(verdict.certified.sum()) for verdict in different.values()),
        "violations": sum(len(verdict.violations) for verdict in different.values()),
        **near,
        "mean_kl": float(steps.kl.mean()),
        "median_kl": float(np.median(steps.kl)),
    }
    words = ("least KL - R among rejected steps", "least R - KL among certified steps")
    print(
        "{drafter} for {target}: {violations:,} of {certified:,} certified decisions rejected, "
        "over {steps:,} steps and {rules} rules that decide differently".format(**facts),
        *(
            "{of}: {nats:.3g} nats ({rule})".format(of=of, **verdict)
            for of, verdict in zip(words, near.values(), strict=True)
            if verdict is not None
        ),
        sep="; ",
        flush=True,
    )
    return facts
