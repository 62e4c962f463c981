"""The whole sequence for a GPU, as one command: ``make check-gpu``.

Prints a line for every check, and ends with status 1 when one failed:

- correctness, on a random model: varlen, static, dynamic and plain decoding emit the same tokens,
  in float32 and bfloat16, and padding gives no NaN; the head's product and the compiled statistics
  agree with their twins on the CPU, torch's varlen attention with attention under a mask, and
  compiled parts with plain ones;
- control flow: memory that runs out halves one shard; a capture that fails is the last one tried;
- the decoding loop emits the same tokens with fixed shapes (replayed graphs) and with growing ones;
- a dump that is killed and resumed has the bytes of one that was not (embedded model, on the GPU);
- how many operations a step has, and how many of them `device.compile` makes fewer;
- a profile of one decoding step at batch 128 (Qwen3-1.7B's shape): the kernels that take longest.

Then `make bench-gpu` has the speeds. ``--reduced`` runs it all with small shapes, on the CPU too,
where what needs CUDA is left out, and says so.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from analysis.trees.topology import symmetric
from benchmarks.gpu import REDUCED, synthetic_prompts
from benchmarks.gpu_operations import operations, profile
from pipeline.decoding.choices import Greedy
from pipeline.decoding.drafters import model_drafter
from pipeline.decoding.fixed import FixedPasses
from pipeline.decoding.loop import decode
from pipeline.decoding.verifiers import Match
from pipeline.execution import graphs
from pipeline.execution.shards import Plan, at_most, compute_unfinished, join
from pipeline.execution.stopwatch import Stopwatch
from pipeline.models import heads, varlen
from pipeline.models.compiled import compile_parts
from pipeline.models.load import LanguageModel, random_qwen3
from pipeline.models.logit_statistics import tempered_statistics
from pipeline.stages.distributions.compute import Decoder
from pipeline.stages.distributions.decode import DecodedBatch, Decoding, decode_batch
from pipeline.stages.distributions.running import (
    GrowingBatch,
    PaddedBatch,
    StaticBatch,
    VarlenBatch,
    running_batch,
)
from pipeline.stages.distributions.sampling import Sampling
from pipeline.store import columns
from pipeline.store.artifacts import Pending
from pipeline.store.durable import read_sealed

GREEDY = Sampling(0.0, 1.0, 0, 0)
STEPS = 24
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.15}  # of a logit, absolute; logits are about 1 to 10
AGREEMENT = {"float32": 1.0, "bfloat16": 0.95}  # of tokens: a close argmax may change with padding

KINDS: dict[str, type[PaddedBatch]] = {"static": StaticBatch, "varlen": VarlenBatch}

Check = Callable[[torch.device], str]


class LeftOutError(Exception):
    """What is checked needs CUDA."""


def expect(fact: bool, what: str) -> None:
    """Let a check fail."""
    if not fact:
        raise AssertionError(what)


def only_cuda(device: torch.device) -> None:
    """Leave a check out where there is no CUDA device."""
    if device.type != "cuda":
        raise LeftOutError("needs CUDA")


def small(device: torch.device, dtype: str) -> tuple[LanguageModel, dict[str, list[int]]]:
    """Return a random model and prompts of very different lengths."""
    torch.manual_seed(0)
    model = random_qwen3(REDUCED, dtype, "float32", device, "small")
    return model, synthetic_prompts(16, 300, model.vocab_size)


def decoded(
    model: LanguageModel, prompts: dict[str, list[int]], running: type[PaddedBatch]
) -> DecodedBatch:
    """Decode greedily."""
    decoding = Decoding(STEPS, 64, [0.5], GREEDY)
    watch = Stopwatch(model.device)
    out = decode_batch(model, prompts, decoding, running, watch, lambda _: None)
    watch.seconds()
    return out.to_host()


def agreement(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the share of tokens that are the same."""
    return (one == other).float().mean().item()


def same_tokens(device: torch.device, dtype: str) -> str:
    """All ways to run a batch, and each prompt alone, emit the same tokens."""
    model, prompts = small(device, dtype)
    kinds = {"static": StaticBatch} if model.varlen_refusal() else KINDS
    ways = {name: decoded(model, prompts, kind) for name, kind in kinds.items()}
    dynamic = decoded(model, prompts, GrowingBatch)
    alone = torch.cat(
        [decoded(model, {name: ids}, GrowingBatch).token_id for name, ids in prompts.items()]
    )
    shares = {"alone": agreement(alone, dynamic.token_id)}
    apart = 0.0
    for name, out in ways.items():
        expect(bool(out.statistics.entropy.isfinite().all()), "an entropy is not finite")
        shares[name] = agreement(out.token_id, dynamic.token_id)
        # logits are comparable as long as the texts are the same
        same = (out.token_id == dynamic.token_id).cumprod(1).bool()
        same = torch.cat([torch.ones_like(same[:, :1]), same[:, :-1]], 1)
        off = (out.statistics.logsumexp - dynamic.statistics.logsumexp).abs()[same]
        apart = max(apart, off.max().item())
    expect(min(shares.values()) >= AGREEMENT[dtype], f"tokens agree at {shares} of the steps")
    expect(apart <= TOLERANCE[dtype], f"log-sum-exps are {apart:.3g} apart")
    graph = "replayed from graphs" if all(out.graph for out in ways.values()) else "without a graph"
    listed = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    return f"as dynamic: {listed}; apart {apart:.2g}, {graph}"


