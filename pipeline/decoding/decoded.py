"""Read artifacts of the stages decoding and accuracy as the records that analysis takes.

With them the verdict on every target, which the report prints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.acceptance.verdict import Advice, advise
from analysis.decoding.answers import ALL, Answered, accuracy, decide
from analysis.decoding.metrics import Decoded
from analysis.decoding.predicted import draft_lengths
from analysis.decoding.speed import signs_of_load
from analysis.rules import Mars
from analysis.statistics.bootstrap import Resampling
from pipeline.plan.facts import AccuracyFacts, DecodingFacts
from pipeline.plan.method import Method
from pipeline.store.artifacts import Artifact
from pipeline.store.plain import to_plain

RUN = (  # fields of a method
    *("drafter", "draft_length", "sampling", "rule", "temperature"),
    *("lossless", "tree", "drafting", "top_p", "top_k"),
)


def read_decoded(target: str, drafter: str, artifact: Artifact) -> Decoded:
    """Read what a target decoded with a drafter, both given by their printed names."""
    facts = artifact.facts(DecodingFacts)

    def frame(name: str) -> pd.DataFrame:
        return artifact.read(name).to_pandas()

    methods = [run.decoded for run in facts.runs]
    printed: dict[str, Any] = {
        "rule": [None if one.rule is None else one.rule.label for one in methods],
        "tree": [run.shape and to_plain(run.shape) for run in facts.runs],
        "drafting": [method.drafting and method.drafting.shown for method in methods],
    }
    rules = {one.rule.label: one.rule for one in methods if one.rule is not None}
    return Decoded(
        target,
        drafter,
        _runs(methods, *RUN).assign(**printed),
        frame("data").drop(
            columns=["token_ids", "method", "drafter", "draft_length", "temperature"]
        ),
        frame("calls"),
        frame("timings/runs"),
        frame("timings/calls"),
        frame("trajectory"),
        to_plain(facts.bytes),
        rules,
        frame("levels"),
        frame("timings/passes"),
    )


def _runs(methods: Sequence[Method], *names: str) -> pd.DataFrame:
    """Return a row a run: how its method is printed, and some of its fields."""
    return pd.DataFrame(
        [{"method": one.title} | {name: getattr(one, name) for name in names} for one in methods]
    )


def thetas(decoded: Decoded) -> list[float]:
    """Return MARS's threshold of every run that drafts with the model, NaN of any other."""
    rules = map(decoded.rules.get, decoded.runs["rule"])
    return [
        rule.theta if isinstance(rule, Mars) and drafter == "model" else math.nan
        for rule, drafter in zip(rules, decoded.runs["drafter"], strict=True)
    ]


def read_answered(target: str, artifact: Artifact) -> Answered:
    """Read what a target, given by its printed name, answered."""
    facts = artifact.facts(AccuracyFacts)
    methods = [run.decoded for run in facts.runs]
    more: dict[str, Any] = {
        "baseline": [run.baseline for run in facts.runs],
        "rule": [one.rule for one in methods],
        "exact": [one.lossless and one.sampling not in ("speculative", "block") for one in methods],
    }
    data = artifact.read().to_pandas()
    return Answered(
        target,
        list(facts.tasks),
        _runs(methods, "drafter", "draft_length", "temperature").assign(**more),
        data.drop(columns=["token_ids", "method", "drafter"]),
        artifact.read("timings/runs").to_pandas(),
    )


def verdict(
    decoded: Decoded,
    speeds: pd.DataFrame,
    answers: Artifact | None,
    statistics: Resampling,
    margin: float,
    command: str,
) -> Advice:
    """Return the verdict on a target that was decoded.

    Args:
        decoded: its answers and calls.
        speeds: their table of `speed`.
        answers: of stage accuracy; None where it was not run.
        statistics: of the bootstrap.
        margin: the loss of accuracy that matters.
        command: that runs the study, up to a stage's name.
    """
    losses = None
    if answers is not None:
        answered = read_answered(decoded.target, answers)
        table = accuracy(answered, *statistics, margin)
        losses = losses_on_answers(answered, table, margin, statistics[1])
    lengths, busy = draft_lengths(decoded, speeds), signs_of_load(speeds)
    return advise(decoded.target, decoded.drafter, speeds, lengths, losses, busy, command)


def losses_on_answers(
    answered: Answered, table: pd.DataFrame, margin: float, confidence: float
) -> pd.DataFrame:
    """Return the scored answers of every relaxed rule.

    Args:
        answered: the answers of a target.
        table: of `analysis.decoding.answers.accuracy`.
        margin: the loss of accuracy that matters.
        confidence: of each bound.

    Returns:
        The rows of `decide` with rule (a label), margin, right and alone: items that the rule, and
        the target alone, have right.
    """
    decided = decide(table, answered.runs, margin, confidence)
    right = table[table["task"] == ALL].set_index("run")["right"]
    runs = answered.runs.loc[decided["run"]]
    return decided.assign(
        rule=[rule.label for rule in runs["rule"]],
        margin=margin,
        right=right.loc[decided["run"]].to_numpy(),
        alone=right.loc[runs["baseline"]].to_numpy(),
    )


def verdict_lines(found: Sequence[Advice]) -> str:
    """Return verdicts as text: a paragraph a target, what stands beside it as a list."""
    blocks = ["\n".join([one.sentence, *(f"- {text}" for text in one.beside)]) for one in found]
    return "\n\n".join(blocks) + "\n"
