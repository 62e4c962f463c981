"""Reads the artifacts that a report is made from, and computes its statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
import pandas as pd

from analysis.acceptance.drafter import margins
from analysis.acceptance.guarantees import usual_acceptance
from analysis.acceptance.judgement import Judgement, judgement_bytes, slacks
from analysis.acceptance.target import Target
from analysis.acceptance.target_statistics import (
    certificate_statistics,
    part_statistics,
    top_statistics,
)
from analysis.certificates.closed_forms import compared_steps, rejected_levels
from analysis.decoding.metrics import Decoded, acceptance
from analysis.decoding.paired_accuracy import Answered, accuracy
from analysis.decoding.predicted_speed import CallsByLength, predictions
from analysis.decoding.speed import relaxed_ratios, speed
from analysis.decoding.verdict import engines
from analysis.report.bounds_table import RuleSteps
from analysis.report.results import Results
from analysis.report.table import concat_targets
from analysis.rule_config import build
from analysis.rules import Rule, StrictGreedy, Tree
from analysis.statistics.bootstrap import top_probability
from analysis.topk import Floats
from pipeline.core.columns import numbers
from pipeline.core.stage import Artifact, Inputs, Task
from pipeline.drafters import NAMES, kind_of
from pipeline.inputs import artifact_readers as stored
from pipeline.inputs.decoded_artifacts import read_answered, read_decoded, thetas
from pipeline.models.tokens import token_texts

UNNAMED = "log"  # conf/target/log.yaml
# of stage acceptance, frame: file
ACCEPTANCE = {"acceptance": "statistics", "breakdown": "breakdown", "sources": "sources"}
RANKS = (1, 3, 5, 10, 25)  # the paper's Table 1
HELD = 2**27  # bytes of a target's steps that are held by rule
LEVEL_BYTES = 20  # of a rule at a step: accepted ranks and two probabilities
LEVELS = 2**29  # bytes of them that are held
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Source:
    """The artifacts of a target and their tasks, by stage; a stage that was not run is missing."""

    label: str
    tasks: Mapping[str, Task]
    artifacts: Mapping[str, Artifact]


class ByRule(Mapping[Key, Value]):
    """Stored arrays of each rule, read on access; the most recently used are kept in memory."""

    def __init__(self, keys: Mapping[Key, Rule], steps: int, read: Callable[[Rule], Value]) -> None:
        """`read` is called on access; `steps` are the entries of an array."""
        self._keys = keys
        self._read = lru_cache(max(1, HELD // (judgement_bytes() * steps)))(read)

    def __getitem__(self, key: Key) -> Value:
        return self._read(self._keys[key])

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


@dataclass(frozen=True, eq=False)
class Content:
    """The content of a report, target by target."""

    task: Task  # of the report
    sources: Sequence[Source]  # the artifacts that it is made from
    targets: Sequence[Target]  # their steps
    results: Results  # their statistics
    # their decoded answers, if there are any; of them `analysis.decoding.metrics.acceptance`,
    # `analysis.decoding.speed.speed` with `theta`, `engine` and `drafter_title`,
    # `analysis.decoding.speed.relaxed_ratios` and `analysis.decoding.predicted_speed.predictions`
    decoded: Sequence[Decoded]
    accepted: Sequence[pd.DataFrame]
    speeds: Sequence[pd.DataFrame]
    ratios: Sequence[pd.DataFrame]
    predicted: Sequence[pd.DataFrame]
    # their answers to tasks, if there are any; `analysis.decoding.paired_accuracy.accuracy` of them
    answered: Sequence[Answered]
    accuracies: Sequence[pd.DataFrame]


def read_content(task: Task, inputs: Inputs) -> Content:
    """Read the inputs of a report, named STAGE/TARGET, and compute its statistics."""
    statistics = task.runtime.statistics
    drafter = task.settings["drafter"] or ""
    tasks: dict[str, dict[str, Task]] = {}
    artifacts: dict[str, dict[str, Artifact]] = {}
    for name, artifact in inputs.items():
        stage, _, target = name.partition("/")
        tasks.setdefault(target, {})[stage] = task.inputs[name]
        artifacts.setdefault(target, {})[stage] = artifact
    dumps = [of_target["distributions"] for of_target in artifacts.values()]
    labels = printed_labels(task.settings["targets"], dumps)
    sources = list(map(Source, labels, tasks.values(), artifacts.values()))
    rules = [build(mapping) for mapping in task.settings["rules"]]
    targets = [read_target(task, source, rules) for source in sources]
    timed = [source for source in sources if "decoding" in source.artifacts]
    decoded = [
        read_decoded(source.label, drafter, source.artifacts["decoding"]) for source in timed
    ]
    answered = [
        read_answered(source.label, source.artifacts["accuracy"])
        for source in sources
        if "accuracy" in source.artifacts
    ]
    accepted = [acceptance(pair, *statistics) for pair in decoded]
    speeds = [
        _with_drafters(
            speed(pair, table, *statistics).assign(theta=thetas(pair)), pair, source, drafter
        )
        for pair, table, source in zip(decoded, accepted, timed, strict=True)
    ]
    tolerated_loss = task.settings["margin"]
    results = read_results(task, targets, sources, rules)
    # what follows shows k = 1 alone; the others are large
    targets = [replace(target, top={1: target.top[1]}) for target in targets]
    return Content(
        task=task,
        sources=sources,
        targets=targets,
        results=results,
        decoded=decoded,
        accepted=accepted,
        speeds=speeds,
        ratios=[relaxed_ratios(pair, *statistics) for pair in decoded],
        predicted=[
            predictions(pair, _judged_lengths(source), statistics)
            for pair, source in zip(decoded, timed, strict=True)
        ],
        answered=answered,
        accuracies=[accuracy(answers, *statistics, tolerated_loss) for answers in answered],
    )


def _with_drafters(
    speeds: pd.DataFrame, decoded: Decoded, source: Source, drafter: str
) -> pd.DataFrame:
    """Return the speeds with columns `engine` and `drafter_title`, from the kinds of drafters."""
    task = source.tasks["decoding"]
    _, *configured = task.runtime.models
    kinds = {name: kind_of(name, *configured) for name in NAMES}
    of_drafters = {name: kind.engines(task.settings) for name, kind in kinds.items()}
    titles = {name: kind.in_sentences or drafter for name, kind in kinds.items()}
    return speeds.assign(
        engine=engines(decoded.runs, decoded.rules, of_drafters),
        drafter_title=speeds["drafter"].map(titles),
    )


def _judged_lengths(source: Source) -> dict[str, CallsByLength]:
    acceptance = source.artifacts.get("acceptance")
    return {} if acceptance is None else stored.read_calls_by_length(acceptance)


def printed_labels(labels: Sequence[str], dumps: Sequence[Artifact]) -> list[str]:
    """Return the printed names of targets: `labels`, or for an unnamed log that of its model."""
    names = [
        str(dump.metadata["model"]).rstrip("/").rpartition("/")[2]
        if label == UNNAMED and dump.metadata.get("log")
        else label
        for label, dump in zip(labels, dumps, strict=True)
    ]
    return names if all(names) and len(set(names)) == len(names) else list(labels)


def read_target(report: Task, source: Source, rules: Sequence[Rule]) -> Target:
    """Read what is stored of a target's steps, with their certificates for these rules."""
    task = source.tasks["distributions"]
    artifact = source.artifacts["distributions"]
    steps = artifact.read(columns=["prompt_id", "position", "token_id"])
    trajectories, bootstrap = stored.resampled(steps, task, report.runtime.statistics)
    tokens = numbers(steps["token_id"])
    first_steps = steps["prompt_id"].take(trajectories.starts)
    drafts = source.artifacts.get("drafts")
    top, logit_gap, undefined = _of_distributions(artifact, rules, len(steps))
    return Target(
        label=source.label,
        certificates=_certificates(source, rules, len(steps)),
        bootstrap=bootstrap,
        tokens=tokens,
        prompt_texts=_prompt_texts(source, first_steps.to_pylist()),
        dist=stored.StoredDistributions(artifact),
        top=top,
        logit_gap=logit_gap,
        undefined=undefined,
        words=token_texts(task, artifact, np.unique(tokens).tolist()),
        kl=None if drafts is None else stored.drafted_kl(drafts),
        judged=_judgements(source, rules, len(steps)),
    )


