"""Stage decoding: runs speculative decoding with every method, and the target alone.

Run it with ``python -m pipeline stage=decoding drafter=... decoding=default``. A shard is one
prompt. The target reads it once, and the time of this prefill counts for every method. Then the
baselines and all methods decode one after the other, so that the times that are compared were
measured within a minute. Tokens, calls and nats given up are the artifact's content. Times are in
timings/, which is not part of the content's digest, because they depend on the machine
(`pipeline.core.timings`). `tables.py` has the columns, `rows.py` fills them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.statistics.estimate import interval_columns
from pipeline.core.stage import Json, Stage, Task
from pipeline.core.timings import Asked, distinct
from pipeline.drafters import kind_of
from pipeline.settings.method_config import build_methods
from pipeline.settings.methods import method_entries, methods_of
from pipeline.stages.decoding.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.core.stage import Artifact, Inputs, Out
    from pipeline.core.workers import Progress, Result
    from pipeline.decoding.session import Prompt
    from pipeline.models.eagle3.drafter import Eagle3Drafter
    from pipeline.models.language_model import LanguageModel
    from pipeline.study import Study


def plan(study: Study) -> list[Task]:
    """Return a task for each target; none for logs."""
    config = study.config
    options = config.decoding
    if config.distributions.source == "logs":
        return []
    methods = build_methods(options.methods, study.decoded, options.draft_length)
    # methods that need a drafter without one: no tasks, as stage drafts has none
    upstream = study.tasks["drafts"]
    if config.drafter is None and not any(kind_of(method.drafter).has_files for method in methods):
        upstream = study.tasks["distributions"]
    needs_drafts = any(method.needs_drafts for method in methods)
    settings = options.model_dump(include={"steps", "seed", "lookup", "lookup_match"})
    settings["prompts"] = min(options.prompts, config.prompts.count)
    settings["methods"] = [method_entries(method) for method in methods]
    tasks = []
    for task in upstream:
        inputs = {"prompts": task.inputs["prompts"]}
        if needs_drafts:
            inputs["drafts"] = task
        runtime = task.runtime
        pair = {
            role: model.entries
            for role, model in zip(("target", "drafter"), runtime.models, strict=False)
        }
        asked = Asked.of(config.device)
        tasks.append(Task(STAGE, task.label, pair | settings, inputs, runtime, asked))
    return tasks


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Decode the first prompts with every method."""
    from pipeline.core.shards import compute_shards, write_tables

    write_tables(task, out, compute_shards(task, inputs, out, None, DecodingWorker), "prompt")
    out.metadata["failed_prompts"] = out.rows["failures"]


def first_prompts(prompts: Artifact, count: int) -> list[Prompt]:
    """Return the first `count` prompts."""
    from pipeline.decoding.session import Prompt

    rows = prompts.read(columns=["prompt_id", "token_ids", "source"]).slice(0, count).to_pylist()
    return [Prompt(**row) for row in rows]


class DecodingWorker:
    """Decodes prompts with every method: a `pipeline.core.workers.Worker`."""

    def __init__(self, task: Task, inputs: Inputs) -> None:
        from pipeline.decoding.session import load_session, warm_up
        from pipeline.drafters.pairs import pair_tokenizer
        from pipeline.inputs.measured_trees import with_measured_trees

        methods = with_measured_trees(methods_of(task), inputs.get("drafts"))
        self._prompts = first_prompts(inputs["prompts"], task.settings["prompts"])
        self._index = {prompt.prompt_id: index for index, prompt in enumerate(self._prompts)}
        tokenizer = pair_tokenizer(*task.runtime.models)
        texts = [prompt.token_ids for prompt in self._prompts]
        self._session = load_session(task, methods, tokenizer, task.settings["steps"], texts)
        warm_up(self._session, self._prompts)

    def names(self) -> list[str]:
        """Return the ids of the prompts."""
        return [prompt.prompt_id for prompt in self._prompts]

    def batch(self) -> int:
        """Return the number of prompts in a shard: one, which every method decodes."""
        return 1

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Decode a prompt with every method."""
        from pipeline.core.shards import nested
        from pipeline.models.devices import describe_machine
        from pipeline.stages.decoding.rows import decode_prompt

        index = self._index[names[0]]
        tables = decode_prompt(self._session, self._prompts[index], index)
        progress(1)
        return describe_machine(self._session.target.device), [nested(STAGE, tables)]

    def metadata(self, measured: Sequence[Json]) -> Json:
        """Return the record's metadata on the runs and the models."""
        from pipeline.decoding.session import run_metadata
        from pipeline.models.devices import describe_device
        from pipeline.models.recorded_passes import can_record

        session = self._session
        models: dict[str, LanguageModel | Eagle3Drafter] = {"target": session.target}
        if session.neural is not None:
            models["drafter"] = session.neural.model
        return {
            "runs": [run_metadata(method) for method in session.runs],
            "bytes": {
                name: {"model": model.memory_bytes(), "cache_per_token": model.cache_bytes()}
                for name, model in models.items()
            },
            "machines": distinct(measured),
            **describe_device(session.target.device),
            "recorded_passes": can_record(session.target),
            "vocab_size": session.target.vocab_size,
        }


def summary(task: Task, artifact: Artifact) -> list[Json]:
    """Return a row for each method, the baselines included."""
    from analysis.decoding import metrics, speed
    from pipeline.inputs.decoded_artifacts import read_decoded

    target, *drafter = (model.settings.label for model in task.runtime.models)
    decoded = read_decoded(target, "".join(drafter), artifact)
    speeds = speed.throughput(decoded, *task.runtime.statistics)
    ends = dict(zip(speed.SPEEDUP_ENDS, interval_columns("speedup"), strict=True))
    ends |= dict(zip(speed.TPOT_ENDS, interval_columns("tpot_speedup"), strict=True))
    rows = metrics.acceptance(decoded, *task.runtime.statistics)
    rows = rows.join(speeds.rename(columns=ends))
    rows = rows.assign(target=target, prompts=decoded.n_prompts)
    shown = ["target", "rule", "prompts", "method", "draft_length", "temperature"]
    for name in ("rate", "tokens_per_call"):
        shown += [name, *interval_columns(name)]
    shown += ["agreement", "nats_given_up", "tokens_per_second"]
    for name in ("speedup", "tpot_speedup"):  # of whole answers; of the tokens after the first
        shown += [name, *interval_columns(name)]
    return [dict(zip(shown, row, strict=True)) for row in rows[shown].itertuples(index=False)]


STAGE = Stage(
    name="decoding",
    version=20,
    upstream=("prompts", "drafts"),  # drafts: for trees whose shape it measures
    tables=TABLES,
    plan=plan,
    compute=compute,
    summary=summary,
    printed=True,
)
