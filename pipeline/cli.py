"""The command line: ``python -m pipeline study=mini stage=report``, or ``draft-acceptance``.

The only entry point that Hydra decorates. Composes the configuration, checks it, and brings the
asked stage up to date. A multirun ends with one table and one plot of all its points. Where the
first word is one of `COMMANDS`, that command runs instead.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from analysis.fields import nearest
from conf.schema import Config
from pipeline.console import TRACEBACK, starting, terminal, told
from pipeline.errors import PipelineError
from pipeline.files import slug
from pipeline.paths import CONF, OUTPUTS
from pipeline.plan.composition import (
    OVERRIDE,
    check_overrides,
    composed,
    given,
    quoted,
    report_name,
)
from pipeline.plan.explain import EXPECTED_ERRORS, explain, say
from pipeline.stage import Task
from pipeline.store import VERDICT, Artifact, relative

BELOW_NULL = ("Unexpected type for root: NoneType", "full_key: drafter.head")
COMMANDS = ("ask", "check_engine", "fetch", "harness", "solve", "verify")
MISFIT = re.compile(r"(?:Could not override '|Error merging override )([\w.@/]+)")


def main() -> None:
    """Run the command line."""
    name, *arguments = sys.argv[1:] or [""]
    if name in COMMANDS:
        raise SystemExit(import_module(f"pipeline.{name}").main(arguments))
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them
    words = sys.argv[1:]
    # options first, since argparse takes none between overrides
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda argument: bool(OVERRIDE.match(argument)))
    with told():
        starting()  # until a job begins: in composition much is caught
        _check_options(words)
        check_overrides(sys.argv[1:])
        try:
            if {"-m", "--multirun"} & set(sys.argv[1:]):
                _multirun()
            else:
                _decorated(_single)()
        except ConfigCompositionException as error:
            say(_problems(sys.argv[1:], error))
        except (AssertionError, AttributeError) as error:  # OmegaConf's, of a key below null
            if TRACEBACK or not any(text in str(error) for text in BELOW_NULL):
                raise
            raise PipelineError(
                "drafter.head has no keys, because the drafter is a language model: for a "
                "head on the target give drafter=eagle3 drafter.path=DIRECTORY"
            ) from None


def _check_options(words: Sequence[str]) -> None:
    """Check for keys that are written as options, and for misspelt commands.

    Raises:
        PipelineError: names the word, and the right form.
    """
    keys = {spec.name for spec in fields(Config)} | {path.name for path in CONF.iterdir()}
    for word, after in zip(words, [*words[1:], "VALUE"], strict=True):
        key, _, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and key.partition(".")[0] in keys:
            raise PipelineError(f"{word} is not an option: write {key}={value or after}")
    if words and words[0].isidentifier():
        raise PipelineError(
            f"{words[0]} is not a command{nearest(words[0], COMMANDS)}: give one of "
            f"{', '.join(COMMANDS)}, or KEY=VALUE"
        )


def _problems(overrides: Sequence[str], error: Exception) -> list[str]:
    """Return the problems of overrides that do not compose, and of the rest."""
    from pipeline.study import Study

    problems = list[str]()
    plain = all(map(OVERRIDE.match, overrides))  # no option: a directory of more files, say
    while plain and (misfit := MISFIT.match(str(error))):
        left = [override for override in overrides if override.partition("=")[0] != misfit[1]]
        if len(left) == len(overrides):
            break
        problems.append(explain(error))
        overrides = left
        try:
            Study(config=composed(overrides))
        except EXPECTED_ERRORS as other:
            error = other
        else:
            return problems
    return [*problems, explain(error)]


def _decorated(job: Callable[[DictConfig], None]) -> Callable[[], None]:
    decorate = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    return decorate(job)


def _multirun() -> None:
    from pipeline import sweeps

    outputs = given(sys.argv[1:], "outputs")
    if outputs is not None and not outputs.strip():
        raise PipelineError("outputs is empty: give a directory")
    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    place = given(sys.argv[1:], "hydra.sweep.dir")
    directory = Path(place or Path(outputs or OUTPUTS) / "sweeps" / now)
    # the directory is given, so that the sweep can be collected
    sys.argv += [f"hydra.sweep.dir={quoted(str(directory))}", "hydra.output_subdir=.hydra"]
    try:
        _decorated(_swept)()
    finally:  # Hydra has no hook for the end of a sweep in which a job failed
        failed = sweeps.collect(directory)
    if failed:
        raise SystemExit(1)


def _single(config: DictConfig) -> None:
    from pipeline import sweeps

    with told():  # here as well: Hydra prints a line of its own about a failed job
        artifacts, tasks = run(config)
        if tasks[0].stage.printed:
            name = slug(f"{tasks[0].stage.name}-{report_name(config)}")
            sweeps.print_single(tasks, artifacts, Path(config.outputs) / "tables" / name)


def _swept(config: DictConfig) -> None:
    from pipeline import sweeps

    hydra_config = HydraConfig.get()
    assert hydra_config.mode == RunMode.MULTIRUN
    overrides = list(hydra_config.overrides.task)
    directory = Path(hydra_config.runtime.output_dir)
    given_once = {word.replace(" ", "") for word in sys.argv}  # of a swept key it has all values
    swept = [override for override in overrides if override.replace(" ", "") not in given_once]
    print(f"point {int(hydra_config.job.num) + 1}: {', '.join(swept or overrides)}", flush=True)
    with terminal():
        try:
            artifacts, tasks = run(config)
        except BrokenPipeError:
            raise
        except Exception as error:  # listed at the end, and the exit status of the sweep
            sweeps.write_point(directory, overrides, failed=explain(error) or type(error).__name__)
            if not isinstance(error, EXPECTED_ERRORS):
                raise
        else:
            rows = sweeps.summary_rows(tasks, artifacts)
            if config.stage == "decoding" and any(key.startswith("criteria") for key in swept):
                rows = _rule_rows(config, rows)
            sweeps.write_point(directory, overrides, stage=tasks[0].stage.name, rows=rows)


def _rule_rows(config: DictConfig, decoded: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a point of a sweep over rules; brings stage acceptance up to date."""
    from pipeline import sweeps
    from pipeline.study import Study

    of_acceptance = OmegaConf.merge(config, {"stage": "acceptance"})
    assert isinstance(of_acceptance, DictConfig)
    study = Study(config=of_acceptance)
    judged, accepted = study.tasks["acceptance"], study.make("acceptance")
    answered = [(task, study.store.find(task)) for task in study.tasks["accuracy"]]
    summaries = {
        "decoding": decoded,
        "acceptance": sweeps.summary_rows(judged, accepted),
        "accuracy": [
            row
            for task, artifact in answered
            if artifact is not None
            for row in task.stage.summary(task, artifact)
        ],
    }
    return sweeps.rule_rows([rule.label for rule in judged[0].spec.rules], summaries)


