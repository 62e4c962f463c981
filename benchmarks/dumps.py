"""Seconds of a dump: stage distributions beside the log-probabilities of a server.

``python -m benchmarks.dumps http://localhost:8000 study=smollm2 prompts.count=24
distributions.steps=32 distributions.k=256 device.threads=1 pid=4711`` decodes a study's prompts as
the stage does, in one batch, and asks a server of the same target for as many log-probabilities
(vLLM: ``--max-logprobs 256 --max-num-seqs 24``), in turn, three times. Loading and files are left
out. Processor seconds are those of this process while it decodes, and of the server's process `pid`
and its children (Linux).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.decoding import connect
from pipeline.engines.servers import Sampling, request_body
from pipeline.execution import runner
from pipeline.execution.stopwatch import Stopwatch
from pipeline.models.load import load_model
from pipeline.plan.composition import composed
from pipeline.plan.graph import prepare
from pipeline.plan.stage import models_of
from pipeline.stages.distributions.decode import decode_batch

ROUNDS = 3


def server_seconds(pid: int) -> float:
    """Return the processor seconds of a process and its children so far."""
    parents, spent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        process = int(path.parent.name)
        parents[process], spent[process] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {pid}
    for _ in range(len(parents)):
        larger = family | {process for process, parent in parents.items() if parent in family}
        if larger == family:
            break
        family = larger
    return sum(spent.get(process, 0) for process in family) / os.sysconf("SC_CLK_TCK")


def main(words: list[str]) -> None:
    """Time both in turn, and print seconds and processor seconds of each round."""
    (url,) = (word for word in words if word.startswith("http"))
    pid = next((int(word[4:]) for word in words if word.startswith("pid=")), None)
    overrides = [word for word in words if not word.startswith(("http", "pid="))]
    _, nodes, store = prepare(composed(overrides))
    node = nodes["distributions"][0]
    rows = runner.ensure([node.upstream["prompts"][0]], store)[0].read().to_pylist()
    prompts = {row["prompt_id"]: row["token_ids"] for row in rows}
    model = load_model(*models_of(node))
    watch = Stopwatch(model.device)

    server, client = connect(url)
    sampling = Sampling(node.spec.steps, 0.0, 0, node.spec.k)
    requests = [request_body(server, ids, sampling) for ids in prompts.values()]

    def send(request: dict[str, object]) -> None:
        client.post(server.endpoint, json=request).raise_for_status()

    def served() -> None:
        with ThreadPoolExecutor(len(requests)) as pool:
            list(pool.map(send, requests))

    def decoded() -> None:
        decode_batch(model, prompts, node.spec, watch, lambda _: None)

    ways: dict[str, tuple[Callable[[], None], Callable[[], float]]] = {
        "stage distributions": (decoded, time.process_time),
        "the server": (served, lambda: server_seconds(pid) if pid else float("nan")),
    }
    for way, _ in ways.values():
        way()  # warm
    before = watch.seconds()
    for _ in range(ROUNDS):
        for name, (way, clock) in ways.items():
            began, spent = time.perf_counter(), clock()
            way()
            print(
                f"  {name:20} {time.perf_counter() - began:6.2f} s, {clock() - spent:6.2f} "
                "processor seconds",
                flush=True,
            )
    parts = {name: taken - before.get(name, 0.0) for name, taken in watch.seconds().items()}
    print("  parts a round: " + ", ".join(f"{n} {s / ROUNDS:.2f} s" for n, s in parts.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
