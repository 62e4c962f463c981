"""Where drafting stops to pay as batches grow: ``python -m benchmarks.break_even [OVERRIDES]``.

Times passes of the first target of a study over 1 to 8 tokens of each of 1, 2, 4, ... texts, behind
a prompt of 64, and of its drafter over one token, in turn; the least of many repetitions counts.
Prints the least acceptance rate at which drafting pays, and the best draft length by acceptance
rate (`analysis.decoding.break_even.by_batch`), and writes both to outputs/break_even/STUDY.csv.
The default is study=mini; device.threads=2 gives the number of threads.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from torch import Tensor

from analysis.decoding.break_even import by_batch
from pipeline import cli
from pipeline.models.feature_head import Depths
from pipeline.models.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.pair import load_pair
from pipeline.paths import CONF
from pipeline.plan.stage import stage_of
from pipeline.sweeps import print_table

BATCHES = (1, 2, 4, 8, 16, 32)
LONGEST = 8  # tokens of a text in a pass: drafts of up to 7
PROMPT, REPETITIONS = 64, 8
RATES = (0.5, 0.6, 0.7, 0.8, 0.9)
Pass = Callable[[], object]


def of_model(model: LanguageModel, ids: Tensor, n: int) -> Pass:
    """Return a pass over the last n tokens (B, n) of texts whose others have been read."""
    batch, length = ids.shape
    begun = length - n
    cache = model.new_cache(length)
    at = torch.arange(length, device=model.device).expand(batch, -1)
    mask = torch.ones_like(at)
    model.forward(ids[:, :begun], mask[:, :begun], at[:, :begun], cache)

    def run() -> Tensor:
        logits = model.forward_each(ids[:, begun:], mask, at[:, begun:], cache, n)
        chosen = logits.argmax(-1)
        for layer in cache.layers:
            layer.crop(-n)
        return chosen

    return run


def of_head(model: HiddenDrafter, ids: Tensor) -> Pass:
    """Return a pass of a head over one token of each text (B, n); hidden states are made up."""
    weight = model.head.fc.weight
    shape = (len(ids), 1, len(model.layers), weight.shape[1] // len(model.layers))
    hidden = torch.randn(shape, device=model.device, dtype=weight.dtype)
    at = torch.zeros_like(ids[:, -1:])

    def run() -> Tensor:
        outputs = Depths(model.head, 1).read(model.embed(ids[:, -1:]), hidden, at, at == 0)
        return model.logits(outputs[0]).argmax(-1)

    return run


@torch.inference_mode()
def measured(
    target: LanguageModel, drafter: LanguageModel | HiddenDrafter, batches: tuple[int, ...]
) -> tuple[dict[int, list[float]], dict[int, float]]:
    """Return seconds of the target's passes by batch size, and of the drafter's over one token."""
    generator = torch.Generator().manual_seed(0)
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    if target.device.type == "cuda":
        clock = time.perf_counter
    verify: dict[int, list[float]] = {}
    draft: dict[int, float] = {}
    for batch in batches:
        ids = torch.randint(100, 1000, (batch, PROMPT + LONGEST), generator=generator)
        ids = ids.to(target.device)
        passes: list[Pass] = [
            of_model(target, ids[:, : PROMPT + n], n) for n in range(1, LONGEST + 1)
        ]
        if isinstance(drafter, HiddenDrafter):
            passes.append(of_head(drafter, ids))
        else:
            passes.append(of_model(drafter, ids[:, : PROMPT + 1], 1))
        best = [float("inf")] * len(passes)
        for _ in range(REPETITIONS):
            for at, run in enumerate(passes):
                wait(target.device)
                begun = clock()
                run()
                wait(target.device)
                best[at] = min(best[at], clock() - begun)
        verify[batch], draft[batch] = best[:-1], best[-1]
    return verify, draft


def wait(device: torch.device) -> None:
    """Wait until a CUDA device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(overrides: list[str]) -> None:
    """Time the first target of the study and its drafter."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config, nodes, _ = cli.prepare(compose("config", overrides))
    if not nodes["decoding"]:
        raise SystemExit("the study has no drafter: give one, for instance drafter=mini")
    node = nodes["decoding"][0]
    used = stage_of(node).models(node)
    target, drafter = load_pair(
        {"target": used[0].config, "drafter": used[1].config},
        {"target": used[0].settings, "drafter": used[1].settings},
        used[0].key,
    )
    verify, draft = measured(target, drafter, BATCHES)
    print(f"{target.label} with {drafter.label}, {torch.get_num_threads()} threads, ms a pass")
    print("texts " + "".join(f"{n:>8}" for n in range(1, LONGEST + 1)) + "   draft")
    for batch, seconds in verify.items():
        cells = "".join(f"{1e3 * one:8.2f}" for one in seconds)
        print(f"{batch:>5} {cells}{1e3 * draft[batch]:8.2f}")
    table = by_batch(verify, draft, RATES)
    print_table(
        [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]
    )
    path = Path(config.outputs) / "break_even" / f"{config.study}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False)


if __name__ == "__main__":
    main(sys.argv[1:])
