"""A study: its configuration, its rules and its artifacts, made or planned.

The command line runs a study, stages plan their tasks from it, and notebooks read its results:
``Study("study=mini")`` takes the same overrides as ``python -m pipeline``, and reads the artifacts
that this command made. Only `make` computes anything.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from analysis.rules import Rule
from analysis.statistics.bootstrap import Resampling
from conf import schema
from conf.schema import DrafterConfig, ModelConfig
from pipeline.core.errors import PipelineError, collect_errors, raise_collected
from pipeline.core.stage import Artifact, Json, ModelSpec, Runtime, Stage, Task, with_inputs
from pipeline.core.store import Store, relative
from pipeline.core.timings import in_words, machines
from pipeline.inputs.identity import Identities
from pipeline.inputs.local_files import local_file, local_path
from pipeline.models.kept import kept_models
from pipeline.settings.composition import composed, settings_of
from pipeline.settings.criteria import build_rules, rule_entries

if TYPE_CHECKING:
    import pandas as pd

    from analysis.topk import TopK

STAGES: dict[str, Stage] = {
    name: import_module(f"pipeline.stages.{name}").STAGE for name in schema.STAGE_NAMES
}
# stages that decode with drafts, and so remove rejected tokens from caches
DECODING_STAGES = frozenset({"decoding", "accuracy"})
LOG_READER_VERSION = 7  # raised when engines' logs are read differently


class Study:
    """A study whose tasks are planned.

    Attributes:
        config: the checked configuration.
        rules: those of `config.criteria`.
        decoded: the rules that methods with `rule: criteria` decode with.
        wanted: the requested stage, and all stages that it needs.
        tasks: by stage, the tasks for each target; empty for stages that are not wanted.
        store: where their artifacts are.
    """

    def __init__(self, *overrides: str, config: DictConfig | None = None) -> None:
        """Compose the configuration (from `overrides`, unless it is given), check and plan it.

        Raises:
            PipelineError: the configuration or an input is not usable; a line for each problem.
        """
        problems: list[str] = []
        self.overrides = overrides
        self.rules: list[Rule] = []
        self.decoded: list[Rule] = []
        self.config = settings_of(composed(overrides) if config is None else config)
        self.store = Store(Path(self.config.outputs) / "artifacts")
        self.identities = Identities(self.store.root / ".identities.json")
        with collect_errors(problems):
            self.rules, self.decoded = build_rules(self.config.criteria)
        if not self.config.targets:
            raise PipelineError(
                "no target: add target=mini_large, or target=local "
                "targets.local.path=DIRECTORY_OR_HUB_ID"
            )
        self.wanted = _closure(self.config.stage)
        self.targets = list(self.config.targets)
        for name, stage in STAGES.items():
            with collect_errors(problems):
                if name in self.wanted and stage.check is not None:
                    stage.check(self)
        check_path = local_file if self.config.distributions.source == "logs" else local_path
        for key, model in models_named(self.config).items():
            with collect_errors(problems):
                check_path(model.path, key)
        if not self.rules:  # they have errors, and stages can't plan without rules
            raise_collected(problems)
        self.tasks: dict[str, list[Task]] = {}
        with collect_errors(problems):
            for name, stage in STAGES.items():
                self.tasks[name] = list(stage.plan(self)) if name in self.wanted else []
        raise_collected(problems)

    @property
    def statistics(self) -> Resampling:
        """The settings of the bootstrap."""
        return Resampling(**vars(self.config.statistics))

    def model_spec(self, key: str, model: ModelConfig) -> ModelSpec:
        """Return the specification of a model; `key` is its configuration key."""
        identity = self.identities.model(model.path, model.revision, f"{key}.path")
        device = self.config.device
        execution = self.config.execution
        head = model.head if isinstance(model, DrafterConfig) else None
        return ModelSpec(key, identity, model, device, execution=execution, head=head)

    def log_entries(self, target: str) -> Json:
        """Return the settings of a target that is an engine's log: all that results depend on."""
        key = f"targets.{target}.path"
        path = self.config.targets[target].path
        local_file(path, key)
        identity = self.identities.source(path, None, key)
        error = self.config.distributions.log.error
        return {**identity.entries, "reader": LOG_READER_VERSION, "error": error}

    def runtime(self, target: ModelConfig) -> Runtime:
        """Return the runtime of a task on a target, without models."""
        return Runtime(target.label, self.statistics, path=target.path)

    def rule_tasks(self, stage: Stage, upstream: str, **settings: Any) -> list[Task]:
        """Return a task of `stage` for each task of stage `upstream`, its only input.

        Its settings are all rules and `settings`.
        """
        settings = {"rules": [rule_entries(rule) for rule in self.rules], **settings}
        pairs = zip(self.config.targets.values(), self.tasks[upstream], strict=False)  # or no task
        return [
            Task(stage, task.label, settings, {upstream: task}, self.runtime(target))
            for target, task in pairs
        ]

    def is_made(self, task: Task) -> bool:
        """Whether the artifact of a task exists, with timings that suit what is asked for."""
        return self.store.find(task) is not None

    def make(self, stage: str) -> list[Artifact]:
        """Compute the artifacts of a stage that do not exist yet, and all that they need."""
        tasks = self.tasks[stage]
        todo = self.store.missing(tasks)
        if todo:
            for task in todo:
                if task.stage.check_task is not None:
                    task.stage.check_task(task)
            check_models(todo)
            self._print_plan(tasks, {task.key for task in todo})
        with kept_models():
            artifacts = [self.store.get(task) for task in tasks]
        computed = {task.key for task in todo}
        for task, artifact in zip(tasks, artifacts, strict=True):
            if task.key not in computed:
                print(f"{task.name}: cached -> {relative(artifact.directory)}", flush=True)
        return artifacts

    def _print_plan(self, tasks: Sequence[Task], todo: set[str]) -> None:
        parts = []
        every = with_inputs(tasks)
        for stage in STAGES:
            keys = {key for key, task in every.items() if task.stage.name == stage}
            run = len(keys & todo)
            cached = sum(self.is_made(every[key]) for key in keys - todo)
            counted = {"cached": cached, "to run": run}
            words = [f"{count} {state}" for state, count in counted.items() if count]
            if words:
                parts.append(f"{stage} {' and '.join(words)}")
        print(f"plan: {', '.join(parts)}", flush=True)

    def task(self, stage: str, target: str | None = None) -> Task:
        """Return the task of a stage; `target` is a key of `targets`, the first one by default."""
        if stage not in self.tasks:
            raise PipelineError(f"no stage {stage!r}; stages: {', '.join(self.tasks)}")
        tasks = self.tasks[stage]
        if target is not None and target not in self.targets:
            raise PipelineError(f"no target {target!r}; targets: {', '.join(self.targets)}")
        if not tasks:
            wanted = "" if stage in self.wanted else ", or another stage"
            raise PipelineError(f"no {stage} in this study: add a drafter (drafter=...){wanted}")
        index = 0 if target is None or len(tasks) == 1 else self.targets.index(target)
        return tasks[index]

    def artifact(self, stage: str, target: str | None = None) -> Artifact:
        """Return the artifact of a stage, as `task` names it; PipelineError if it is not there."""
        task = self.task(stage, target)
        artifact = self.store.find(task)
        if artifact is None:
            reason = "does not exist yet"
            timed = [in_words(machines(other.record)) for other in self.store.published(task)]
            if timed:
                reason = f"has no timings that the keys device.* ask for, but of {'; '.join(timed)}"
            raise PipelineError(f"{task.name} {reason}: run `{self.command(f'stage={stage}')}`")
        return artifact

    def command(self, *more: str) -> str:
        """Return the command line of this study, without overrides of `solve`, with `more`."""
        words = [word for word in self.overrides if not word.startswith("solve.")]
        return shlex.join(["python", "-m", "pipeline", *words, *more])

    def frame(
        self,
        stage: str,
        target: str | None = None,
        rule: str | None = None,
        columns: list[str] | None = None,
    ) -> pd.DataFrame:
        """Return the rows of an artifact, of one rule if its label is given.

        By default the columns `top_*`, lists of K values, are left out.
        """
        artifact = self.artifact(stage, target)
        if columns is None:
            columns = [name for name in artifact.tables["data"] if not name.startswith("top_")]
        if rule is None:
            return artifact.read(columns=columns).to_pandas()
        labels = {known.label for known in self.rules}
        if rule not in labels:
            raise PipelineError(f"no rule {rule!r} in this study; rules: {sorted(labels)}")
        read = [*columns, *([] if "rule" in columns else ["rule"])]
        rows = artifact.read(columns=read, rule=rule).to_pandas()
        return rows[columns].reset_index(drop=True)

    def distributions(self, target: str) -> TopK:
        """Return the stored distributions of all steps of a target."""
        from pipeline.inputs.artifact_readers import read_distributions

        return read_distributions(self.artifact("distributions", target))

    def words(self, target: str) -> dict[int, str]:
        """Return the texts of a target's tokens by id, as far as they are known (`token_texts`)."""
        from pipeline.models.tokens import token_texts

        task = self.task("distributions", target)
        dump = self.artifact("distributions", target)
        return token_texts(task, dump, range(dump.metadata["vocab_size"]))


