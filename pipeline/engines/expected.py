"""Expected speed in an engine along stored answers: acceptance from a study, costs from the engine.

Strict greedy acceptance of the study's drafter, by depth, or look-up replayed along the answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.acceptance.engine_speed import StepCosts, engine_advice, expected_speeds, model_costs
from analysis.acceptance.judgement import judge
from analysis.acceptance.verdict import DO_NOT, Advice
from analysis.decoding.lookup import lookup_calls
from analysis.report.text import limits
from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import Floats, Numbers, PromptBootstrap, Resampling
from analysis.statistics.trajectories import Trajectories, count_calls
from conf.schema import Config
from pipeline.engines.costs import costs_of
from pipeline.engines.settings import ENGINES, NAMES, Setting, write_settings
from pipeline.errors import PipelineError
from pipeline.loader import Study
from pipeline.plan.stage import SummaryRow
from pipeline.store.artifacts import Artifact
from pipeline.store.distributions import StoredAnswer, read_answers, read_steps


class EngineAdvice(NamedTuple):
    """A verdict for an engine, and the costs behind it."""

    advice: Advice
    costs: StepCosts


LENGTHS = range(1, 9)  # draft lengths that are compared


def advise_study(study: Study, tables: dict[str, list[SummaryRow]]) -> dict[str, EngineAdvice]:
    """Return the verdict for the engine of `decoding.costs` by target; empty without costs.

    Args:
        study: whose artifacts are read.
        tables: rows by table; one of expected speeds is added.

    Raises:
        PipelineError: an artifact is missing, or the file is not one of costs.
    """
    costs, advised = costs_of(study.config), dict[str, EngineAdvice]()
    ends = dict(zip(("ci_low", "ci_high"), limits("speedup"), strict=True))
    for name in study.targets if costs is not None else ():
        assert costs is not None
        speeds, advice = advise_in_engine(study, costs, name)
        advised[advice.target] = EngineAdvice(advice, costs)
        tables.setdefault("engine", []).extend(
            {"target": advice.target, "rule": StrictGreedy().label}
            | {str(key): value for key, value in row.items()}
            for row in speeds.rename(columns=ends).to_dict("records")
        )
    return advised


def write_flags(
    settings: Config, label: str, setting: Setting, advised: EngineAdvice | None
) -> None:
    """Write the flags of the engine of `solve.engine`, or of the one whose costs decided.

    Args:
        settings: the configuration.
        label: printed name of the target.
        setting: of the target, at a draft length.
        advised: the verdict for an engine, None without one. Nothing is written where it is not to
            draft, and only for engines that run strict greedy.
    """
    engine, lengths = settings.solve.engine, settings.solve.draft_lengths
    if advised is not None:
        advice, costs = advised
        engine = next((key for key, name in NAMES.items() if costs.engine.startswith(name)), None)
        if engine is None or ENGINES[engine]["rule"] or advice.outcome == DO_NOT:
            return
        assert advice.run is not None
        lengths = [advice.run["draft_length"]]
        lookup = settings.decoding.lookup if costs.drafter == "prompt_lookup" else None
        setting = partial(_advised, setting, advice, lookup)
    if engine is not None:
        write_settings(settings, engine, lengths, label, setting)


def _advised(
    setting: Setting, advice: Advice, lookup: int | None, length: int
) -> dict[str, Any] | None:
    flags = setting(length)
    if flags is None:
        return None
    return flags | {"measured": [advice.sentence, *flags["measured"][1:]], "lookup": lookup}


def advise_in_engine(study: Study, costs: StepCosts, target: str) -> tuple[pd.DataFrame, Advice]:
    """Return the speeds of `speeds_in_engine`, and the verdict for the engine.

    Args:
        study: whose artifacts are read.
        costs: of the engine.
        target: a key of its targets.

    Raises:
        PipelineError: an artifact is missing.
    """
    config = study.config
    drafts = study.artifact("drafts", target) if costs.drafter == "model" else None
    speeds = speeds_in_engine(
        costs,
        (config.decoding.lookup, config.decoding.lookup_match),
        dump=study.artifact("distributions", target),
        prompts=study.artifact("prompts", target),
        drafts=drafts,
        resampling=Resampling(**vars(config.statistics)),
    )
    named = config.drafter.label if config.drafter and costs.drafter == "model" else None
    return speeds, engine_advice(config.targets[target].label, named, speeds, costs)


def speeds_in_engine(
    costs: StepCosts,
    lookup: tuple[int, str],
    *,
    dump: Artifact,
    prompts: Artifact,
    drafts: Artifact | None,
    resampling: Resampling,
) -> pd.DataFrame:
    """Return `expected_speeds` at each of `LENGTHS`.

    Args:
        costs: of the engine.
        lookup: tokens that look-up matches, and which match it takes.
        dump: of stage distributions: the answers.
        prompts: of stage prompts.
        drafts: of stage drafts; None where look-up drafts.
        resampling: of the bootstrap over prompts.

    Raises:
        PipelineError: no answer has a second token; or look-up lacks prompts.
    """
    position = dump.read(columns=["position"])["position"].to_numpy()
    trajectories = Trajectories.from_positions(position)
    emitted = trajectories.ends - trajectories.starts - 1  # the prompt's pass emits the first
    if not emitted.sum():
        raise PipelineError("no answer has a second token: raise distributions.steps")
    if drafts is not None:
        (judged,) = judge(read_steps(drafts), [StrictGreedy()])
        accepted = judged.accepted_by_depth[..., None]
        counts = [count_calls(accepted, trajectories, length).calls for length in LENGTHS]
        passes: Numbers = np.concatenate(counts, axis=1).astype(float)
        spent = model_costs(passes, costs)
    else:
        answers = read_answers(dump, prompts)
        without = sum(not answer.prompt for answer in answers.values())
        if without:
            raise PipelineError(
                f"decoding.costs: look-up can't be predicted: {without} of {len(answers)} answers "
                "come without their prompt's token ids. `python -m pipeline.ask URL "
                "ask.log_probs=20` logs both; or leave decoding.costs out"
            )
        passes, spent = _looked_up(list(answers.values()), costs, lookup)
    bootstrap = PromptBootstrap(trajectories.prompts, *resampling)
    return expected_speeds(emitted, passes, spent, bootstrap)


def _looked_up(
    answers: Sequence[StoredAnswer], costs: StepCosts, lookup: tuple[int, str]
) -> tuple[Numbers, Floats]:
    """Return passes of look-up, and their costs, (P, G) each."""
    passes = np.zeros((len(answers), len(LENGTHS)), dtype=np.intp)
    spent = np.zeros(passes.shape)
    for at, (_, prompt, answer) in enumerate(answers):
        for column, length in enumerate(LENGTHS):
            calls = lookup_calls(prompt, answer, length, *lookup)
            passes[at, column] = len(calls)
            spent[at, column] = costs.at(np.array([drafted for drafted, *_ in calls])).sum()
    return passes, spent
