"""Decodes every prompt, or reads an engine's log, and stores every step's distribution.

Shards are fixed in plan.json first; a finished one is never computed again. At the end they are
joined in the order of the prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from pipeline.errors import PipelineError
from pipeline.execution.shard_plan import Plan, Shard, ShardMeasured, at_most
from pipeline.execution.shards import join, write_groups
from pipeline.execution.stopwatch import Stopwatch, describe_device, peak_memory, throughput
from pipeline.execution.workers import open_workers
from pipeline.models.load import load_model, skeleton
from pipeline.models.logit_statistics import Found
from pipeline.plan.specs import DistributionsSpec, LoggedDistributions
from pipeline.stages.distributions.decode import decode_batch
from pipeline.store import columns
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.distributions import read_token_ids
from pipeline.store.node import Node
from pipeline.store.plain import Plain

BATCH = {"cpu": 32, "cuda": 128}  # prompts; larger batches were not faster on a CPU


def compute(node: Node, upstream: dict[str, list[Artifact]], pending: Pending) -> None:
    """Decode the prompts of `upstream`, or read an engine's log, and write distributions."""
    if isinstance(node.spec, LoggedDistributions):
        from pipeline.stages.distributions.logged import write_log

        write_log(node, pending)
        return
    spec: DistributionsSpec = node.spec
    source = upstream["prompts"][0]
    prompts, steps = read_token_ids(source), spec.steps
    lengths = {name: len(ids) for name, ids in prompts.items()}
    model = skeleton(spec.model)
    model.check_context(max(lengths.values()) + steps, "distributions.steps")
    for name, ids in prompts.items():
        model.check_tokens(ids, f"prompt {name}")
    with open_workers(DistributionsWorker, node, upstream) as workers:
        plan = Plan.open(pending, lengths, workers.cut)
        workers.compute_unfinished(plan, steps=steps, label=spec.label)
        pending.facts |= workers.facts(plan)
    pending.facts |= {
        "shards": len(plan.shards),
        "batch": max(len(shard.prompts) for shard in plan.shards),
    }
    join(plan, list(prompts), pending, columns.schema("distributions", k=pending.facts["k"]))


class DistributionsWorker:
    """The model of a node; see `pipeline.execution.workers.Worker`."""

    def __init__(
        self, node: Node[DistributionsSpec], upstream: Mapping[str, Sequence[Artifact]]
    ) -> None:
        """Load it, and the prompts."""
        source = upstream["prompts"][0]
        self.model = load_model(node.spec.model)
        self.device = self.model.device
        self._node, self._prompts = node, read_token_ids(source)

    def cut(self, lengths: Sequence[int]) -> list[int]:
        """Return the sizes of the shards."""
        return at_most(self._node.spec.model.device.batch or BATCH[self.device.type])(lengths)

    def compute(self, shard: Shard, path: Path, progress: Callable[[int], object]) -> ShardMeasured:
        """Decode a shard, and write it."""
        watch = Stopwatch(self.device)
        batch = {name: self._prompts[name] for name in shard.prompts}
        out = decode_batch(self.model, batch, self._node.spec, watch, progress)
        return write_shard(self.model.label, shard.prompts, out, watch, path)

    def facts(self, measured: Sequence[ShardMeasured]) -> Plain:
        """Return the record's facts on the model, the run and its throughput."""
        model, spec, settings = self.model, self._node.spec, self._node.spec.model.settings
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


def write_shard(
    label: str, prompts: Sequence[str], out: Found, watch: Stopwatch, path: Path
) -> ShardMeasured:
    """Transfer, check and write a decoded shard; return its measurements.

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
    schema = columns.schema("distributions", k=out["top_ids"].shape[2])
    tables = (
        columns.steps_table(prompt, {name: t[row, :n].numpy() for name, t in out.items()}, schema)
        for row, (prompt, n) in enumerate(zip(prompts, lengths.tolist(), strict=True))
    )
    write_groups(path, tables, schema)
    return {"seconds": seconds, "rows": int(lengths.sum())}
