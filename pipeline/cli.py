"""The command line: ``python -m pipeline study=mini stage=report``.

The only entry point that Hydra decorates. Composes the configuration, checks it, and brings
the asked stage up to date. A multirun ends with one table and one plot of all its points.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from conf import schema
from pipeline.artifacts import Artifact, Store
from pipeline.composition import EXPECTED, explain, settings_of
from pipeline.errors import PipelineError
from pipeline.paths import CONF, OUTPUTS, ROOT

OmegaConf.register_new_resolver("root", lambda: str(ROOT), replace=True)
schema.register()


def main() -> None:
    """Run the command line."""
    traceback = "HYDRA_FULL_ERROR" in os.environ
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them
    try:
        if {"-m", "--multirun"} & set(sys.argv[1:]):
            _multirun()
        else:
            sys.argv += _unlogged()
            _decorated(_single)()
    except EXPECTED as error:
        if traceback:
            raise
        raise SystemExit(f"error: {explain(error)}") from None
    except OSError as error:  # outputs that can't be written, a full disk
        if traceback:
            raise
        where = f"{error.filename}: " if error.filename else ""
        raise SystemExit(f"error: {where}{error.strerror or error}") from None
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        raise SystemExit(130) from None


def _decorated(job: Callable[[DictConfig], None]) -> Callable[[], None]:
    decorate = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    return decorate(job)


def _multirun() -> None:
    from pipeline import sweeps

    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    outputs = Path(_given("outputs") or OUTPUTS)
    directory = Path(_given("hydra.sweep.dir") or outputs / "sweeps" / now)
    flags = ("-m", "--multirun")  # first, since argparse takes none between overrides
    rest = [argument for argument in sys.argv[1:] if argument not in flags]
    # the directory is given, so that the sweep can be collected
    sys.argv[1:] = ["-m", *rest, f"hydra.sweep.dir='{directory}'"]
    try:
        _decorated(_swept)()
    finally:  # Hydra has no hook for the end of a sweep in which a job failed
        failed = sweeps.collect(directory)
    if failed:
        raise SystemExit(1)


def _unlogged() -> list[str]:
    """Overrides that keep Hydra's logs out of outputs that can't be written."""
    outputs = Path(_given("outputs") or OUTPUTS)
    if outputs.is_dir() and not os.access(outputs, os.W_OK):
        return ["hydra.run.dir=.", "hydra.output_subdir=null"]
    return []


def _given(key: str) -> str | None:
    values = [a.split("=", 1)[1] for a in sys.argv[1:] if a.startswith(f"{key}=")]
    return values[-1].strip("'\"") if values else None


def _single(config: DictConfig) -> None:
    from pipeline import sweeps

    try:
        artifacts, nodes = run(config)
        if artifacts[0].record["stage"] in ("certificates", "acceptance", "decoding"):
            sweeps.print_table(sweeps.rows_of(nodes, artifacts))
    except EXPECTED as error:  # here, since Hydra prints a line of its own about a failed job
        raise SystemExit(f"error: {explain(error)}") from None


def _swept(config: DictConfig) -> None:
    from pipeline import sweeps

    hydra_config = HydraConfig.get()
    assert hydra_config.mode == RunMode.MULTIRUN
    overrides = list(hydra_config.overrides.task)
    directory = Path(hydra_config.runtime.output_dir)
    try:
        artifacts, nodes = run(config)
    except Exception as error:  # listed at the end, and the exit status of the sweep
        sweeps.write_failure(directory, overrides, explain(error) or type(error).__name__)
        if not isinstance(error, EXPECTED):
            raise
    else:
        sweeps.write_point(directory, overrides, nodes, artifacts)


def run(config: DictConfig) -> tuple[list[Artifact], list]:
    """Bring the asked stage up to date and return its artifacts and nodes.

    Raises:
        PipelineError, ConfigError: the configuration or an input is not usable; nothing is lost.
    """
    from pipeline import runner
    from pipeline.stages import RESUMABLE

    settings, nodes, store = prepare(config)
    wanted = nodes[settings.stage]
    if not wanted:  # one of the stages that need a drafter
        raise PipelineError(
            f"stage={settings.stage} has nothing to do: add a drafter, for "
            "instance drafter=local drafter.path=DIRECTORY_OR_HUB_ID"
        )
    models_run = any(node.stage in RESUMABLE for node in runner.pending(wanted, store))
    if settings.device.name.startswith("cuda") and models_run:
        from pipeline.devices import choose_device

        choose_device(settings.device.name)  # an error now rather than after the prompts
    _refer(wanted, store)
    artifacts = runner.ensure(wanted, store)
    if settings.stage == "report":
        from pipeline.serve import serve

        serve(artifacts[0], Path(settings.outputs) / "report" / settings.study, store)
    return artifacts, wanted


def _refer(nodes: list, store: Store) -> None:
    """Note what this command, or this point of a sweep, needs to be kept."""
    from pipeline.gc import refer

    if HydraConfig.initialized():
        overrides = HydraConfig.get().overrides.task
        command = " ".join(o for o in overrides if not o.startswith(("outputs=", "device.")))
        with suppress(OSError):  # outputs that can't be written serve what they hold
            refer(command, nodes, store)


def prepare(config: DictConfig) -> tuple[schema.Config, dict[str, list], Store]:
    """Check the configuration and plan every stage, without computing anything."""
    from pipeline.identity import Identities
    from pipeline.rules import build_rules
    from pipeline.stages import plan

    settings = settings_of(config)
    rules = build_rules(settings.criteria)
    store = Store(Path(settings.outputs) / "artifacts")
    identities = Identities(store.root / ".identities.json")
    nodes = plan(settings, rules, identities)
    identities.save()
    return settings, nodes, store
