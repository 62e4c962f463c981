"""Decoding speed of the paper's targets against the device's bound and `generate`.

Run it with ``make bench-gpu`` on a CUDA machine; ``make bench-gpu ARGS=--reduced`` runs the same
code on small shapes, on the CPU where there is no GPU. The models have the paper's shapes and
random weights: nothing is downloaded. The stage's code, with static shapes over true lengths and
over all columns, with growing shapes, and with compiled parts, and transformers' `generate`, with
its static cache and its growing one, take the same statistics of every step, each at several
batches; seconds are wall-clock, of ours with writing the file. The
bound is the time in which the device, at the bandwidth of a copy and the rate of a large product,
both measured first, moves the weights once a step and the keys and values of real tokens, or does
the operations, whichever takes longer. Rows are printed, and written to --out, as they come.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.errors import PipelineError
from pipeline.execution.shards import Plan, at_most, compute_unfinished, join, out_of_memory
from pipeline.execution.stopwatch import (
    Peaks,
    copy_bandwidth,
    describe_device,
    peak_memory,
    product_rate,
    throughput,
)
from pipeline.models.compiled import compile_parts
from pipeline.models.load import LanguageModel, random_qwen3
from pipeline.models.logit_statistics import tempered_statistics
from pipeline.stages.distributions.compute import Decoder
from pipeline.stages.distributions.decode import DecodedBatch, Decoding
from pipeline.stages.distributions.running import PaddedBatch, pad_left, running_batch
from pipeline.stages.distributions.sampling import Sampling
from pipeline.store import columns
from pipeline.store.artifacts import Pending

COMMON: dict[str, Any] = {
    "vocab_size": 151_936, "head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40_960, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {  # config.json of Qwen/Qwen3-1.7B and Qwen/Qwen3-4B
    "Qwen3-1.7B": COMMON | {"hidden_size": 2048, "intermediate_size": 6144,
                            "num_hidden_layers": 28, "num_attention_heads": 16},
    "Qwen3-4B": COMMON | {"hidden_size": 2560, "intermediate_size": 9728,
                          "num_hidden_layers": 36, "num_attention_heads": 32},
}  # fmt: skip
REDUCED: dict[str, Any] = {
    "vocab_size": 2048, "head_dim": 32, "num_key_value_heads": 2, "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip

ENGINES = (
    "pipeline-varlen", "pipeline-static", "pipeline-dynamic", "generate-static", "generate-dynamic",
    "pipeline-compiled",  # the last: a model stays compiled
)  # fmt: skip

Engine = Callable[[dict[str, list[int]], int], dict[str, Any]]  # prompts, batch


def synthetic_prompts(count: int, longest: int, vocabulary: int) -> dict[str, list[int]]:
    """Return random prompts of at least 64 tokens whose lengths have a long tail."""
    generator = np.random.default_rng(0)
    lengths = np.clip(64 + generator.lognormal(4.5, 1.0, count), 64, longest).astype(int)
    return {f"{i:03}": generator.integers(0, vocabulary, n).tolist()
            for i, n in enumerate(lengths)}  # fmt: skip


def ours(
    model: LanguageModel,
    running: type[PaddedBatch],
    peaks: Peaks,
    decoding: Decoding,
    prompts: dict[str, list[int]],
    batch: int,
) -> dict[str, Any]:
    """Time the stage's own code, from the plan to the joined data.parquet."""
    with tempfile.TemporaryDirectory() as folder:
        pending = Pending(Path(folder), "distributions")
        lengths = {name: len(ids) for name, ids in prompts.items()}
        plan = Plan.open(pending, lengths, at_most(batch))
        begun = time.perf_counter()
        decode = Decoder(model, prompts, decoding, running).compute
        compute_unfinished(
            plan, decode, steps=decoding.steps, label=model.label, device=model.device
        )
        k = min(decoding.k, model.vocab_size)
        join(plan, list(prompts), pending, columns.schema("distributions", k=k))
        whole = time.perf_counter() - begun
        if max(len(shard.prompts) for shard in plan.shards) < min(batch, len(prompts)):
            raise torch.OutOfMemoryError("the batch was halved")
        found = throughput((shard.measured for shard in plan.shards), model, peaks)
        found["graph"] = all(shard.measured["graph"] for shard in plan.shards)
    return found | {"wall_seconds": whole}


