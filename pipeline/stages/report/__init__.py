"""Stage report: tables, figures and one page that shows them.

Run it with ``python -m pipeline stage=report``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.report.text import limits
from analysis.rule_config import to_mapping
from analysis.rules import StrictGreedy
from pipeline.errors import PipelineError
from pipeline.stage import Artifact, Json, Stage, Task, statistics_entries

if TYPE_CHECKING:
    from pipeline.stage import Inputs, Out
    from pipeline.study import Study

UPSTREAM = (
    "prompts",
    "distributions",
    "certificates",
    "run_lengths",
    "drafts",
    "acceptance",
    "decoding",
    "accuracy",
)


def check(study: Study) -> None:
    """Check that a report can tell the targets apart by their printed names.

    Raises:
        PipelineError: two have one name.
    """
    labels = [target.label for target in study.config.targets.values()]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise PipelineError(
            f"targets.*.label={twice} is given to two targets: the report needs different names"
        )


def plan(study: Study) -> list[Task]:
    """Return the planned report, made from inputs named STAGE/TARGET; its names are content."""
    config = study.config
    left_out = set() if config.decoding.report else {"decoding"}
    answered = study.tasks["accuracy"]
    shown = bool(answered) and all(map(study.made, answered))
    if not shown:
        left_out.add("accuracy")  # which takes hours, and is not computed for the report's sake
    settings = {
        "study": config.study_name or config.study,
        "targets": [target.label for target in config.targets.values()],
        "drafter": None if config.drafter is None else config.drafter.label,
        "rules": [to_mapping(rule) for rule in study.rules],  # printed, of whatever file
        **statistics_entries(study.statistics),
        "note": config.note,
        "margin": config.accuracy.margin if shown else None,  # the loss of accuracy that matters
    }
    inputs = {
        f"{name}/{target}": task
        for name in UPSTREAM
        if name not in left_out and study.tasks[name]
        for target, task in zip(config.targets, study.tasks[name], strict=True)
    }
    runtime = study.runtime(next(iter(config.targets.values())), study.rules)
    return [Task(STAGE, config.study, settings, inputs, runtime)]


def write_report(task: Task, inputs: Inputs, out: Out) -> None:
    """Write all tables, figures and pages."""
    from pipeline.stages.report.compute import compute

    compute(task, inputs, out)


def summary(task: Task, artifact: Artifact) -> list[Json]:
    """Return a row a target: its drafter under strict greedy, which loses nothing.

    Of stage acceptance: the accepted and the certified steps, and the tokens a
    call of drafts of any length. Of stage decoding, at the draft length that was fastest at
    temperature 0: the tokens a call, the cost of a drafted token and the speedup. Without a
    drafter: the statistics of Table 2.
    """
    import pandas as pd

    def table(name: str) -> pd.DataFrame:
        file = artifact.directory / f"{name}.csv"
        frame = pd.read_csv(file) if file.is_file() else pd.DataFrame(columns=["target", "rule"])
        return frame[frame["rule"] == StrictGreedy().label]

    accepted = table("tables/acceptance")
    certificates, decoded = table("tables/table2"), table("timings/tables/decoding_speed")
    rows = []
    for target in artifact.facts["targets"]:
        row: Json = {"target": target, "drafter": task.settings["drafter"] or "none"}
        for frame, name, shown in (
            (certificates if accepted.empty else certificates[:0], "median", "median"),
            (accepted, "acceptance", "accepted"),
            (accepted, "certified", "certified"),
        ):
            if not frame.empty:
                measured = frame[(frame["target"] == target) & (frame["statistic"] == name)].iloc[0]
                ends = (measured["ci_low"], measured["ci_high"])
                row |= {"prompts": int(measured["prompts"]), shown: measured["value"]}
                row |= dict(zip(limits(shown), ends, strict=True))
        if not decoded.empty:
            runs = decoded.query("target == @target and drafter == 'model' and temperature == 0")
            for best in runs.sort_values("speedup").tail(1).to_dict("records"):
                row |= {"γ": int(best["draft_length"]), "tokens_per_call": best["tokens_per_call"]}
                ends = (best["ci_low"], best["ci_high"])
                row |= {"speedup": best["speedup"]} | dict(
                    zip(limits("speedup"), ends, strict=True)
                )
                row["cost"] = best["rho"]
        rows.append(row)
    return rows


STAGE = Stage(
    name="report",
    version=40,
    upstream=UPSTREAM,
    tables={},
    plan=plan,
    compute=write_report,
    check=check,
    summary=summary,
)
