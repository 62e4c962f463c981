"""Speed of two workers and of one: ``python -m benchmarks.many``.

It decodes the embedded prompts with the large embedded model in the workers of stage distributions,
each with one thread, and prints steps per second, without and with the start of the workers. It
also prints whether the files equal those of a single process.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.schema import Execution
from pipeline.execution.runner import ensure
from pipeline.execution.shard_plan import Plan
from pipeline.execution.workers import Here, RayWorkers
from pipeline.loader import Study
from pipeline.stages.distributions.compute import DistributionsWorker
from pipeline.store.artifacts import Artifact, Pending, Store
from pipeline.store.distributions import read_token_ids

Upstream = dict[str, list[Artifact]]


def planned(folder: Path, upstream: Upstream, cut: Any) -> Plan:
    """Return the shard plan of all prompts."""
    folder.mkdir()
    prompts = read_token_ids(upstream["prompts"][0])
    lengths = {prompt: len(ids) for prompt, ids in prompts.items()}
    return Plan.open(Pending(folder, "distributions"), lengths, cut)


def main() -> None:
    """Measure one worker and two."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study = Study(
            "study=mini", f"outputs={folder}", "prompts.count=96",
            "device={threads: 1, batch: 4, name: cpu}",
        )  # fmt: skip
        node = study.nodes["distributions"][0]
        upstream = {"prompts": ensure(node.upstream_nodes, Store(folder / "artifacts"))}
        steps = node.spec.steps
        here = Here(DistributionsWorker(node, upstream))
        alone = planned(folder / "here", upstream, here.cut)
        here.compute_unfinished(alone, steps=steps, label="here")
        checksums = [shard.checksum for shard in alone.shards]
        rows = sum(shard.measured["rows"] for shard in alone.shards)
        print(f"{rows} steps in {len(alone.shards)} shards, one thread a worker\n")
        print("| workers | steps/s | of one worker | s | s with their start | same files |")
        print("|---|---|---|---|---|---|", flush=True)
        first = 0.0
        for count in (1, 2):
            ray = replace(node.spec.model, execution=Execution("ray", count))
            begun = time.monotonic()
            with RayWorkers(DistributionsWorker, node, upstream, ray) as workers:
                plan = planned(folder / f"workers-{count}", upstream, workers.cut)
                ready = time.monotonic()
                workers.compute_unfinished(plan, steps=steps, label=f"{count} workers")
                ended = time.monotonic()
            same = [shard.checksum for shard in plan.shards] == checksums
            rate = rows / (ended - ready)
            first = first or rate
            print(
                f"| {count} | {rate:.0f} | {rate / first:.2f} | {ended - ready:.1f} "
                f"| {ended - begun:.1f} | {'yes' if same else 'no'} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
