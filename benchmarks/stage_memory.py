"""Does stage certificates need more memory for more steps? ``python -m benchmarks.stage_memory``.

Writes made-up dumps of growing size, certifies each under two rules in a process of its own through
the real stage, and prints steps, seconds and largest resident memory. ``--generated`` certifies and
writes steps that are on no disk: the same made-up ones, over and over.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from analysis.rules import Additive, Rule, StrictGreedy, to_mapping
from pipeline.execution.runner import ensure
from pipeline.execution.threads import stream_threads
from pipeline.stages.certificates import write_certificates
from pipeline.store import columns
from pipeline.store.artifacts import Pending, Store
from pipeline.store.distributions import MOMENTS, as_top_k
from pipeline.store.distributions import ROWS as CHUNK
from pipeline.store.node import Node

VOCABULARY, DIFFERENT = 4096, 16
RULES: tuple[Rule, ...] = (StrictGreedy(), Additive(0.1))


def write_dump(store: Store, steps: int, k: int) -> Node:
    """Publish a made-up dump of `steps` steps, in row groups as of the stage distributions."""
    node = Node("distributions", f"made-up-{steps}", {"steps": steps})
    pending = store.pending(node)
    pending.facts["vocab_size"] = VOCABULARY
    with pending.writer("data", columns.schema("distributions", k=k)) as writer:
        for batch in stream(steps, k, CHUNK):
            writer.write_batch(batch)
    store.publish(node, pending, {})
    return node


def stream(steps: int, k: int, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield `steps` steps: DIFFERENT made-up batches, over and over, of prompts of their own."""
    random = np.random.default_rng(0)
    batches = [made_up(random, rows, k) for _ in range(DIFFERENT)]
    for at, start in enumerate(range(0, steps, rows)):
        batch = batches[at % DIFFERENT].slice(0, min(rows, steps - start))
        names = np.char.add("p", ((start + np.arange(len(batch))) // 128).astype(str))
        yield batch.set_column(0, batch.schema.field(0), pa.array(names))


def made_up(random: np.random.Generator, n: int, k: int) -> pa.RecordBatch:
    """Return `n` steps of random logits, the rest of the vocabulary below the stored tokens."""
    logits = -np.sort(-random.normal(0, 4, (n, k)).astype(np.float32), axis=1)
    tail = logits[:, -1:].astype(np.float64) - 1 - np.arange(1, 4)
    every = np.concatenate([logits, tail], axis=1, dtype=np.float64)
    logsumexp = np.logaddexp.reduce(every, axis=1)
    log_p = every - logsumexp[:, None]
    arrays = [
        pa.array(np.full(n, "p")),
        pa.array((np.arange(n) % 128).astype(np.int32)),
        pa.array(np.zeros(n, dtype=np.int32)),
        pa.FixedSizeListArray.from_arrays(np.tile(np.arange(k, dtype=np.int32), n), k),
        pa.FixedSizeListArray.from_arrays(logits.reshape(-1), k),
        pa.array(logsumexp),
        pa.array(logsumexp - every[:, 0]),
        pa.array(np.logaddexp.reduce(tail, axis=1) - logsumexp),
        pa.array(-(np.exp(log_p) * log_p).sum(axis=1)),
    ]
    schema = columns.schema("distributions", k=k)
    none = pa.array([[]] * n, pa.list_(pa.float64()))  # at other temperatures
    arrays += [none] * (len(schema) - len(arrays))
    return pa.record_batch(arrays, schema=schema)


def certificates(rule: Rule, dump: Node, threads: int | None) -> Node:
    """Return the node of the certificates of `rule` on `dump`."""
    config = {"rule": to_mapping(rule), "temperature": 1.0}
    settings = {"rule": rule, "threads": threads}
    return Node("certificates", rule.label, config, {"distributions": (dump,)}, settings)


def stored(folder: Path, steps: int, k: int, threads: int | None) -> float:
    """Write a dump and certify it; return the seconds of the latter."""
    store = Store(folder)
    dump = write_dump(store, steps, k)
    begun = time.monotonic()
    ensure([certificates(rule, dump, threads) for rule in RULES], store)
    return time.monotonic() - begun


def generated(folder: Path, steps: int, k: int, threads: int | None) -> float:
    """Certify steps that are made up at the moment, and write their certificates."""
    schema = columns.schema("certificates")
    begun = time.monotonic()
    with ExitStack() as stack:
        writers = []
        for at in range(len(RULES)):
            (folder / str(at)).mkdir()
            made = Pending(folder / str(at), "certificates")
            writers.append(stack.enter_context(made.writer("data", schema)))
        chunks = (
            (batch.select([0, 1]), as_top_k(batch, MOMENTS, None, {"vocab_size": VOCABULARY}, 1.0))
            for batch in stream(steps, k, CHUNK)
        )
        write_certificates(chunks, RULES, "kl", writers, steps, stream_threads(threads))
    return time.monotonic() - begun


def measure(folder: str, steps: int, k: int, threads: int | None, *, on_disk: bool) -> None:
    """Certify `steps` steps and print what it took; runs in a process of its own."""
    seconds = (stored if on_disk else generated)(Path(folder), steps, k, threads)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bytes_ = sum(path.stat().st_size for path in Path(folder).rglob("*.parquet"))
    print(
        f"{steps:>11,} steps, K = {k}  {seconds:7.1f} s  {1e6 * seconds / steps:6.2f} s a million  "
        f"peak {peak * unit / 2**20:6.1f} MiB  on disk {bytes_ / 1e9:5.2f} GB",
        flush=True,
    )


def main() -> None:
    """Measure every size in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--k", type=int, default=16, help="stored tokens a step")
    parser.add_argument("--threads", type=int, help="as device.threads")
    parser.add_argument("--generated", action="store_true", help="steps that are on no disk")
    asked = parser.parse_args()
    for steps in asked.steps:
        with tempfile.TemporaryDirectory() as folder:
            child = multiprocessing.get_context("spawn").Process(
                target=measure,
                args=(folder, steps, asked.k, asked.threads),
                kwargs={"on_disk": not asked.generated},
            )
            child.start()
            child.join()
            if child.exitcode:
                sys.exit(f"{steps} steps failed")


if __name__ == "__main__":
    main()