def _prompt_texts(source: Source, prompt_ids: Sequence[str]) -> list[str]:
    prompts = source.artifacts["prompts"].read(columns=["prompt_id", "text"]).to_pydict()
    texts = dict(zip(prompts["prompt_id"], prompts["text"], strict=True))
    return [texts[prompt] for prompt in prompt_ids]


def _certificates(
    source: Source, rules: Sequence[Rule], steps: int
) -> Mapping[Rule, tuple[Floats, Floats]]:
    def read(rule: Rule) -> tuple[Floats, Floats]:
        ends = source.artifacts["certificates"].read(columns=["lower", "upper"], rule=rule.label)
        return numbers(ends["lower"]), numbers(ends["upper"])

    return ByRule({rule: rule for rule in rules}, steps, read)


def _judgements(source: Source, rules: Sequence[Rule], steps: int) -> Mapping[str, Judgement]:
    """Return the judgements of stage acceptance, by label; empty if it was not run."""
    if "acceptance" not in source.artifacts:
        return {}

    def read(rule: Rule) -> Judgement:
        columns = ["lower", "upper", "accepted", "certified"]
        table = source.artifacts["acceptance"].read(columns=columns, rule=rule.label)
        lower, upper, accepted, certified = map(numbers, table.columns)
        return Judgement(rule, lower, upper, accepted, certified)

    return ByRule({rule.label: rule for rule in (StrictGreedy(), *rules)}, steps, read)