def varlen_attention(device: torch.device) -> str:
    """Torch's varlen attention is attention under a mask, with the heads of Qwen3-1.7B."""
    only_cuda(device)
    torch.manual_seed(2)
    lengths = torch.tensor([len(ids) for ids in synthetic_prompts(128, 1024, 9).values()])
    query = torch.randn(128, 16, 128, device=device, dtype=torch.bfloat16)
    keys, values = torch.randn(2, 128, 1152, 8, 128, device=device, dtype=torch.bfloat16)
    inputs = query, keys, values, lengths.to(device, torch.int32), 128**-0.5
    found, microseconds = [], []
    for attention in (varlen.by_kernel, varlen.by_mask):
        found.append(attention(*inputs))
        watch = Stopwatch(device)
        with watch("attention"):
            for _ in range(100):
                attention(*inputs)
        microseconds.append(watch.seconds()["attention"] * 1e4)
    apart = (found[0] - found[1]).abs().max().item()
    expect(apart <= varlen.APART, f"attended values are {apart:.3g} apart")
    times = "{:.0f} us, under a mask {:.0f} us".format(*microseconds)
    return f"apart {apart:.2g}; {times} at batch 128"


def compiled_parts(device: torch.device) -> str:
    """Compiled norms and feed-forward parts change no more than rounding does."""
    only_cuda(device)
    model, prompts = small(device, "bfloat16")
    running = running_batch("auto", model)
    plain = decoded(model, prompts, running)
    compile_parts(model)
    share = agreement(decoded(model, prompts, running).token_id, plain.token_id)
    expect(share >= AGREEMENT["bfloat16"], f"tokens agree at {share:.1%} of the steps")
    return f"tokens agree at {share:.1%}"


def head_and_statistics(device: torch.device) -> str:
    """The product in bfloat16 and the statistics by masks are their twins on the CPU."""
    torch.manual_seed(1)
    hidden, weight = torch.randn(8, 256).bfloat16(), torch.randn(4096, 256).bfloat16()
    here = heads.wide_product(hidden, weight)
    there = heads.wide_product(hidden.to(device), weight.to(device)).cpu()
    product = (here - there).abs().max().item()
    expect(product <= 1e-3, f"logits are {product:.3g} apart")
    here[0, :200] = here[0].max()  # ties
    one, one_tempered = tempered_statistics(here.clone(), 64, [1.0, 0.5])
    two, two_tempered = tempered_statistics(here.to(device), 64, [1.0, 0.5])
    expect(bool((one.top_ids == two.top_ids.cpu()).all()), "other tokens are stored")
    pairs = zip((*one[2:], *one_tempered), (*two[2:], *two_tempered), strict=True)
    worst = max((a - b.cpu()).abs().max().item() for a, b in pairs)
    expect(worst <= 1e-10, f"statistics are {worst:.3g} apart")
    return f"logits {product:.2g} apart, statistics {worst:.2g}"


def memory_runs_out(device: torch.device) -> str:
    """A shard that does not fit is halved, and no other; the run goes on."""
    model, prompts = small(device, "bfloat16")
    real = Decoder(model, prompts, Decoding(STEPS, 64, [], GREEDY), StaticBatch)
    tried: list[int] = []

    def compute(shard: Any, path: Path, progress: Any) -> Any:
        tried.append(len(shard.prompts))
        if len(shard.prompts) == 8 and len(tried) == 1 and device.type == "cuda":
            torch.empty(1 << 50, dtype=torch.uint8, device=device)  # really runs out
        elif len(shard.prompts) == 8 and len(tried) == 1:
            raise MemoryError
        return real.compute(shard, path, progress)

    with tempfile.TemporaryDirectory() as folder:
        pending = Pending(Path(folder), "distributions")
        plan = Plan.open(pending, {name: len(ids) for name, ids in prompts.items()}, at_most(8))
        compute_unfinished(plan, compute, steps=STEPS, label="small", device=device)
        join(plan, list(prompts), pending, columns.schema("distributions", k=64))
        rows = pending.rows["data"]
    expect(tried == [8, 4, 4, 8], f"shards of {tried} were tried")
    return f"shards of {tried} prompts, {rows} steps written"