def with_generate(
    model: LanguageModel,
    cache: str | None,
    decoding: Decoding,
    prompts: dict[str, list[int]],
    batch: int,
) -> dict[str, Any]:
    """Time transformers' `generate`; a logits processor takes the statistics and keeps them."""
    ordered = sorted(prompts.values(), key=len, reverse=True)
    settings = model.module.generation_config
    settings.eos_token_id, settings.pad_token_id = None, 0
    spent = 0.0
    for start in range(0, len(ordered), batch):
        begun = time.perf_counter()
        ids, mask, _ = pad_left(ordered[start : start + batch], 0, model.device)
        k = min(decoding.k, model.vocab_size)
        out = DecodedBatch.empty(len(ids), decoding.steps, k, 0, model.device)
        rows = torch.arange(len(ids), device=model.device)
        width = ids.shape[1]

        def take(
            so_far: torch.Tensor,
            scores: torch.Tensor,
            out: DecodedBatch = out,
            rows: torch.Tensor = rows,
            width: int = width,
            k: int = k,
        ) -> torch.Tensor:
            found, others = tempered_statistics(scores, k, [1.0])
            out.store(rows, so_far.shape[1] - width, found.top_ids[:, 0], found, others)
            return scores

        with torch.inference_mode():
            model.module.generate(ids, attention_mask=mask, max_new_tokens=decoding.steps,
                                  do_sample=False, logits_processor=[take],
                                  cache_implementation=cache)  # fmt: skip
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        spent += time.perf_counter() - begun
    return {"wall_seconds": spent}


def at_batch(
    engine: Callable[[int], dict[str, Any]], batch: int, tokens: int, device: torch.device
) -> dict[str, Any] | None:
    """Return what `engine` reaches at a batch; None where it does not fit into the memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        found = engine(batch)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return None
    finally:
        torch.cuda.empty_cache()
    speed = round(tokens / found["wall_seconds"], 1)
    return found | {"batch": batch, "tokens_per_second": speed,
                    "peak_memory_bytes": peak_memory(device)}  # fmt: skip


def engine_of(name: str, model: LanguageModel, decoding: Decoding, peaks: Peaks) -> Engine:
    """Return what is run under a name of ENGINES; of the compiled one device.cache is auto.

    Raises:
        PipelineError: the model can't be run so.
    """
    system, _, kind = name.partition("-")
    if system == "generate":
        return partial(with_generate, model, None if kind == "dynamic" else kind, decoding)
    if kind == "compiled":
        compile_parts(model)
        kind = "auto"
    return partial(ours, model, running_batch(kind, model), peaks, decoding)


def table_row(found: dict[str, Any]) -> str:
    """Return a row of the printed table."""
    share = f"{found['fraction_of_bound']:.1%}" if "fraction_of_bound" in found else ""
    cells = (found["target"], found["engine"], "yes" if found.get("graph") else "no",
             found["batch"], round(found["tokens_per_second"]), f"{found['wall_seconds']:.1f}",
             share, f"{found['peak_memory_bytes'] / 2**30:.1f}")  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def parsed() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reduced", action="store_true", help="small shapes, for a trial")
    parser.add_argument("--batches", type=int, nargs="+", help="prompts decoded together")
    parser.add_argument("--targets", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--out", type=Path, help="a file to which every row is added as JSON")
    return parser.parse_args()


def main() -> None:
    """Run the comparison; print a Markdown table, a row as soon as it is known."""
    arguments = parsed()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type != "cuda" and not arguments.reduced:
        raise SystemExit("error: no CUDA device; add --reduced to run small shapes on the CPU")
    if arguments.reduced:
        shapes, count, longest, steps, batches = {"reduced": REDUCED}, 24, 128, 16, [8, 24]
        peaks = Peaks(copy_bandwidth(device, 64), product_rate(device, torch.bfloat16, 512))
    else:
        shapes = {name: SHAPES[name] for name in arguments.targets}
        count, longest, steps, batches = 500, 1024, 128, [64, 128, 256, 500]
        peaks = Peaks(copy_bandwidth(device, 4096), product_rate(device, torch.bfloat16))
    decoding = Decoding(steps, 256, [], Sampling(0.0, 1.0, 0, 0))
    machine = describe_device(device) | {
        "torch": torch.__version__, "python": platform.python_version(), "prompts": count,
        "steps": steps, "copy_bandwidth_GB_per_second": round(peaks.bandwidth / 1e9, 1),
        "operations_T_per_second": round(peaks.operations / 1e12, 3),
    }  # fmt: skip
    print(json.dumps(machine))
    print("\n| target | engine | CUDA graph | batch | tokens/s | wall (s) | share of bound | "
          "GiB |\n|---|---|---|---|---|---|---|---|", flush=True)  # fmt: skip
    for label, shape in shapes.items():
        model = random_qwen3(shape, "bfloat16", "float32", device, label)
        prompts = synthetic_prompts(count, longest, model.vocab_size)
        warm = dict(list(prompts.items())[:8])
        for name in sorted(arguments.engines, key=ENGINES.index):
            try:
                engine = engine_of(name, model, decoding, peaks)
            except PipelineError as why:
                print(f"{label}, {name}: left out: {why}", flush=True)
                continue
            engine(warm, 8)
            for batch in arguments.batches or batches:
                found = at_batch(partial(engine, prompts), batch, count * steps, device)
                if found is None:
                    print(f"{label}, {name}: batch {batch} does not fit", flush=True)
                    continue
                found = {"target": label, "engine": name} | found
                print(table_row(found), flush=True)
                if arguments.out:
                    with arguments.out.open("a") as file:
                        file.write(json.dumps(machine | found) + "\n")
        del model
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
