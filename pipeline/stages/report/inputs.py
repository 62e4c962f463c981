"""Inputs of the report: what the stages computed of every target, as frames and arrays of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.acceptance.drafter import margins
from analysis.acceptance.judgement import Judgement, slacks
from analysis.certificates.closed_forms import compared_steps
from analysis.decoding.metrics import Decoded
from analysis.decoding.paired_accuracy import Answered, accuracy
from analysis.decoding.speed import relaxed_ratios, speed
from analysis.report.bounds_table import RuleSteps
from analysis.report.drafter_tables import part_statistics
from analysis.report.results import Results, Target, certificate_statistics, top_statistics
from analysis.report.table import concat_targets
from analysis.rule_config import build
from analysis.rules import Rule, StrictGreedy, Tree
from analysis.statistics.bootstrap import top_probability
from analysis.topk import TopK
from pipeline.core.columns import numbers
from pipeline.core.stage import Artifact, Inputs, Task
from pipeline.inputs import artifact_readers as stored
from pipeline.inputs.decoded_artifacts import read_answered, read_decoded, thetas
from pipeline.models.tokens import token_texts

UNNAMED = "log"  # conf/target/log.yaml
ACCEPTANCE = {"acceptance": "statistics", "breakdown": "breakdown"}  # frame: file of the stage
RANKS = (1, 3, 5, 10, 25)  # the paper's Table 1


@dataclass(frozen=True, eq=False)
class Source:
    """The artifacts of a target and their tasks, by stage; a stage that was not run has none."""

    label: str
    tasks: Mapping[str, Task]
    artifacts: Mapping[str, Artifact]


@dataclass(frozen=True, eq=False)
class Content:
    """The content of a report, target by target."""

    task: Task  # of the report
    sources: Sequence[Source]  # the artifacts that it is made from
    targets: Sequence[Target]  # their steps
    results: Results  # their statistics
    decoded: Sequence[Decoded]  # their decoded answers, if there are any, and
    speeds: Sequence[pd.DataFrame]  # `analysis.decoding.speed.speed` of them, with `theta`, and
    ratios: Sequence[pd.DataFrame]  # `analysis.decoding.speed.relaxed_ratios`
    answered: Sequence[Answered]  # their answers to tasks, if there are any, and
    accuracies: Sequence[pd.DataFrame]  # `analysis.decoding.paired_accuracy.accuracy` of them


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
    targets = [read_target(task, source) for source in sources]
    decoded = [
        read_decoded(source.label, drafter, source.artifacts["decoding"])
        for source in sources
        if "decoding" in source.artifacts
    ]
    answered = [
        read_answered(source.label, source.artifacts["accuracy"])
        for source in sources
        if "accuracy" in source.artifacts
    ]
    return Content(
        *(task, sources, targets, read_results(task, targets, sources), decoded),
        [speed(run, *statistics).assign(theta=thetas(run)) for run in decoded],
        [relaxed_ratios(run, *statistics) for run in decoded],
        answered,
        [accuracy(answers, *statistics, task.settings["margin"]) for answers in answered],
    )


def printed_rules(report: Task) -> list[Rule]:
    """Return the rules that a report shows."""
    return [build(mapping) for mapping in report.settings["rules"]]


def printed_labels(labels: Sequence[str], dumps: Sequence[Artifact]) -> list[str]:
    """Return the printed names; a log without a name of its own has that of its model."""
    names = [
        str(dump.metadata["model"]).rstrip("/").rpartition("/")[2]
        if label == UNNAMED and dump.metadata.get("log")
        else label
        for label, dump in zip(labels, dumps, strict=True)
    ]
    return names if all(names) and len(set(names)) == len(names) else list(labels)


def read_target(report: Task, source: Source) -> Target:
    """Read the steps of a target from its artifacts."""
    rules = printed_rules(report)
    task = source.tasks["distributions"]
    dump = source.artifacts["distributions"]
    steps = dump.read(columns=["prompt_id", "position", "token_id"])
    trajectories, bootstrap = stored.resampled(steps, task, report.runtime.statistics)
    texts = source.artifacts["prompts"].read(columns=["prompt_id", "text"]).to_pydict()
    text_of = dict(zip(texts["prompt_id"], texts["text"], strict=True))
    tokens = numbers(steps["token_id"])
    drafts = source.artifacts.get("drafts")
    certificates = {}
    for rule in rules:
        ends = source.artifacts["certificates"].read(columns=["lower", "upper"], rule=rule.label)
        certificates[rule] = numbers(ends["lower"]), numbers(ends["upper"])
    judged = {}
    for rule in dict.fromkeys([StrictGreedy(), *rules]) if "acceptance" in source.artifacts else ():
        columns = ["lower", "upper", "accepted", "certified"]
        table = source.artifacts["acceptance"].read(columns=columns, rule=rule.label)
        lower, upper, accepted, certified = map(numbers, table.columns)
        judged[rule.label] = Judgement(rule, lower, upper, accepted, certified)
    dist = stored.read_distributions(dump)
    ranks = [k for k in RANKS if k <= dist.k]
    undefined = {rule.label: 0 for rule in rules if rule.undefined_means}
    top = []
    margin = []
    for at in blocks(dist):
        part = dist[at]
        top.append(top_probability(part, ranks))
        margin.append(part.log_probs[:, 0] - part.log_probs[:, min(1, dist.k - 1)])
        for rule in rules:
            if rule.undefined_means:
                undefined[rule.label] += int(rule.undefined(part).sum())
    return Target(
        source.label,
        certificates,
        bootstrap,
        tokens,
        [text_of[prompt] for prompt in steps["prompt_id"].take(trajectories.starts).to_pylist()],
        dist=dist,
        top=dict(zip(ranks, np.ascontiguousarray(np.concatenate(top).T), strict=True)),
        margin=np.concatenate(margin),
        undefined=undefined,
        words=token_texts(task, dump, np.unique(tokens).tolist()),
        kl=None if drafts is None else stored.drafted_kl(drafts),
        judged=judged,
    )


def blocks(steps: TopK) -> list[slice]:
    """Return slices of steps that are computed with at once."""
    return [slice(at, at + stored.ROWS) for at in range(0, len(steps), stored.ROWS)]


def read_results(task: Task, targets: Sequence[Target], sources: Sequence[Source]) -> Results:
    """Compute the statistics of every target, and read those of a drafter where there is one."""

    def of_stage(stage: str, name: str = "data") -> pd.DataFrame:
        artifacts = [source.artifacts[stage] for source in sources]
        pairs = zip(targets, artifacts, strict=True)
        return concat_targets((target.label, made.read(name).to_pandas()) for target, made in pairs)

    frames = {
        "top": pd.concat(map(top_statistics, targets), ignore_index=True),
        "certificates": pd.concat(map(certificate_statistics, targets), ignore_index=True),
        "runs": of_stage("run_lengths"),
        "parts": pd.concat(map(part_statistics, targets), ignore_index=True),
    }
    rules = printed_rules(task)
    labels = [target.label for target in targets]
    if "acceptance" not in sources[0].artifacts:
        return Results(labels, {rule.label: rule for rule in rules}, frames)
    frames |= {name: of_stage("acceptance", file) for name, file in ACCEPTANCE.items()}
    named = {rule.label: rule for rule in (StrictGreedy(), *rules)}
    return Results(labels, named, frames, task.settings["drafter"])


def margins_of(targets: Sequence[Target]) -> dict[str, pd.DataFrame]:
    """Return `margins` of strict greedy by target: of R - KL, +inf where nothing is rejected."""
    found = {}
    for target in targets:
        if target.kl is not None:
            greedy = target.judged[StrictGreedy().label]
            found[target.label] = margins(slacks(greedy.lower, target.kl), greedy.accepted)
    return found


def comparisons(target: Target, source: Source) -> Iterator[RuleSteps]:
    """Yield the steps that certificates and closed forms are compared over; none of a log."""
    if source.artifacts["distributions"].metadata.get("log") is not None or target.dist is None:
        return
    columns = []
    for rule, ends in target.certificates.items():
        if rule.judges_tokens or type(rule) is Tree:  # a user's own tree has no closed form
            names = ["active_size", "accepted_count"]
            table = source.artifacts["certificates"].read(columns=names, rule=rule.label)
            counts = numbers(table["accepted_count"].fill_null(-1))
            columns.append((rule, ends, numbers(table["active_size"]), counts))
    frames: dict[Rule, list[pd.DataFrame]] = {rule: [] for rule, *_ in columns}
    for at in blocks(target.dist):
        part = target.dist[at]
        for rule, (lower, upper), sizes, counts in columns:
            compared = compared_steps(part, rule, (lower[at], upper[at]), sizes[at], counts[at])
            frames[rule].append(compared)
    for rule in list(frames):
        yield rule, pd.concat(frames.pop(rule), ignore_index=True)
