"""The command line: ``python -m pipeline study=mini stage=report``, or ``draft-acceptance``.

The only entry point that Hydra decorates. Composes the configuration, checks it, and brings the
asked stage up to date. A multirun ends with one table and one plot of all its points. Where the
first word is one of `COMMANDS`, that command runs instead.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from conf.schema import Config
from pipeline.core.commands import run_as_command
from pipeline.core.copies import bring_copy
from pipeline.core.errors import EXPECTED, PipelineError, first_line, one_line
from pipeline.core.interruption import raise_if_interrupted
from pipeline.core.paths import CONF
from pipeline.core.stage import Artifact, Task
from pipeline.core.store import VERDICT, Store, relative
from pipeline.core.timings import timed_on
from pipeline.settings.composition import OVERRIDE, composed, config_dirs, refuse, report_name

PROJECT = "draft-acceptance-study"
COMMANDS = ("ask", "engine", "fetch", "solve", "verify")


def main() -> None:
    """Run the command line."""
    words = sys.argv[1:]
    first = words[0] if words else ""
    if first in COMMANDS:
        raise SystemExit(import_module(f"pipeline.{first}").main(words[1:]))
    if words == ["--version"]:
        print(PROJECT, version(PROJECT))
        return
    if words == ["help"]:
        sys.argv[1:] = ["--help"]
    elif first.isidentifier():
        from analysis.validation import nearest  # which imports numpy

        raise SystemExit(
            f"error: {first} is not a command{nearest(first, COMMANDS)}: give one of "
            f"{', '.join(COMMANDS)}, or KEY=VALUE"
        )
    with run_as_command():
        _, overrides = config_dirs(words)
        if all(map(OVERRIDE.match, overrides)) and words != ["help"]:
            _single(composed(words))  # without options Hydra would compose twice
            return
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them
        try:
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(_job)()
        except (PipelineError, BrokenPipeError):
            raise
        except Exception as error:  # of Hydra: a job ends with a status of its own
            refuse(error, words)


def _job(config: DictConfig) -> None:
    with run_as_command():  # here as well: Hydra prints a line of its own about a failed job
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            _point(config)
        else:
            _single(config)


def _single(config: DictConfig) -> None:
    from pipeline.core.printed_tables import print_table, summary_rows
    from pipeline.core.sweeps import publish_list_values
    from pipeline.settings.criteria import build_rules

    settings, tasks, artifacts = run(config)
    if tasks[0].stage.printed:
        rows = summary_rows(tasks, artifacts)
        print_table(rows)
        rules, _ = build_rules(settings.criteria)
        outputs = Path(settings.outputs)
        publish_list_values(sys.argv[1:], settings.stage, rules, rows, outputs)


def _point(config: DictConfig) -> None:
    from pipeline.core import sweeps
    from pipeline.core.printed_tables import summary_rows

    job = HydraConfig.get()
    overrides = sweeps.raw_overrides(job.overrides.task)
    named = ", ".join(sweeps.swept(overrides, sys.argv) or overrides)
    print(f"point {int(job.job.num) + 1}{': ' if named else ''}{named}", flush=True)
    try:
        settings, tasks, artifacts = run(config)
        result: dict[str, Any] = {"stage": settings.stage, "rows": summary_rows(tasks, artifacts)}
    except BrokenPipeError:
        raise
    except Exception as error:
        raise_if_interrupted()  # if a library made this of an interruption
        if not isinstance(error, EXPECTED):
            traceback.print_exc()
        result = {"failed": one_line(error)}
    sweeps.write_point(Path(job.runtime.output_dir), overrides, **result)


def run(config: DictConfig) -> tuple[Config, list[Task], list[Artifact]]:
    """Bring the asked stage up to date; return the settings, and its tasks and artifacts."""
    from pipeline.study import Study

    study = Study(config=config)
    settings = study.config
    if not study.tasks[settings.stage]:  # one of the stages that need a drafter
        raise PipelineError(
            f"stage={settings.stage} has nothing to do: add a drafter, for "
            "instance drafter=local drafter.path=DIRECTORY_OR_HUB_ID; only decoding by "
            "prompt_lookup alone does without"
        )
    artifacts = study.make(settings.stage)
    for line in dict.fromkeys(timed_on(artifact.record) for artifact in artifacts):
        if line is not None:
            print(line, flush=True)
    if settings.stage == "report":
        _show_report(
            artifacts[0], Path(settings.outputs) / "report" / report_name(settings), study.store
        )
    return settings, study.tasks[settings.stage], artifacts


def _show_report(report: Artifact, place: Path, store: Store) -> None:
    """Copy a report to `place`, or name it where it is if it can't be copied; say its verdict."""
    shown_at = place
    note = ""
    try:
        bring_copy(store, report, place)
    except (OSError, PipelineError) as error:
        shown_at = report.directory
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        note = f" ({relative(place)}: {reason})"
    sentences, tables = verdict_of(report)
    print("\n".join([*sentences, *tables]), end="" if tables else "\n")
    print(f"report: {relative(shown_at / 'index.html')}{note}")
    print(
        "open it in a browser, or mail it: it is one file. CSV, LaTeX, PDF: beside it", flush=True
    )


def verdict_of(report: Artifact) -> tuple[list[str], list[str]]:
    """Return the first sentence of each paragraph of a report's verdict, and its tables.

    Without Markdown's escapes of tags and links, which a terminal does not have.
    """
    text = (report.directory / VERDICT).read_text(encoding="utf-8")
    blocks = text.replace(r"\<", "<").replace(r"]\(", "](").split("\n\n")
    tables = [block for block in blocks if block.startswith("|")]
    return [block.partition("\n")[0] for block in blocks if block not in tables], tables