def run(config: DictConfig) -> tuple[list[Artifact], list[Task]]:
    """Bring the asked stage up to date and return its artifacts and tasks.

    Raises:
        PipelineError, FieldError: the configuration or an input is not usable; nothing is lost.
    """
    from pipeline.study import Study

    study = Study(config=config)
    stage, outputs = study.config.stage, Path(study.config.outputs)
    if not study.tasks[stage]:  # one of the stages that need a drafter
        raise PipelineError(
            f"stage={stage} has nothing to do: add a drafter, for "
            "instance drafter=local drafter.path=DIRECTORY_OR_HUB_ID"
        )
    name = report_name(config) if stage == "report" else ""
    artifacts = study.make(stage)
    if name:
        _show_report(artifacts[0], outputs / "report" / name)
    return artifacts, study.tasks[stage]


def _show_report(report: Artifact, place: Path) -> None:
    """Link `place` to a report, which was checked, and say its verdict and where it is.

    Where no link can be written (a full disk, read-only outputs) the report itself is named.
    """
    shown_at, note = place, ""
    target = Path(os.path.relpath(report.directory, place.parent))
    beside = place.with_name(f".{place.name}.new")
    from filelock import FileLock

    try:
        if not (place.is_symlink() and place.readlink() == target):
            place.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(place.parent / ".lock"):
                beside.unlink(missing_ok=True)  # of a killed run
                beside.symlink_to(target)
                beside.replace(place)
    except OSError as error:
        shown_at, note = report.directory, f" ({relative(place)}: {error.strerror})"
    sentences, tables = _verdict(report)
    print("\n".join(sentences))
    print("\n".join(tables), end="")
    print(f"report: {relative(shown_at / 'index.html')}{note}")
    print(
        "open it in a browser; it needs no network. Its tables and figures as files (CSV, LaTeX, "
        f"PDF): {relative(shown_at / 'tables.html')}",
        flush=True,
    )


def verdict_sentences(report: Artifact) -> list[str]:
    """Return the verdict of a report, a sentence a target."""
    return _verdict(report)[0]


def _verdict(report: Artifact) -> tuple[list[str], list[str]]:
    """Return the first sentence of each paragraph of a report's verdict, and its tables."""
    blocks = (report.directory / VERDICT).read_text(encoding="utf-8").split("\n\n")
    tables = [block for block in blocks if block.startswith("|")]
    return [block.partition("\n")[0] for block in blocks if block not in tables], tables
