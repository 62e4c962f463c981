"""Speed of certificates: `make bench`, or `python -m benchmarks.certificates`.

It runs on one thread and reports the best of several times: one read of a (64,000 x 256) float64
array by np.sum; one rule; the paper's grid of rules from float32 logits, with all four outputs; the
grid at fewer steps and with other K.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from analysis.certificates.certify import certify
from analysis.rule_config import expand
from analysis.rules import Additive, Rule
from analysis.topk import TopK

ROOT = Path(__file__).resolve().parents[1]
STEPS = 64_000
K = 256
VOCABULARY = 151_936
REPEATS = 7  # the least time counts


def synthetic(steps: int, k: int, seed: int = 0) -> TopK:
    """Return steps whose top probabilities are distributed like those of the paper's Table 1.

    p falls as rank^-a, the top 8 more slowly; T, H and p0 refer to the whole vocabulary.
    """
    rng = np.random.default_rng(seed)
    exponents = np.clip(7.0 * np.exp(0.75 * rng.standard_normal(256)), 1.2, 14.0)
    shape = rng.integers(len(exponents), size=steps)
    log_rank = np.log(np.arange(1, VOCABULARY + 1))
    tail = np.empty(len(exponents))
    tail_logits = np.empty(len(exponents))
    for row, exponent in enumerate(exponents):
        logits = 20.0 - exponent * log_rank[k:]
        weight = np.exp(logits)
        tail[row] = weight.sum()
        tail_logits[row] = weight @ logits
    stored = (20.0 - exponents[shape, None] * log_rank[:k]).astype(np.float32)
    flat = rng.beta(2.0, 0.75, (steps, 1))
    stored[:, :8] = 20.0 + flat * (stored[:, :8] - 20.0)
    mass = np.exp(stored.astype(np.float64))
    total = mass.sum(axis=1) + tail[shape]
    entropy = np.log(total) - ((mass * stored).sum(axis=1) + tail_logits[shape]) / total
    with np.errstate(divide="ignore"):
        log_tail = np.log(tail[shape] / total)
    ids = np.broadcast_to(np.arange(k, dtype=np.int32), (steps, k))
    surprisal = np.log(total) - stored[:, 0]
    return TopK.from_columns(ids, stored, surprisal, log_tail, entropy, VOCABULARY)


def paper_rules() -> list[Rule]:
    """Return the grid of rules of conf/criteria/paper.yaml."""
    paper = OmegaConf.to_container(OmegaConf.load(ROOT / "conf/criteria/paper.yaml"))
    assert isinstance(paper, dict)
    return expand(paper["paper"])


def best_time(function: Callable[[], object]) -> float:
    """Return the least wall time of several calls, in milliseconds, after a warm-up call."""
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        function()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times[1:])


def main() -> None:
    """Print all timings."""
    rules = paper_rules()
    dist = synthetic(STEPS, K)
    read = best_time(np.random.default_rng(0).random((STEPS, K)).sum)
    single = best_time(lambda: certify(dist, [Additive(0.1)]))
    grid = best_time(lambda: certify(dist, rules))
    print(f"one read: {read:.2f} ms")
    print(f"one rule, additive t=0.1: {single:.2f} ms, {single / read:.2f} reads (at most 0.75)")
    print(f"the grid, {len(rules)} rules: {grid:.2f} ms, {grid / read:.2f} reads (at most 8)")
    for steps, k in ((4_000, K), (16_000, K), (16_000, 32), (16_000, 512)):
        milliseconds = best_time(partial(certify, synthetic(steps, k), rules))
        print(f"the grid, {steps} steps, K = {k}: {1e6 * milliseconds / steps:.0f} ns a step")


if __name__ == "__main__":
    main()
