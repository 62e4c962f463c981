"""Time passes over few tokens: ``python -m benchmarks.passes [OVERRIDES]``, of study=smollm2.

Prints the milliseconds of a pass over n tokens after a prompt of 160, their ratio to a pass over
one, c(n)/c(1), and how far the logits are from transformers' own: for that pass; with the linear
maps of `pipeline.models.few_rows`; and with `few_queries` as well, as models are loaded. All are
timed in turn, the least of many repetitions counts. Last a pass over a draft tree of NODES tokens
beside one over as many in a row. device.threads=2 gives the number of threads;
with one the processor's time is counted, which other programs disturb less.
"""

from __future__ import annotations

import sys
import time

import torch
from hydra import compose, initialize_config_dir

from analysis.trees.optimal import optimal
from pipeline import cli  # noqa: F401  registers the configuration's types and resolvers
from pipeline.decoding.shapes import verification
from pipeline.models import few_queries, few_rows
from pipeline.models.fixed_passes import TreePass
from pipeline.models.load import load_model
from pipeline.models.passes import Text
from pipeline.paths import CONF
from pipeline.plan.composition import settings_of
from pipeline.plan.slices import run_settings

TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
PROMPT, REPETITIONS, NODES = 160, 20, 60
KINDS = {"transformers": "sdpa", "few_rows": "sdpa", "few_queries": few_queries.NAME}  # attention


@torch.inference_mode()
def timed(
    sequence: Text, ids: torch.Tensor, tree: TreePass | None = None
) -> tuple[float, torch.Tensor]:
    """Return the seconds and logits of a pass over `ids` after what `sequence` holds, unchanged."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    before, begun = sequence.length, clock()
    logits = sequence.extend(ids, tree)
    taken = clock() - begun
    sequence.crop(before)
    return taken, logits


def tree_beside_row(sequence: Text, ids: torch.Tensor) -> tuple[float, float]:
    """Return the least seconds of a pass over NODES tokens: as a tree, and in a row."""
    tree = optimal([0.6, 0.15, 0.08, 0.04], NODES - 1).by_level()
    model = sequence.model
    shape = verification(tree, model.device, model.module.dtype)
    best = [float("inf")] * 2
    for _ in range(REPETITIONS):
        for at, read in enumerate((shape, None)):
            best[at] = min(best[at], timed(sequence, ids[:NODES], read)[0])
    return best[0], best[1]


def main(overrides: list[str]) -> None:
    """Time the first target of the study."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = settings_of(compose("config", ["study=smollm2", *overrides]))
    key, target = next(iter(config.targets.items()))
    numbers = {name: getattr(target, name) for name in ("dtype", "head_dtype", "attention")}
    settings = run_settings(config, target)
    wired = load_model(numbers, settings, f"targets.{key}")
    few_rows.LEAST_BYTES = sys.maxsize
    models = dict.fromkeys(KINDS, wired)
    models["transformers"] = load_model(numbers, settings, f"targets.{key}")
    ids = torch.randint(100, 1000, (PROMPT,), generator=torch.Generator().manual_seed(0))
    sequences = {kind: Text(models[kind], PROMPT + max(NODES, *TOKENS)) for kind in KINDS}
    for sequence in sequences.values():
        with torch.inference_mode():
            sequence.read(ids)
    best: dict[tuple[str, int], float] = {}
    off = dict.fromkeys(KINDS, 0.0)
    for _ in range(REPETITIONS):
        for n in TOKENS:
            wanted = timed(sequences["transformers"], ids[:n])[1]
            for kind, sequence in sequences.items():
                sequence.model.module.config._attn_implementation = KINDS[kind]
                taken, logits = timed(sequence, ids[:n])
                best[kind, n] = min(best.get((kind, n), taken), taken)
                off[kind] = max(off[kind], float((logits - wanted).abs().max()))
    print(f"{target.label}, {torch.get_num_threads()} threads, ms a pass and c(n)/c(1)")
    print("tokens        " + "".join(f"{n:>11}" for n in TOKENS) + "  largest difference")
    for kind in KINDS:
        times = [best[kind, n] for n in TOKENS]
        cells = "".join(f"{1e3 * t:>6.1f} {t / times[0]:.2f}" for t in times)
        print(f"{kind:14}{cells}  {off[kind]:.1g}")
    tree, row = tree_beside_row(sequences["few_queries"], ids)
    print(
        f"{NODES} tokens as a tree {1e3 * tree:.1f} ms, in a row {1e3 * row:.1f} ms, "
        f"ratio {tree / row:.2f}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
