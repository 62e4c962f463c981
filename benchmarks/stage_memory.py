"""Does stage certificates need more memory for more steps? ``python -m benchmarks.stage_memory``.

Writes made-up dumps of growing size (16 stored tokens a step), certifies each under two rules in a
process of its own through the real stage, and prints steps, seconds and largest resident memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from analysis.rules import Additive, Rule, StrictGreedy, to_mapping
from pipeline.execution.runner import ensure
from pipeline.plan.graph import Node
from pipeline.store import columns
from pipeline.store.artifacts import Store

K, VOCABULARY, ROWS = 16, 4096, 100_000


def write_dump(store: Store, steps: int) -> Node:
    """Publish a made-up dump of `steps` steps, in row groups of ROWS."""
    node = Node("distributions", f"made-up-{steps}", {"steps": steps})
    pending = store.pending(node)
    pending.facts["vocab_size"] = VOCABULARY
    random = np.random.default_rng(0)
    with pending.writer("data", columns.schema("distributions", k=K)) as writer:
        for start in range(0, steps, ROWS):
            writer.write_batch(made_up(random, start, min(ROWS, steps - start)))
    store.publish(node, pending, {})
    return node


def made_up(random: np.random.Generator, start: int, n: int) -> pa.RecordBatch:
    """Return `n` steps of random logits, the rest of the vocabulary below the stored tokens."""
    logits = -np.sort(-random.normal(0, 4, (n, K)).astype(np.float32), axis=1)
    tail = logits[:, -1:].astype(np.float64) - 1 - np.arange(1, 4)
    every = np.concatenate([logits, tail], axis=1, dtype=np.float64)
    logsumexp = np.logaddexp.reduce(every, axis=1)
    log_p = every - logsumexp[:, None]
    arrays = [
        pa.array(np.char.add("p", ((start + np.arange(n)) // 128).astype(str))),
        pa.array((np.arange(n) % 128).astype(np.int32)),
        pa.array(np.zeros(n, dtype=np.int32)),
        pa.FixedSizeListArray.from_arrays(np.tile(np.arange(K, dtype=np.int32), n), K),
        pa.FixedSizeListArray.from_arrays(logits.reshape(-1), K),
        pa.array(logsumexp),
        pa.array(logsumexp - every[:, 0]),
        pa.array(np.logaddexp.reduce(tail, axis=1) - logsumexp),
        pa.array(-(np.exp(log_p) * log_p).sum(axis=1)),
    ]
    return pa.record_batch(arrays, schema=columns.schema("distributions", k=K))


def certificates(rule: Rule, dump: Node) -> Node:
    """Return the node of the certificates of `rule` on `dump`."""
    config = {"rule": to_mapping(rule), "temperature": 1.0}
    return Node("certificates", rule.label, config, {"distributions": (dump,)}, {"rule": rule})


def certify(folder: str, steps: int) -> None:
    """Write a dump, certify it, and print what it took; runs in a process of its own."""
    store = Store(Path(folder))
    dump = write_dump(store, steps)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.monotonic()
    ensure([certificates(rule, dump) for rule in (StrictGreedy(), Additive(0.1))], store)
    seconds = time.monotonic() - begun
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{steps:>10,} steps  {seconds:7.1f} s  peak {peak * unit / 2**20:7.1f} MiB  "
        f"(writing the dump {before * unit / 2**20:.1f})",
        flush=True,
    )


def main() -> None:
    """Measure every size in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    for steps in parser.parse_args().steps:
        with tempfile.TemporaryDirectory() as folder:
            child = multiprocessing.get_context("spawn").Process(
                target=certify, args=(folder, steps)
            )
            child.start()
            child.join()
            if child.exitcode:
                sys.exit(f"{steps} steps failed")


if __name__ == "__main__":
    main()
