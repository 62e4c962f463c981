"""What a verdict on a draft takes: ``python -m benchmarks.verdicts [VOCABULARY]``.

Prints the milliseconds of a verdict of each method on DRAFT tokens, the check of the logits
included, the least of many, and its ratio to strict greedy's. Logits are random, of VOCABULARY
tokens (49,152 as SmolLM2's unless given); at each token the two largest have probabilities of about
0.5 and 0.3. In the first column all drafted tokens but the second are the argmax, and that is the
runner-up; in the other all are the runner-up. One thread.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor

from analysis.rules import AbsoluteThreshold, Additive, Mars, Multiplicative, TopMAdditive, Typical
from pipeline.decoding.choices import Greedy, Noise
from pipeline.decoding.drafters import Draft
from pipeline.decoding.verifiers import (
    BlockVerification,
    Match,
    Relaxed,
    SpeculativeSampling,
    TreeSampling,
    Verifier,
)

DRAFT, VOCABULARY, REPETITIONS = 4, 49_152, 100
RULES = (
    Mars(0.9),
    Multiplicative(0.5),
    Multiplicative(0.9),
    Additive(0.3),
    TopMAdditive(2, 0.3),
    AbsoluteThreshold(0.2),
    Typical(0.3, 0.3),
)


def verifiers() -> dict[str, Verifier]:
    """Return what is timed, by name; strict greedy first."""
    noise = Noise(0, "p", DRAFT, torch.device("cpu"), DRAFT)
    return {
        "strict greedy": Match(Greedy()),
        **{rule.label: Relaxed(rule) for rule in RULES},
        "speculative sampling": SpeculativeSampling(1.0, noise),
        "the same on trees": TreeSampling(1.0, noise),
        "block verification": BlockVerification(1.0, noise),
    }


def drafts(size: int) -> tuple[Tensor, list[Draft]]:
    """Return logits (DRAFT + 1, size), and both drafts with the distributions they came from."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn((DRAFT + 1, size), generator=generator)
    most, second = torch.randperm(size, generator=generator)[: 2 * (DRAFT + 1)].view(2, -1)
    at = torch.arange(DRAFT + 1)
    logits[at, most], logits[at, second] = 14.0, 13.5
    one = most[:DRAFT].clone()
    one[1] = second[1]
    q = torch.softmax(logits[:DRAFT].double() * 0.9, 1)
    return logits, [Draft(one, q), Draft(second[:DRAFT].clone(), q)]


@torch.inference_mode()
def seconds(verifier: Verifier, logits: Tensor, draft: Draft) -> float:
    """Return the least seconds of a verdict."""
    best = float("inf")
    for _ in range(REPETITIONS):
        begun = time.perf_counter()
        verifier.verify(logits, draft, 0)
        best = min(best, time.perf_counter() - begun)
    return best


def main(arguments: list[str]) -> None:
    """Time all verdicts."""
    torch.set_num_threads(1)
    size = int(arguments[0]) if arguments else VOCABULARY
    logits, both = drafts(size)
    print(f"drafts of {DRAFT}, {size} tokens: ms a verdict, and over strict greedy's")
    print(f"{'':32}{'one runner-up':>16}{'all runners-up':>16}")
    strict: list[float] = []
    for name, verifier in verifiers().items():
        taken = [seconds(verifier, logits, draft) for draft in both]
        strict = strict or taken
        cells = [f"{1e3 * t:9.3f} {t / s:6.1f}" for t, s in zip(taken, strict, strict=True)]
        print(f"{name:32}" + "".join(cells))


if __name__ == "__main__":
    main(sys.argv[1:])
