"""Stage distributions: decodes every prompt, and stores the target's distribution at every step.

Run it with ``python -m pipeline stage=distributions``. If the target is an engine's log, nothing is
decoded: the log-probabilities of the log are stored, which are rounded.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.rule_base import check_k
from pipeline.core import columns
from pipeline.core.columns import STEP, TARGET, Column
from pipeline.core.errors import PipelineError
from pipeline.core.stage import Stage, Task
from pipeline.engines.answers.logs import read_log, stacked
from pipeline.engines.printed_text import counted
from pipeline.inputs.artifact_readers import read_token_ids
from pipeline.inputs.local_files import local_file
from pipeline.models.tokens import ENGINES_IDS
from pipeline.settings.criteria import judged_by_logs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.core.stage import Inputs, Json, Out
    from pipeline.core.workers import Progress, Result
    from pipeline.study import Study

BATCH = {"cpu": 32, "cuda": 128}  # prompts decoded together; more were not faster on a CPU
NOT_TOLD = (
    "taken as raw: a log does not tell them from values after a temperature, a penalty or sampling "
    "in the backend (docs/engine_logs.md has the requests)"
)


def check(study: Study) -> None:
    """Check that distributions.k suffices for all rules, and that all settings suit a log."""
    config = study.config
    check_k(study.rules, config.distributions.k, setting="distributions.k")
    if config.distributions.source != "logs":
        return
    if config.drafter is not None:
        raise PipelineError(
            f"drafter {config.drafter.label} is not allowed with distributions.source=logs, which "
            "has no model to compare it with: give drafter=none"
        )
    if config.distributions.log.vocab_size is None:
        raise PipelineError(
            "distributions.log.vocab_size must be given: the vocab_size of the model's config.json"
        )
    if config.certificates.temperature != 1.0:
        raise PipelineError(
            f"certificates.temperature={config.certificates.temperature:g} is not allowed with "
            "distributions.source=logs: a log has distributions at temperature 1 only"
        )
    for rule in study.rules:
        if not judged_by_logs(rule):
            raise PipelineError(
                f"{rule.label} can't be certified with distributions.source=logs: it needs raw "
                "logits, and a log has rounded log-probabilities"
            )


def plan(study: Study) -> list[Task]:
    """Return a task for each target, a model or an engine's log."""
    config = study.config
    options = config.distributions
    tasks = []
    pairs = zip(config.targets.items(), study.tasks["prompts"], strict=True)
    for (key, target), prompts in pairs:
        runtime = study.runtime(target)
        settings = dict[str, Any](k=options.k)
        if options.source == "logs":
            settings["log"] = study.log_entries(key)
            settings["vocab_size"] = options.log.vocab_size
        else:
            model = study.model_spec(f"targets.{key}", target)
            runtime = replace(runtime, models=(model,))
            settings["model"] = model.entries
            settings |= options.model_dump(include={"steps", "temperature", "seed"})
            settings["certified_temperature"] = config.certificates.temperature
        tasks.append(Task(STAGE, key, settings, {"prompts": prompts}, runtime))
    return tasks


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Decode the prompts, or read an engine's log; write the distributions."""
    if "log" in task.settings:
        write_log(task, out)
        return
    from pipeline.core.shards import compute_shards, join

    steps = task.settings["steps"]
    prompts = read_token_ids(inputs["prompts"])
    names = sorted(prompts, key=lambda name: len(prompts[name]), reverse=True)
    shards = compute_shards(task, inputs, out, names, DistributionsWorker, steps=steps)
    join(shards, list(prompts), out)