def capture_fails(device: torch.device) -> str:
    """A failed capture is said and recorded, decoding goes on, and none is tried again."""
    only_cuda(device)
    model, prompts = small(device, "bfloat16")
    whole = decoded(model, prompts, StaticBatch)

    @contextmanager
    def broken(*_: Any, **__: Any) -> Iterator[None]:
        yield
        raise RuntimeError("a capture that fails on purpose")

    real = torch.cuda.graph
    setattr(torch.cuda, "graph", broken)  # noqa: B010
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            without = decoded(model, prompts, StaticBatch)
    finally:
        setattr(torch.cuda, "graph", real)  # noqa: B010
        failed = list(graphs._failed)
        graphs._failed.clear()
    expect(not without.graph and len(failed) == 1, f"failures: {failed}")
    expect(any("without a CUDA graph" in str(one.message) for one in said), "nothing was said")
    share = agreement(whole.token_id, without.token_id)
    expect(share >= AGREEMENT["bfloat16"], f"tokens agree at {share:.1%} of the steps")
    expect(decoded(model, prompts, StaticBatch).graph or not whole.graph, "no graph afterwards")
    return f"went on without; tokens agree at {share:.1%}"


def killed_and_resumed(device: torch.device) -> str:
    """A killed dump keeps its shards, and ends with the bytes of one that was not killed."""
    with tempfile.TemporaryDirectory() as folder:
        common = [
            sys.executable, "-m", "pipeline", "study=mini", "target=mini_large",
            "stage=distributions", f"device.name={device.type}", "device.batch=8",
        ]  # fmt: skip
        whole, cut = Path(folder) / "whole", Path(folder) / "cut"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([*common, f"outputs={whole}"], check=True, **quiet)  # type: ignore[call-overload]
        run = subprocess.Popen([*common, f"outputs={cut}"], start_new_session=True, **quiet)  # type: ignore[call-overload]
        shards = partial(cut.glob, "artifacts/distributions/.*.partial/shards/*.parquet")
        begun = time.monotonic()
        while len(list(shards())) < 3 and run.poll() is None and time.monotonic() - begun < 300:
            time.sleep(0.05)
        expect(run.poll() is None, "it ended before it could be killed")
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        kept = len(list(shards()))
        subprocess.run([*common, f"outputs={cut}"], check=True, **quiet)  # type: ignore[call-overload]
        contents = [
            read_sealed(next(place.glob("artifacts/distributions/*/record.json")))["content"]
            for place in (whole, cut)
        ]
    expect(contents[0] == contents[1], "the bytes differ")
    return f"{kept} shards were kept, the bytes are the same"


def decoding_graphs(device: torch.device) -> str:
    """Passes of fixed shapes decode what growing ones do, and are graphs on CUDA."""
    model, prompts = small(device, "float32")

    def answers(passes: list[FixedPasses] | list[None]) -> list[int]:
        of_target, of_drafter = passes
        found = []
        for tree in (None, symmetric(2, 3).by_level()):
            for prompt in prompts.values():
                drafter = model_drafter(model, Greedy(), tree, None, of_drafter)
                verifier = Match(Greedy())
                found += decode(model, drafter, verifier, prompt, 3, STEPS, of_target).tokens
        return found

    fixed = [FixedPasses(model), FixedPasses(model)]
    growing, same = answers([None, None]), answers(fixed)
    expect(growing == same, "fixed shapes decode other tokens than growing ones")
    graph = all(one.graph for one in fixed)
    expect(graph or device.type != "cuda", "the passes were not captured")
    return f"{len(same)} tokens as with growing shapes, {'with' if graph else 'without'} graphs"


def main() -> None:
    """Run every check; print a line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reduced", action="store_true", help="small shapes, on the CPU as well")
    reduced = parser.parse_args().reduced
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type != "cuda" and not reduced:
        raise SystemExit("error: no CUDA device; add --reduced to run small shapes on the CPU")
    checks: dict[str, Check] = {
        "tokens, float32": partial(same_tokens, dtype="float32"),
        "tokens, bfloat16": partial(same_tokens, dtype="bfloat16"),
        "head and statistics": head_and_statistics,
        "varlen attention": varlen_attention,
        "compiled parts": compiled_parts,
        "memory runs out": memory_runs_out,
        "capture fails": capture_fails,
        "killed and resumed": killed_and_resumed,
        "decoding": decoding_graphs,
        "operations": operations,
        "profile": partial(profile, reduced=reduced),
    }
    failed = 0
    for name, check in checks.items():
        try:
            print(f"{name}: ok: {check(device)}", flush=True)
        except LeftOutError as why:
            print(f"{name}: left out: {why}", flush=True)
        except Exception as error:  # the other checks are worth their minutes
            failed += 1
            print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if failed:
        raise SystemExit(f"{failed} of {len(checks)} checks failed")


if __name__ == "__main__":
    main()
