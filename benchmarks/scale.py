"""Memory of the stages by the number of steps: ``python -m benchmarks.scale 200000 1000000``.

For each number of steps a target it writes what the models of the embedded study would have
written, two targets with a drafter: answers of 128 tokens, of steps drawn from 65,536 made-up ones,
whose top probabilities are distributed like those of the paper's Table 1. Then the stages that
follow run on them, each in a process of its own. A CSV row a stage goes to stdout: steps of a
target, stage, seconds, and the most memory of its process, in MiB. Disk: about 3.5 KB a step and
target at K = 256.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.topk import TopK
from benchmarks.certificates import VOCABULARY, synthetic
from pipeline.core.stage import Out, Task
from pipeline.study import Study

ANSWER = 128  # tokens
GROUP = 64 * ANSWER  # steps that are made, and written, together
MADE_UP = 2**16  # different steps
DRAFT_K = 64
ACCEPTED = 0.7  # share of the drafts that are the target's first choice
STAGES = ("certificates", "run_lengths", "acceptance", "report")  # the report is of both targets
MIB = 2**20


def lists(values: np.ndarray) -> pa.Array:
    """Return (N, K) numbers as N lists."""
    offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    return pa.ListArray.from_arrays(offsets, pa.array(values.ravel()))


def target_columns(dist: TopK) -> dict[str, Any]:
    """Return the columns of a target's distributions."""
    assert dist.logits is not None
    return {
        "top_ids": lists(dist.ids),
        "top_logits": lists(dist.logits),
        "logsumexp": dist.logits[:, 0] + dist.top_surprisal,
        "top_surprisal": dist.top_surprisal,
        "log_tail": dist.log_tail,
        "entropy": dist.entropy,
    }


def draft_columns(dist: TopK, seed: int) -> dict[str, Any]:
    """Return the columns of a drafter that is near the target, or far from it and wrong."""
    generator = np.random.default_rng(seed)
    rank = np.where(generator.random(len(dist)) < ACCEPTED, 1, 2).astype(np.int32)
    kl = np.where(rank == 1, generator.exponential(0.02, len(dist)), 10.0)
    log_prob = dist.log_probs[np.arange(len(dist)), rank - 1]
    assert dist.logits is not None
    pair: dict[str, Any] = {
        "kl": kl, "draft_rank": rank, "draft_log_prob": log_prob, "argmax_rank": rank,
    }  # fmt: skip
    return pair | {f"depth_{name}": lists(of[:, None]) for name, of in pair.items()} | {
        "draft_token_id": dist.ids[np.arange(len(dist)), rank - 1],
        "draft_top_ids": lists(dist.ids[:, :DRAFT_K].copy()),
        "draft_top_logits": lists(dist.logits[:, :DRAFT_K].copy()),
        "draft_top_surprisal": dist.top_surprisal,
        "draft_log_tail": dist.log_tail,
    }  # fmt: skip


@cache
def made_up(k: int) -> TopK:
    """Return the steps that all others are drawn from."""
    return synthetic(MADE_UP, k)


def groups(steps: int, k: int, *, drafted: bool) -> Iterator[dict[str, Any]]:
    """Yield the columns of made-up steps, some answers at a time."""
    for begin in range(0, steps, GROUP):
        at = np.arange(begin, min(begin + GROUP, steps))
        dist = made_up(k)[np.random.default_rng(begin).integers(MADE_UP, size=len(at))]
        names = np.char.add("prompt-", np.char.zfill((at // ANSWER).astype(str), 6))
        columns = {
            "prompt_id": pa.array(names.tolist()),
            "position": (at % ANSWER).astype(np.int32),
            "token_id": (dist.top_surprisal * 1000 % 1000).astype(np.int32),
            **target_columns(dist),
        }
        yield columns | draft_columns(dist, begin) if drafted else columns


def write_steps(task: Task, out: Out, steps: int, k: int) -> None:
    """Write what the task of a model would have written."""
    drafted = task.stage.name == "drafts"
    schema = task.stage.schema()
    if drafted:
        from pipeline.stages.drafts import schema_with

        schema = schema_with(())
    with out.writer("data", schema) as writer:
        for columns in groups(steps, k, drafted=drafted):
            arrays = [pa.array(columns[field.name], field.type) for field in schema]
            writer.write_table(pa.table(arrays, schema=schema))
    out.metadata |= {"vocab_size": VOCABULARY, "k": k, "certified_temperature": 1.0}
    out.metadata |= {"model": "made-up", "device": "cpu", "sampled_temperature": None}


def write_prompts(out: Out, steps: int) -> None:
    """Write as many prompts as there are answers."""
    rows = [
        {
            "prompt_id": f"prompt-{at:06}", "source": "made-up", "source_row": at,
            "text": f"question {at}", "token_ids": [1], "n_tokens": 1,
        }
        for at in range(-(-steps // ANSWER))
    ]  # fmt: skip
    out.metadata |= {"excluded": {}}
    out.write_rows(rows)


def publish(overrides: list[str], steps: int, k: int) -> None:
    """Publish made-up artifacts in the place of those of the models."""
    study = Study(*overrides)
    print(f"{steps} steps of {len(study.targets)} targets", file=sys.stderr, flush=True)

    def write(task: Task, _: object, out: Out) -> None:
        if task.stage.name == "prompts":
            write_prompts(out, steps)
        else:
            write_steps(task, out, steps, k)

    with redirect_stdout(sys.stderr):
        for name in ("prompts", "distributions", "drafts"):
            for task in study.tasks[name]:
                study.store.get(replace(task, stage=replace(task.stage, compute=write)))


def measured(overrides: list[str]) -> tuple[float, float]:
    """Return the seconds and the most MiB of a run of the pipeline."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "pipeline", *overrides]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"error: {' '.join(command)} ended with {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - begun, usage.ru_maxrss * unit / MIB


def main() -> None:
    """Measure the stages at each number of steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", type=int, nargs="+", help="of each target")
    parser.add_argument("--k", type=int, default=256, help="stored tokens of a step")
    parser.add_argument("--folder", type=Path, help="where the artifacts go (default: temporary)")
    parser.add_argument("--overrides", nargs="*", default=[], help="of the study")
    arguments = parser.parse_args()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["steps", "k", "stage", "seconds", "peak_mib"])
    for steps in arguments.steps:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            overrides = ["study=mini", "decoding.report=false", f"outputs={folder}"]
            overrides += arguments.overrides
            # the most memory of a process that starts another counts as that one's, too
            publisher = get_context("spawn").Process(
                target=publish, args=(overrides, steps, arguments.k)
            )
            publisher.start()
            publisher.join()
            if publisher.exitcode:
                raise SystemExit(f"error: nothing was written at {steps} steps")
            for stage in STAGES:
                seconds, peak = measured([*overrides, f"stage={stage}"])
                writer.writerow([steps, arguments.k, stage, f"{seconds:.1f}", f"{peak:.0f}"])
                sys.stdout.flush()


if __name__ == "__main__":
    main()