class DistributionsWorker:
    """Decodes prompts with the model of a task: a `pipeline.core.workers.Worker`."""

    def __init__(self, task: Task, inputs: Inputs) -> None:
        from pipeline.models.loading import load_model

        self.model = load_model(*task.runtime.models)
        self._task = task
        self._prompts = read_token_ids(inputs["prompts"])
        longest = max(map(len, self._prompts.values()))
        self.model.check_context(longest + task.settings["steps"], "distributions.steps")
        for name, ids in self._prompts.items():
            self.model.check_tokens(ids, f"prompt {name}")

    def batch(self) -> int:
        """Return the number of prompts in a shard, which are decoded together."""
        return self._task.runtime.models[0].device.batch or BATCH[self.model.device.type]

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Decode a shard; return its time and size, and a table of steps for each prompt."""
        import torch

        from pipeline.models.batch_decoding import decode_batch

        begun = time.perf_counter()
        batch = {name: self._prompts[name] for name in names}
        out = decode_batch(self.model, batch, self._task.settings, progress)
        out = {name: tensor.cpu() for name, tensor in out.items()}  # waits for the device
        seconds = time.perf_counter() - begun
        lengths = out.pop("lengths")
        inside = torch.arange(out["token_id"].shape[1]) < lengths[:, None]
        broken = (inside & ~out["entropy"].isfinite()).nonzero()
        if len(broken):
            row, step = broken[0].tolist()
            raise PipelineError(
                f"{self.model.label}: NaN or infinite logits for prompt {names[row]} at step "
                f"{step} ({len(broken)} steps of this batch): try dtype: float32 or attention: "
                "eager for this model, and check its weights"
            )
        schema = STAGE.schema()
        tables = [
            columns.steps_table(name, {key: t[row, :n].numpy() for key, t in out.items()}, schema)
            for row, (name, n) in enumerate(zip(names, lengths.tolist(), strict=True))
        ]
        return {"seconds": seconds, "rows": int(lengths.sum())}, tables

    def metadata(self, measured: Sequence[Json]) -> Json:
        """Return the record's metadata on the model, the run and its throughput."""
        from pipeline.models.devices import describe_device, peak_memory
        from pipeline.models.recorded_passes import can_record

        model = self.model
        settings = self._task.settings
        rows = sum(shard["rows"] for shard in measured)
        seconds = sum(shard["seconds"] for shard in measured)
        return {
            "model": model.label,
            "vocab_size": model.vocab_size,
            "k": min(settings["k"], model.vocab_size),
            "certified_temperature": settings["certified_temperature"],
            "eos": list(model.eos),
            **describe_device(model.device),
            "recorded_passes": can_record(model),
            "peak_memory_bytes": peak_memory(model.device),
            "tokens_per_second": round(rows / seconds, 1),
        }


def write_log(task: Task, out: Out) -> None:
    """Write the distributions of an engine's log; note which rows of it were left out."""
    import pyarrow as pa

    vocab_size = task.settings["vocab_size"]
    path = local_file(task.runtime.path)
    log = read_log(path, task.settings["k"], vocab_size, task.settings["log"]["error"])
    steps = stacked(log.trajectories)
    values = steps["log_probs"]
    rows = len(steps["log_probs"])
    with np.errstate(divide="ignore"):
        tail = np.log(np.clip(1.0 - np.exp(values).sum(axis=1), 0.0, None))
    steps |= {
        "top_logits": values.astype(np.float32),
        "logsumexp": np.zeros(rows),
        "top_surprisal": -values[:, 0],
        "log_tail": np.where(log.k == vocab_size, -np.inf, tail),
        "entropy": np.full(rows, np.nan),  # not known
    }
    out.write(columns.table(steps, task.stage.schema()))
    if not log.given_ids:
        texts = [raw.decode(errors="replace") for raw, _ in log.texts]
        tokens = {"token_id": list(log.texts.values()), "text": texts}
        out.write(pa.table(tokens, schema=task.stage.schema("tokens")), "tokens")
    out.metadata |= {
        "model": log.model or task.runtime.label,
        "log": path.name,
        "vocab_size": vocab_size,
        "k": log.k,
        "log_prob_error": log.error,
        "certified_temperature": 1.0,
        "answers": log.answers,
        "trajectories": len(log.trajectories),
        "excluded": log.excluded,
        "token_ids": ENGINES_IDS if log.given_ids else "of this file, by their bytes",
        "values": NOT_TOLD,
    }
    engine = log.engine or "an engine that they do not name"
    print(
        f"distributions {task.label}: {rows} steps of {log.answers} answers of {engine}, {log.k} "
        f"log-probabilities each, off by at most {log.error:.2g}; left out: "
        f"{counted(log.excluded)}; values {NOT_TOLD}",
        flush=True,
    )


STAGE = Stage(
    name="distributions",
    version=4,
    upstream=("prompts",),
    tables={
        "data": STEP | {"token_id": Column("int32", "the token emitted")} | TARGET,
        "tokens": {
            "token_id": Column("int32", "assigned to a token of a log without the engine's ids"),
            "text": Column("string", "its text"),
        },
    },
    plan=plan,
    compute=compute,
    check=check,
)
