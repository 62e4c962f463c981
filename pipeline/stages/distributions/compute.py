"""Decodes every prompt, or reads what an engine answered, and keeps every step's distribution.

Shards are fixed in plan.json first; a finished one is never computed again. At the end they are
joined in the order of the prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from pipeline.errors import PipelineError
from pipeline.execution.shard_plan import Plan, Shard, ShardMeasured, at_most
from pipeline.execution.shards import join, write_groups
from pipeline.execution.stopwatch import Stopwatch, describe_device, peak_memory, throughput
from pipeline.execution.workers import open_workers
from pipeline.gguf_models.source import origin
from pipeline.models.load import LanguageModel, load_model, skeleton
from pipeline.stages.distributions.decode import DecodedBatch, Decoding, Sampling, decode_batch
from pipeline.stages.distributions.score import score_batch, served_answers, tell_drift
from pipeline.store import columns
from pipeline.store.artifacts import Artifact, Pending
from pipeline.store.distributions import read_token_ids
from pipeline.store.node import Node

BATCH = {"cpu": 32, "cuda": 128}  # prompts; larger batches were not faster on a CPU


def compute(node: Node, upstream: dict[str, list[Artifact]], pending: Pending) -> None:
    """Decode the prompts of `upstream`, or read an engine's log, and write distributions."""
    if "log" in node.config:
        from pipeline.stages.distributions.logged import write_log

        write_log(node, pending)
        return
    source, served = upstream["prompts"][0], "served" in node.config
    prompts, steps = read_token_ids(source), node.config["steps"]
    answers = served_answers(node, source) if served else {}
    lengths = {name: len(ids) + len(answers.get(name, ())) for name, ids in prompts.items()}
    model = skeleton(node.config["model"], node.settings, f"targets.{node.label}")
    model.check_context(max(lengths.values()) + (0 if served else steps), "distributions.steps")
    for name, ids in prompts.items():
        model.check_tokens([*ids, *answers.get(name, ())], f"prompt {name}")
    with open_workers(open_scorer if served else open_decoder, node, upstream) as workers:
        plan = Plan.open(pending, lengths, workers.cut)
        workers.compute_unfinished(plan, steps=steps, label=node.settings["label"])
        pending.facts |= workers.facts(plan)
    pending.facts |= {
        "shards": len(plan.shards),
        "batch": max(len(shard.prompts) for shard in plan.shards),
    }
    for name in ("template", "enable_thinking"):
        pending.facts[name] = source.record["config"][name]
    join(plan, list(prompts), pending, columns.schema("distributions", k=pending.facts["k"]))
    if served:
        pending.facts["drift"] = tell_drift(node, source, pending)


def decoding_of(config: Mapping[str, Any]) -> Decoding:
    """Return what a node's configuration asks for."""
    sampling = Sampling(*(config[name] for name in ("temperature", "top_p", "top_k", "seed")))
    return Decoding(config["steps"], config["k"], config["temperatures"], sampling)


class Decoder:
    """A model that decodes one shard after the other."""

    def __init__(
        self, model: LanguageModel, prompts: Mapping[str, list[int]], decoding: Decoding
    ) -> None:
        """Decode shards of `prompts`."""
        self.device = model.device
        self.model = model
        self._prompts, self._decoding = prompts, decoding

    def compute(
        self, shard: Shard, path: Path, progress: Callable[[int], object]
    ) -> Callable[[], ShardMeasured]:
        """Decode a shard; its transfer and writing are left for later."""
        watch = Stopwatch(self.device)
        batch = {name: self._prompts[name] for name in shard.prompts}
        out = self._run(batch, watch, progress)
        return partial(write_shard, self.model.label, batch, out, watch, path)

    def _run(
        self, batch: dict[str, list[int]], watch: Stopwatch, progress: Callable[[int], object]
    ) -> DecodedBatch:
        return decode_batch(self.model, batch, self._decoding, watch, progress)


class NodeDecoder(Decoder):
    """The model of a node; see `pipeline.execution.workers.Worker`."""

    def __init__(self, node: Node, prompts: Mapping[str, list[int]]) -> None:
        """Load it."""
        model = load_model(node.config["model"], node.settings, f"targets.{node.label}")
        super().__init__(model, prompts, decoding_of(node.config))
        self._node = node

    def cut(self, lengths: Sequence[int]) -> list[int]:
        """Return the sizes of the shards."""
        return at_most(self._node.settings["batch"] or BATCH[self.device.type])(lengths)

    def facts(self, measured: Sequence[ShardMeasured]) -> dict[str, Any]:
        """Return what the record says of the model, the run and its throughput."""
        return distribution_facts(self._node, self.model, measured)