def _of_distributions(
    artifact: Artifact, rules: Sequence[Rule], steps: int
) -> tuple[dict[int, Floats], Floats, dict[str, int]]:
    """Return `top`, `logit_gap` and `undefined` of a `Target`, from one pass in chunks."""
    top = {k: np.empty(steps) for k in RANKS if k <= artifact.metadata["k"]}
    gaps = np.empty(steps)
    undefined = {rule.label: 0 for rule in rules if rule.undefined_means}
    begin = 0
    for _, part in stored.chunks(artifact):
        at = slice(begin, begin + len(part))
        begin += len(part)
        for values, probability in zip(
            top.values(), top_probability(part, list(top)).T, strict=True
        ):
            values[at] = probability
        gaps[at] = part.log_probs[:, 0] - part.log_probs[:, min(1, part.k - 1)]
        for rule in rules:
            if rule.undefined_means:
                undefined[rule.label] += int(rule.undefined(part).sum())
    return top, gaps, undefined


def read_results(
    task: Task, targets: Sequence[Target], sources: Sequence[Source], rules: Sequence[Rule]
) -> Results:
    """Compute the statistics of every target; read those of its drafter if there is one."""

    def of_stage(stage: str, name: str = "data") -> pd.DataFrame:
        artifacts = [source.artifacts[stage] for source in sources]
        pairs = zip(targets, artifacts, strict=True)
        return concat_targets((target.label, made.read(name).to_pandas()) for target, made in pairs)

    frames = {
        "top": pd.concat(map(top_statistics, targets), ignore_index=True),
        "certificates": pd.concat(map(certificate_statistics, targets), ignore_index=True),
        "run_lengths": of_stage("run_lengths"),
        "parts": pd.concat(map(part_statistics, targets), ignore_index=True),
    }
    labels = [target.label for target in targets]
    if "acceptance" not in sources[0].artifacts:
        return Results(labels, {rule.label: rule for rule in rules}, frames)
    frames |= {name: of_stage("acceptance", file) for name, file in ACCEPTANCE.items()}
    named = {rule.label: rule for rule in (StrictGreedy(), *rules)}
    return Results(labels, named, frames, task.settings["drafter"])


def margins_of(targets: Sequence[Target]) -> dict[str, pd.DataFrame]:
    """Return, by target, counts of all steps and accepted steps by R - KL under strict greedy.

    Beside them are the acceptances predicted for usual drafters with the same KL.
    """
    by_target = {}
    for target in targets:
        if target.kl is not None:
            greedy = target.judged[StrictGreedy().label]
            usual = usual_acceptance(target, [(StrictGreedy(), target.kl)])
            predicted = {law: shares for law, _, shares in usual}
            slack = slacks(greedy.lower, target.kl)
            by_target[target.label] = margins(slack, greedy.accepted, predicted)
    return by_target


def comparisons(target: Target, source: Source) -> Iterator[RuleSteps]:
    """Yield, for each rule, steps to compare certificates with closed forms; nothing for a log."""
    if source.artifacts["distributions"].metadata.get("log") is not None or target.dist is None:
        return
    rules = [
        rule
        for rule in target.certificates
        if rule.judges_tokens or type(rule) is Tree  # a user's own tree has no closed form
    ]
    at_once = max(1, LEVELS // (LEVEL_BYTES * len(target.dist)))
    for begin in range(0, len(rules), at_once):
        levels = _levels(source, rules[begin : begin + at_once], len(target.dist))
        for rule in list(levels):
            table = source.artifacts["certificates"].read(columns=["active_size"], rule=rule.label)
            sizes = numbers(table["active_size"])
            p0 = target.dist.top_probability
            yield rule, compared_steps(target.certificates[rule], sizes, p0, *levels.pop(rule))


def _levels(source: Source, rules: Sequence[Rule], steps: int) -> dict[Rule, tuple[Floats, Floats]]:
    """Return `rejected_levels` for some rules, in one pass over the distributions."""
    counts = {}
    levels = {}
    for rule in rules:
        table = source.artifacts["certificates"].read(columns=["accepted_count"], rule=rule.label)
        counts[rule] = numbers(table["accepted_count"].fill_null(-1))
        levels[rule] = np.empty(steps), np.empty(steps)
    begin = 0
    for _, part in stored.chunks(source.artifacts["distributions"]):
        at = slice(begin, begin + len(part))
        begin += len(part)
        for rule, (b, theta) in levels.items():
            b[at], theta[at] = rejected_levels(part, rule, counts[rule][at])
    return levels
