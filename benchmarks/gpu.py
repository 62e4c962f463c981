"""Decoding speed of the paper's targets against the memory-bandwidth bound and `generate`.

Run it with ``make bench-gpu`` on a CUDA machine; ``make bench-gpu ARGS=--reduced`` runs the same
code on small shapes, on the CPU where there is no GPU. The models have the paper's shapes and
random weights: nothing is downloaded. The stage's code, with static shapes and with growing ones,
and transformers' `generate` take the same statistics of every step, in one run, each at the best
of several batches. The bound is the time in which a copy at the measured bandwidth (bytes read
and bytes written) moves the weights, once a step, and the cached keys and values.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.execution.shards import Plan, out_of_memory
from pipeline.execution.stopwatch import (
    DECODING,
    copy_bandwidth,
    describe_device,
    peak_memory,
    throughput,
)
from pipeline.models.load import LanguageModel, random_qwen3
from pipeline.models.logit_statistics import tempered_statistics
from pipeline.stages.distributions.compute import decode_shards
from pipeline.stages.distributions.decode import DecodedBatch, Decoding
from pipeline.stages.distributions.running import PaddedBatch, pad_left, running_batch
from pipeline.stages.distributions.sampling import Sampling
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
    bandwidth: float,
    decoding: Decoding,
    prompts: dict[str, list[int]],
    batch: int,
) -> dict[str, Any]:
    """Time the stage's own code, from the plan to the joined data.parquet."""
    with tempfile.TemporaryDirectory() as folder:
        pending = Pending(Path(folder), "distributions")
        lengths = {name: len(ids) for name, ids in prompts.items()}
        plan = Plan.open(pending, lengths, lambda _: batch)
        begun = time.perf_counter()
        decode_shards(model, prompts, decoding, running, plan, pending)
        whole = time.perf_counter() - begun
        if max(len(shard.prompts) for shard in plan.shards) < min(batch, len(prompts)):
            raise torch.OutOfMemoryError("the batch was halved")
        found = throughput((shard.measured for shard in plan.shards), model, bandwidth)
        found["graph"] = all(shard.measured["graph"] for shard in plan.shards)
    spent = sum(found["seconds"][name] for name in DECODING)
    return found | {"decoding_seconds": spent, "whole_dump_seconds": whole}


def with_generate(
    model: LanguageModel, decoding: Decoding, prompts: dict[str, list[int]], batch: int
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
                                  do_sample=False, logits_processor=[take])  # fmt: skip
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        spent += time.perf_counter() - begun
    return {"decoding_seconds": spent}


def at_every_batch(
    engine: Callable[[int], dict[str, Any]], batches: list[int], tokens: int, device: torch.device
) -> list[dict[str, Any]]:
    """Return what `engine` reaches at every batch that fits into the memory, the fastest first."""
    reached = []
    for batch in batches:
        found = None
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        try:
            found = engine(batch)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
        torch.cuda.empty_cache()
        if found is not None:
            speed = tokens / found["decoding_seconds"]
            reached.append(found | {"batch": batch, "tokens_per_second": speed,
                                    "peak_memory_bytes": peak_memory(device)})  # fmt: skip
    return sorted(reached, key=lambda found: -found["tokens_per_second"])


def compare(
    model: LanguageModel,
    prompts: dict[str, list[int]],
    decoding: Decoding,
    batches: list[int],
    bandwidth: float,
) -> Iterator[dict[str, Any]]:
    """Run all engines and print a row of the table for each."""
    engines: dict[str, Engine] = {
        f"pipeline, {cache}": partial(ours, model, running_batch(cache, model), bandwidth, decoding)
        for cache in ("static", "dynamic")
    }
    engines["generate"] = partial(with_generate, model, decoding)
    warm = dict(list(prompts.items())[:8])
    for name, engine in engines.items():
        engine(warm, 8)
        reached = at_every_batch(partial(engine, prompts), batches, len(prompts) * decoding.steps,
                                 model.device)  # fmt: skip
        if not reached:
            raise SystemExit(f"error: {model.label} does not fit at any of the batches {batches}")
        best = reached[0]
        whole, share = ((f"{best['whole_dump_seconds']:.1f}",
                         f"{best['fraction_of_bandwidth_bound']:.1%}")
                        if "whole_dump_seconds" in best else ("", ""))  # fmt: skip
        row = (model.label, name, "yes" if best.get("graph") else "no", best["batch"],
               round(best["tokens_per_second"]), whole, share,
               f"{best['peak_memory_bytes'] / 2**30:.1f}")  # fmt: skip
        print("|", " | ".join(map(str, row)), "|", flush=True)
        yield {"target": model.label, "engine": name, "batches": reached}


def main() -> None:
    """Run the comparison and print a Markdown table, then all numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reduced", action="store_true", help="small shapes, for a trial")
    parser.add_argument("--batches", type=int, nargs="+", help="prompts decoded together")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type != "cuda" and not arguments.reduced:
        raise SystemExit("error: no CUDA device; add --reduced to run small shapes on the CPU")
    if arguments.reduced:
        shapes, count, longest, steps, batches = {"reduced": REDUCED}, 24, 128, 16, [8, 24]
    else:
        shapes, count, longest, steps, batches = SHAPES, 500, 1024, 128, [64, 128, 256, 500]
    decoding = Decoding(steps, 256, [], Sampling(0.0, 1.0, 0, 0))
    bandwidth = copy_bandwidth(device, 64 if arguments.reduced else 4096)
    print(json.dumps(describe_device(device) | {
        "torch": torch.__version__, "python": platform.python_version(), "prompts": count,
        "steps": steps, "copy_bandwidth_GB_per_second": round(bandwidth / 1e9, 1),
    }))  # fmt: skip
    print("\n| target | engine | CUDA graph | batch | tokens/s | whole dump (s) | share of bound | "
          "GiB |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    results: list[dict[str, Any]] = []
    for label, shape in shapes.items():
        model = random_qwen3(shape, "bfloat16", "float32", device, label)
        prompts = synthetic_prompts(count, longest, model.vocab_size)
        results += compare(model, prompts, decoding, arguments.batches or batches, bandwidth)
        del model
        torch.cuda.empty_cache()
    print("\n" + json.dumps(results))


if __name__ == "__main__":
    main()
