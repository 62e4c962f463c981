"""Stage report: tables, figures, and a page that shows them.

Run it with ``python -m pipeline stage=report``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.rule_config import to_mapping
from analysis.rules import StrictGreedy
from analysis.statistics.estimate import Estimate
from pipeline.core.errors import PipelineError
from pipeline.core.paths import ASSETS
from pipeline.core.stage import Artifact, Json, Stage, Task, statistics_entries
from pipeline.core.timings import Asked

if TYPE_CHECKING:
    from conf.schema import Config
    from pipeline.core.stage import Inputs, Out
    from pipeline.study import Study

OF_EMBEDDED = (
    "These are small models that come with the project for tests. They show what each table and "
    "figure looks like; their numbers say nothing about models that people use."
)
UPSTREAM = (
    *("prompts", "distributions", "certificates", "run_lengths"),
    *("drafts", "acceptance", "decoding", "accuracy"),
)


def check(study: Study) -> None:
    """Check that all targets have different printed names."""
    labels = [target.label for target in study.config.targets.values()]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise PipelineError(
            f"targets.*.label={twice} is given to two targets: the report needs different names"
        )


def plan(study: Study) -> list[Task]:
    """Return the task of the report; its inputs are named STAGE/TARGET."""
    config = study.config
    # accuracy is shown even if it was timed on another machine than the one asked for
    accuracy = [
        task if study.is_made(task) else replace(task, asked=None)
        for task in study.tasks["accuracy"]
    ]
    # scoring answers takes hours, so a report only shows accuracy that is there already
    has_accuracy = bool(accuracy) and all(map(study.is_made, accuracy))
    shown = {
        **dict.fromkeys(UPSTREAM, True),
        "decoding": config.decoding.report,
        "accuracy": has_accuracy,
    }
    settings = {
        "study": config.study_name or config.study,
        "targets": [target.label for target in config.targets.values()],
        "drafter": None if config.drafter is None else config.drafter.label,
        "rules": [to_mapping(rule) for rule in study.rules],  # printed, of whatever file
        **statistics_entries(study.statistics),
        "note": _note(config),
        "margin": config.accuracy.margin if has_accuracy else None,  # the tolerated loss
        **config.report.model_dump(),
    }
    inputs = {
        f"{name}/{target}": task
        for name in UPSTREAM
        if shown[name] and study.tasks[name]
        for target, task in zip(
            config.targets, accuracy if name == "accuracy" else study.tasks[name], strict=True
        )
    }
    runtime = study.runtime(next(iter(config.targets.values())))
    asked = Asked.of(config.device)
    return [Task(STAGE, config.study, settings, inputs, runtime, asked)]


def _note(config: Config) -> str | None:
    """Return the note at the top of the page; for embedded models, that they are only examples."""
    embedded = all(Path(target.path).is_relative_to(ASSETS) for target in config.targets.values())
    return config.note or (OF_EMBEDDED if embedded else None)


def write_report(task: Task, inputs: Inputs, out: Out) -> None:
    """Write all tables, figures and the page."""
    from pipeline.models.kept import release_models
    from pipeline.stages.report.sections import write_sections

    release_models()
    write_sections(task, inputs, out)


def summary(task: Task, artifact: Artifact) -> list[Json]:
    """Return a row for each target: its drafter under strict greedy, at the fastest draft length.

    Accepted and certified steps are those of stage acceptance. Tokens per call, the cost of a
    drafted token and the speedup are those of stage decoding at temperature 0. Without a drafter
    there is the median of Table 2.
    """
    import pandas as pd

    from analysis.decoding.speed import SPEEDUP_ENDS

    def table(name: str, target: str) -> pd.DataFrame:
        file = artifact.directory / f"{name}.csv"
        frame = pd.read_csv(file) if file.is_file() else pd.DataFrame(columns=["target", "rule"])
        return frame[(frame["rule"] == StrictGreedy().label) & (frame["target"] == target)]

    rows = []
    for target in artifact.metadata["targets"]:
        row: Json = {"target": target, "drafter": task.settings["drafter"] or "none"}
        drafted = table("tables/acceptance", target)
        shown = {"accepted": "acceptance", "certified": "certified"}
        if drafted.empty:
            drafted = table("tables/table2", target)
            shown = {"median": "median"}
        for name, statistic in shown.items():
            for measured in drafted[drafted["statistic"] == statistic].to_dict("records"):
                row["prompts"] = int(measured["prompts"])
                row |= Estimate.read(measured).columns(name)
        decoded = table("timings/tables/decoding_speed", target)
        if not decoded.empty:
            runs = decoded.query("drafter == 'model' and temperature == 0").sort_values("speedup")
            for best in runs.tail(1).to_dict("records"):
                row["γ"] = int(best["draft_length"])
                row["tokens_per_call"] = best["tokens_per_call"]
                row |= Estimate.read(best, "speedup", SPEEDUP_ENDS).columns("speedup")
                row["cost"] = best["rho"]
        rows.append(row)
    return rows


STAGE = Stage(
    name="report",
    version=63,
    upstream=UPSTREAM,
    tables={},
    plan=plan,
    compute=write_report,
    check=check,
    summary=summary,
)