def open_decoder(node: Node, upstream: Mapping[str, Sequence[Artifact]]) -> NodeDecoder:
    """Load the model of a node, and the prompts that it decodes."""
    return NodeDecoder(node, read_token_ids(upstream["prompts"][0]))


class Scorer(NodeDecoder):
    """The model of a node, which reads prompts with the answers that an engine served."""

    def __init__(self, node: Node, source: Artifact) -> None:
        """Load it."""
        super().__init__(node, read_token_ids(source))
        self._answers = served_answers(node, source)

    def _run(
        self, batch: dict[str, list[int]], watch: Stopwatch, progress: Callable[[int], object]
    ) -> DecodedBatch:
        answers = [self._answers[name] for name in batch]
        return score_batch(
            self.model, list(batch.values()), answers, self._decoding, watch, progress
        )


def open_scorer(node: Node, upstream: Mapping[str, Sequence[Artifact]]) -> Scorer:
    """Load the model of a node, and the prompts and answers that it reads."""
    return Scorer(node, upstream["prompts"][0])


def write_shard(
    label: str, prompts: dict[str, list[int]], out: DecodedBatch, watch: Stopwatch, path: Path
) -> dict[str, Any]:
    """Transfer, check and write a decoded shard; return what was measured."""
    names = list(prompts)
    seconds = watch.seconds()  # waits for the device
    host = Stopwatch(torch.device("cpu"))
    with host("transfer"):
        out = out.to_host()
    check_finite_steps(label, names, out)
    with host("write"):
        schema = columns.schema("distributions", k=out.statistics.top_ids.shape[2])
        write_groups(path, decoded_tables(names, out, schema), schema)
    return {"seconds": seconds | host.seconds(), "rows": int(out.lengths.sum())}


def check_finite_steps(label: str, prompts: list[str], out: DecodedBatch) -> None:
    """Check the stored steps.

    Raises:
        PipelineError: a logit was NaN or infinite; names the model, the prompt and the step.
    """
    inside = torch.arange(out.token_id.shape[1]) < out.lengths[:, None]
    broken = (inside & ~out.statistics.entropy.isfinite()).nonzero()
    if len(broken):
        row, step = broken[0].tolist()
        raise PipelineError(
            f"{label}: NaN or infinite logits for prompt {prompts[row]} at step {step} "
            f"({len(broken)} steps of this batch): try dtype: float32 or attention: eager for "
            "this model, and check its weights"
        )


def decoded_tables(prompts: list[str], out: DecodedBatch, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of each prompt."""
    values = {"token_id": out.token_id} | out.statistics._asdict()
    values |= {f"tempered_{name}": column for name, column in out.tempered._asdict().items()}
    for row, prompt in enumerate(prompts):
        n = int(out.lengths[row])
        arrays = {
            name: columns.array(tensor[row, :n].numpy(), schema.field(name).type)
            for name, tensor in values.items()
        }
        arrays["prompt_id"] = pa.repeat(prompt, n)
        arrays["position"] = pa.array(range(n), pa.int32())
        yield pa.table([arrays[name] for name in schema.names], schema=schema)


def distribution_facts(
    node: Node, model: LanguageModel, measured: Sequence[ShardMeasured]
) -> dict[str, Any]:
    """Return what the record says of the model, the run and its throughput."""
    config = node.config
    return {
        "model": model.label,
        "revision": node.settings["revision"],
        "commit": config["model"].get("commit"),
        "origin": origin(node.settings["path"]),
        "vocab_size": model.vocab_size,
        "k": min(config["k"], model.vocab_size),
        "dtype": config["model"]["dtype"],
        "logits_dtype": config["model"]["head_dtype"],
        "attention": config["model"]["attention"],
        "sampling": {name: config[name] for name in ("temperature", "top_p", "top_k", "seed")},
        "temperatures": config["temperatures"],
        "eos": list(model.eos),
        **describe_device(model.device),
        "peak_memory_bytes": peak_memory(model.device),
        **throughput(measured),
    }