def models_named(config: schema.Config) -> dict[str, ModelConfig]:
    """Return the models of a configuration, by the key that has their path."""
    models = {f"targets.{name}.path": target for name, target in config.targets.items()}
    return models if config.drafter is None else models | {"drafter.path": config.drafter}


def _closure(name: str) -> frozenset[str]:
    return frozenset({name}).union(*(_closure(needed) for needed in STAGES[name].upstream))


def check_models(tasks: Sequence[Task]) -> None:
    """Check the models that the tasks to be computed will load, each once."""
    if not any(task.runtime.models for task in tasks):
        return  # and torch need not be imported
    from pipeline.drafters.pairs import check_decoding, check_pair
    from pipeline.models.devices import check_threads, choose_device
    from pipeline.models.loading import skeleton

    checked = set()
    for task in tasks:
        models = task.runtime.models
        decodes = task.stage.name in DECODING_STAGES
        key = (models[0].key, len(models), decodes) if models else None
        if key is None or key in checked:
            continue
        checked.add(key)
        if models[0].execution.engine == "ray":
            from pipeline.core.workers import allocate, connect

            allocate(connect().cluster_resources(), models[0])
        else:
            for used in models:
                choose_device(used.device.name)
                check_threads(used.device.threads)
        if decodes:
            check_decoding(*models)
        if len(models) == 1:
            skeleton(*models)
        else:
            check_pair(*models)
