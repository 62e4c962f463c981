"""Decodes every prompt, or reads an engine's log, and stores every step's distribution.

A finished shard is never computed again. At the end they are joined in the order of the prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline import columns
from pipeline.errors import PipelineError
from pipeline.models.load import load_model, skeleton
from pipeline.models.logit_statistics import Found
from pipeline.plan.specs import DistributionsSpec, LoggedDistributions
from pipeline.shards import Progress, Result, compute_shards, join, tables_bytes
from pipeline.stage import Inputs, Json, Task
from pipeline.stages.distributions.decode import decode_batch
from pipeline.store import Out
from pipeline.stored import read_token_ids
from pipeline.timing import Stopwatch, describe_device, peak_memory, throughput

BATCH = {"cpu": 32, "cuda": 128}  # prompts; larger batches were not faster on a CPU


def compute(task: Task, inputs: Inputs, out: Out) -> None:
    """Decode the prompts, or read an engine's log, and write the distributions."""
    if isinstance(task.spec, LoggedDistributions):
        from pipeline.stages.distributions.logged import write_log

        write_log(task, out)
        return
    spec: DistributionsSpec = task.spec
    prompts = read_token_ids(inputs["prompts"])
    model = skeleton(spec.model)
    longest = max(map(len, prompts.values()))
    model.check_context(longest + spec.steps, "distributions.steps")
    for name, ids in prompts.items():
        model.check_tokens(ids, f"prompt {name}")
    names = sorted(prompts, key=lambda name: len(prompts[name]), reverse=True)
    shards = compute_shards(task, inputs, out, names, DistributionsWorker, steps=spec.steps)
    join(shards, list(prompts), out)


class DistributionsWorker:
    """The model of a task; see `pipeline.shards.Worker`."""

    def __init__(self, task: Task, inputs: Inputs) -> None:
        """Load it, and the prompts."""
        self.model = load_model(task.spec.model)
        self._task, self._prompts = task, read_token_ids(inputs["prompts"])

    def batch(self) -> int:
        """Return how many prompts are decoded together."""
        return self._task.spec.model.device.batch or BATCH[self.model.device.type]

    def compute(self, names: Sequence[str], progress: Progress) -> Result:
        """Decode a shard."""
        watch = Stopwatch(self.model.device)
        batch = {name: self._prompts[name] for name in names}
        out = decode_batch(self.model, batch, self._task.spec, watch, progress)
        return shard_result(self._task, self.model.label, names, out, watch)

    def facts(self, measured: Sequence[Json]) -> Json:
        """Return the record's facts on the model, the run and its throughput."""
        model, spec, settings = self.model, self._task.spec, self._task.spec.model.settings
        return {
            "model": model.label,
            "revision": settings.revision,
            "commit": spec.model.identity.commit,
            "vocab_size": model.vocab_size,
            "k": min(spec.k, model.vocab_size),
            "certified_temperature": spec.certified_temperature,
            "eos": list(model.eos),
            **describe_device(model.device),
            "peak_memory_bytes": peak_memory(model.device),
            **throughput(measured),
        }


def shard_result(
    task: Task, label: str, prompts: Sequence[str], out: Found, watch: Stopwatch
) -> Result:
    """Transfer and check a decoded shard; return its measurements and its rows as a file.

    Raises:
        PipelineError: a logit was NaN or infinite; names the model, the prompt and the step.
    """
    seconds = watch.seconds()  # waits for the device
    out = {name: tensor.cpu() for name, tensor in out.items()}
    lengths = out.pop("lengths")
    inside = torch.arange(out["token_id"].shape[1]) < lengths[:, None]
    broken = (inside & ~out["entropy"].isfinite()).nonzero()
    if len(broken):
        row, step = broken[0].tolist()
        raise PipelineError(
            f"{label}: NaN or infinite logits for prompt {prompts[row]} at step {step} "
            f"({len(broken)} steps of this batch): try dtype: float32 or attention: eager for "
            "this model, and check its weights"
        )
    schema = task.stage.schema()
    tables = (
        columns.steps_table(prompt, {name: t[row, :n].numpy() for name, t in out.items()}, schema)
        for row, (prompt, n) in enumerate(zip(prompts, lengths.tolist(), strict=True))
    )
    return {"seconds": seconds, "rows": int(lengths.sum())}, tables_bytes(tables, schema)
