"""Does the memory of a dump grow with its prompts? ``python -m benchmarks.memory``.

Dumps 200 and then 2,000 synthetic prompts with a small random model on the CPU, each in a process
of its own, and prints the largest resident memory before the dump and at its end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.gpu import REDUCED, synthetic_prompts
from pipeline.execution.shards import Plan, at_most, compute_unfinished, join
from pipeline.execution.stopwatch import peak_memory
from pipeline.models.load import random_qwen3
from pipeline.stages.distributions.compute import Decoder
from pipeline.stages.distributions.decode import Decoding
from pipeline.stages.distributions.running import GrowingBatch
from pipeline.stages.distributions.sampling import Sampling
from pipeline.store import columns
from pipeline.store.artifacts import Pending

BATCH, STEPS, K = 20, 32, 256


def measure(count: int) -> dict[str, float]:
    """Dump `count` prompts in this process; return MiB."""
    device = torch.device("cpu")
    model = random_qwen3(REDUCED, "float32", "float32", device, "small")
    prompts = synthetic_prompts(count, 128, model.vocab_size)
    decoding = Decoding(STEPS, K, [], Sampling(0.0, 1.0, 0, 0))
    before = peak_memory(device)
    with tempfile.TemporaryDirectory() as folder:
        pending = Pending(Path(folder), "distributions")
        lengths = {name: len(ids) for name, ids in prompts.items()}
        plan = Plan.open(pending, lengths, at_most(BATCH))
        decode = Decoder(model, prompts, decoding, GrowingBatch).compute
        compute_unfinished(plan, decode, steps=STEPS, label=model.label, device=device)
        join(plan, list(prompts), pending, columns.schema("distributions", k=K))
        written = (pending.directory / "data.parquet").stat().st_size
    found = {"before": before, "peak": peak_memory(device), "written": written}
    return {name: round(size / 2**20, 1) for name, size in found.items()}


def main(arguments: list[str]) -> None:
    """Measure in two processes, or, given a number of prompts, in this one."""
    if arguments:
        print(json.dumps(measure(int(arguments[0]))))
        return
    print("| prompts | before the dump (MiB) | peak (MiB) | written (MiB) |\n|---|---|---|---|")
    for count in (200, 2000):
        done = subprocess.run([sys.executable, "-m", "benchmarks.memory", str(count)], check=True,
                              stdout=subprocess.PIPE, text=True)  # fmt: skip
        print(f"| {count} | {' | '.join(map(str, json.loads(done.stdout).values()))} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
