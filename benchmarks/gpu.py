"""Checks and timings that need a GPU: ``make check-gpu``.

First it prints a line for every check, and ends at one that fails:

- decoding a batch and decoding each prompt alone emit the same tokens, in float32 and bfloat16, and
  padding gives no NaN;
- the head's product in bfloat16 and the statistics agree with the CPU's;
- the decoding loop with a chain and with a tree emits the tokens of the target alone.

Then it times the paper's shapes with random weights (nothing is downloaded), 500 prompts and 128
steps, with the stage's own code; seconds are wall-clock time without writing files.

``--reduced`` runs everything with small shapes, also on the CPU, without the parts that need CUDA.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from analysis.trees.topology import symmetric
from pipeline.core.workers import out_of_memory
from pipeline.decoding.drafters import Drafter, model_drafter
from pipeline.decoding.loop import decode
from pipeline.decoding.sampling import GreedySampler
from pipeline.decoding.verification import ExactMatch
from pipeline.models.batch_decoding import decode_batch
from pipeline.models.devices import describe_device, peak_memory
from pipeline.models.language_model import LMHead, linear_of
from pipeline.models.loading import LanguageModel, wrap
from pipeline.models.logit_statistics import StatisticsColumns, logit_statistics

COMMON: dict[str, Any] = {
    "vocab_size": 151_936, "head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40_960, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {  # config.json of Qwen/Qwen3-1.7B and Qwen/Qwen3-4B
    "Qwen3-1.7B": COMMON | {"hidden_size": 2048, "intermediate_size": 6144,
                            "num_hidden_layers": 28, "num_attention_heads": 16},
    "Qwen3-4B": COMMON | {"hidden_size": 2560, "intermediate_size": 9728,
                          "num_hidden_layers": 36, "num_attention_heads": 32},
}  # fmt: skip
REDUCED: dict[str, Any] = {
    "vocab_size": 2048, "head_dim": 32, "num_key_value_heads": 2, "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
STEPS = 24
GREEDY = {"steps": STEPS, "k": 256, "temperature": 0.0, "seed": 0, "certified_temperature": 1.0}
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.15}  # of a logit, absolute; logits are about 1 to 10
DIFFERING = {"float32": 0.0, "bfloat16": 0.02}  # share of steps: padding may change a close argmax
Prompts = dict[str, list[int]]
Row = dict[str, Any]  # of a printed table


def random_prompts(count: int, longest: int, vocabulary: int) -> Prompts:
    """Return random prompts of at least 64 tokens whose lengths have a long tail."""
    generator = np.random.default_rng(0)
    lengths = np.clip(64 + generator.lognormal(4.5, 1.0, count), 64, longest).astype(int)
    return {f"{i:03}": generator.integers(0, vocabulary, n).tolist()
            for i, n in enumerate(lengths)}  # fmt: skip


def random_qwen3(
    shape: dict[str, Any], dtype: str, device: torch.device, label: str
) -> LanguageModel:
    """Return a Qwen3 with random weights, created on `device`, with float32 logits."""
    with device:
        module = AutoModelForCausalLM.from_config(
            Qwen3Config(**shape), dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
    return wrap(module, label, device, key=label)


def small(device: torch.device, dtype: str) -> tuple[LanguageModel, Prompts]:
    """Return a random model and prompts of very different lengths."""
    torch.manual_seed(0)
    model = random_qwen3(REDUCED, dtype, device, "small")
    return model, random_prompts(16, 300, model.vocab_size)


def decoded(model: LanguageModel, prompts: Prompts, steps: int = STEPS) -> StatisticsColumns:
    """Decode greedily, and return the stored columns on the host."""
    out = decode_batch(model, prompts, GREEDY | {"steps": steps}, lambda _: None)
    return {name: tensor.cpu() for name, tensor in out.items()}


def same_tokens(device: torch.device, dtype: str) -> str:
    """Check that a batch and each prompt alone emit the same tokens, up to close argmaxes."""
    model, prompts = small(device, dtype)
    together = decoded(model, prompts)
    alone = [decoded(model, {name: ids}) for name, ids in prompts.items()]
    tokens, sums = (
        torch.cat([single[name] for single in alone]) for name in ("token_id", "logsumexp")
    )
    same = (tokens == together["token_id"]).cumprod(1).bool()
    compared = torch.cat([torch.ones_like(same[:, :1]), same[:, :-1]], 1)  # up to a difference
    share = 1 - int(same.sum()) / int(compared.sum())
    apart = (sums - together["logsumexp"]).abs()[compared].max().item()
    assert together["entropy"].isfinite().all(), "an entropy is not finite"
    assert share <= DIFFERING[dtype], f"texts differ first at {share:.2%} of the steps"
    assert apart <= TOLERANCE[dtype], f"log-sum-exps are {apart:.3g} apart"
    return f"steps with a first difference from texts alone: {share:.2%}; apart {apart:.2g}"


def head_and_statistics(device: torch.device) -> str:
    """Check the product in bfloat16 and the statistics against those of the CPU."""
    torch.manual_seed(1)
    hidden, weight = torch.randn(8, 256).bfloat16(), torch.randn(4096, 256).bfloat16()
    head = LMHead(linear_of(weight.to(device), None), torch.float32)
    on_device = head(hidden.to(device)).cpu()
    product = (on_device - hidden.double() @ weight.double().T).abs().max().item()
    assert product <= 1e-3, f"logits are {product:.3g} apart"
    logits = torch.randn((8, 4096), generator=torch.Generator().manual_seed(1))
    logits[0, :200] = logits[0].max()  # ties
    on_host = logit_statistics(logits, 64, 0.5)
    moved = logit_statistics(logits.to(device), 64, 0.5)
    assert (on_host["top_ids"] == moved["top_ids"].cpu()).all(), "other tokens are stored"
    worst = max((on_host[name] - moved[name].cpu()).abs().max().item() for name in on_host)
    assert worst <= 1e-10, f"statistics are {worst:.3g} apart"
    return f"logits {product:.2g} apart, statistics {worst:.2g}"


def loop_emits_the_target(device: torch.device) -> str:
    """Check that drafting, as a chain and as a tree, does not change the emitted tokens."""
    model, prompts = small(device, "float32")
    drafters = [
        Drafter(device),
        model_drafter(model, GreedySampler()),
        model_drafter(model, GreedySampler(), symmetric(2, 3).by_level()),
    ]
    plain, *drafted = (
        [
            decode(model, drafter, ExactMatch(GreedySampler()), ids, 3, STEPS).tokens
            for ids in prompts.values()
        ]
        for drafter in drafters
    )
    assert all(answers == plain for answers in drafted), "drafts change the answers"
    return f"{sum(map(len, plain))} tokens, the same with a chain and with a tree"


CHECKS: dict[str, Callable[[torch.device], str]] = {
    "tokens, float32": partial(same_tokens, dtype="float32"),
    "tokens, bfloat16": partial(same_tokens, dtype="bfloat16"),
    "head and statistics": head_and_statistics,
    "decoding": loop_emits_the_target,
}


def speeds(device: torch.device, *, reduced: bool) -> Iterator[Row]:
    """Yield the timings of decoding at every batch size that fits into memory."""
    shapes, count, longest, steps, batches = SHAPES, 500, 1024, 128, [64, 128, 256]
    if reduced:
        shapes, count, longest, steps, batches = {"reduced": REDUCED}, 24, 128, 16, [8, 24]
    machine = describe_device(device) | {"torch": torch.__version__}
    print(json.dumps(machine | {"prompts": count, "steps": steps}))
    for label, shape in shapes.items():
        model = random_qwen3(shape, "bfloat16", device, label)
        prompts = random_prompts(count, longest, model.vocab_size)
        by_length = sorted(prompts, key=lambda name: -len(prompts[name]))

        def decoding(batch: int) -> float:
            begun = time.perf_counter()
            for start in range(0, count, batch):
                some = {name: prompts[name] for name in by_length[start : start + batch]}  # noqa: B023
                decoded(model, some, steps)  # noqa: B023
            return count * steps / (time.perf_counter() - begun)

        decoded(model, {name: prompts[name] for name in by_length[-8:]}, steps)  # warm-up
        for batch in batches:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            try:
                rate = round(decoding(batch))
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                print(f"{label}: a batch of {batch} does not fit", flush=True)
                continue
            size = round(peak_memory(device) / 2**30, 1)
            yield {"target": label, "batch": batch, "tokens_per_second": rate, "peak_GiB": size}


def main() -> None:
    """Run the checks, then the speeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reduced", action="store_true", help="small shapes, on the CPU as well")
    reduced = parser.parse_args().reduced
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type != "cuda" and not reduced:
        raise SystemExit("error: no CUDA device; add --reduced to run small shapes on the CPU")
    for name, check in CHECKS.items():
        print(f"{name}: {check(device)}", flush=True)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    for at, row in enumerate(speeds(device, reduced=reduced)):
        if not at:
            print(f"\n| {' | '.join(row)} |\n|{'---|' * len(row)}")
        print(f"| {' | '.join(map(str, row.values()))} |", flush=True)


if __name__ == "__main__":
    main()
