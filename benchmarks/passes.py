"""Time passes over few tokens: ``python -m benchmarks.passes [OVERRIDES]``, of study=smollm2.

Prints, for torch's own linear maps and for `pipeline.models.few_rows`, the milliseconds of a pass
over n tokens after a prompt of 160, and their ratio to a pass over one, c(n)/c(1). All kinds are
timed in turn, the least of many repetitions counts; device.threads=2 gives the number of threads.
"""

from __future__ import annotations

import sys
import time

import torch
from hydra import compose, initialize_config_dir

from pipeline import cli  # noqa: F401  registers the configuration's types and resolvers
from pipeline.models.few_rows import use_few_rows
from pipeline.models.load import load_model
from pipeline.paths import CONF
from pipeline.plan.composition import settings_of
from pipeline.plan.slices import run_settings
from pipeline.stages.decoding.sequence import CachedSequence

TOKENS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
PROMPT, REPETITIONS = 160, 30


@torch.inference_mode()
def seconds(sequence: CachedSequence, ids: torch.Tensor) -> float:
    """Return how long a pass over `ids` takes after what `sequence` holds, which is unchanged."""
    before = sequence.length
    begun = time.perf_counter()
    sequence.extend(ids)
    taken = time.perf_counter() - begun
    sequence.crop(before)
    return taken


def main(overrides: list[str]) -> None:
    """Time the first target of the study."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = settings_of(compose("config", ["study=smollm2", *overrides]))
    key, target = next(iter(config.targets.items()))
    numbers = {name: getattr(target, name) for name in ("dtype", "head_dtype", "attention")}
    models = {
        kind: load_model(numbers, run_settings(config, target), f"targets.{key}")
        for kind in ("torch", "few_rows")
    }
    use_few_rows(models["few_rows"].module)
    ids = torch.randint(100, 1000, (PROMPT,))
    sequences = {kind: CachedSequence(models[kind], PROMPT + max(TOKENS)) for kind in models}
    for sequence in sequences.values():
        with torch.inference_mode():
            sequence.read(ids)
    best: dict[tuple[str, int], float] = {}
    for _ in range(REPETITIONS):
        for n in TOKENS:
            for kind, sequence in sequences.items():
                taken = seconds(sequence, ids[:n])
                best[kind, n] = min(best.get((kind, n), taken), taken)
    print(f"{target.label}, {torch.get_num_threads()} threads, ms a pass and c(n)/c(1)")
    print("tokens    " + "".join(f"{n:>12}" for n in TOKENS))
    for kind in models:
        times = [best[kind, n] for n in TOKENS]
        cells = "".join(f"{1e3 * t:>7.1f} {t / times[0]:.2f}" for t in times)
        print(f"{kind:10}{cells}")


if __name__ == "__main__":
    main(sys.argv[1:])
