"""Checks and timings that need a GPU: ``make check-gpu``.

First it prints a line for every check, and ends at one that fails:

- decoding a batch and decoding each prompt alone emit the same tokens, in float32 and bfloat16, and
  padding gives no NaN;
- recorded and eager passes emit the same tokens, with logits that agree;
- texts that stage drafts reads together have the logits of each alone, of a head as well;
- the head's product in bfloat16, the statistics and the top K agree with the CPU's;
- the decoding loop with a chain and with a tree emits the tokens of the target alone, and sampled
  drafts are verified at all nodes at once as they are one after the other.

Then it times Qwen3's shapes with random weights (nothing is downloaded): passes over 1 to 8 tokens,
eager and recorded; a head's attention, with keys shared in the kernel, as the product has it, and
repeated before it; the loop alone and drafted; the dump; the stages of a small study of the paper's
form. Beside each is its bound: the bytes of weights and cache that have to be read, over the
bandwidth of a copy that is measured first. Rows go to a CSV file.

``--reduced`` runs everything with small shapes, also on the CPU, where passes over the same buffers
run unrecorded.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, Qwen3Config

from analysis.trees.topology import sequence, symmetric
from pipeline.core.paths import ROOT
from pipeline.core.workers import out_of_memory
from pipeline.decoding import verification
from pipeline.decoding.loop import decode
from pipeline.decoding.proposers import ModelProposer, Proposer
from pipeline.decoding.sampling import GreedySampler, Noise
from pipeline.decoding.tree_drafting import Draft
from pipeline.decoding.verification import ExactMatch, SpeculativeSampling
from pipeline.drafters.draft_model import DraftModel
from pipeline.drafters.eagle3_head import Eagle3Head
from pipeline.drafters.pairs import read_pair, read_pairs
from pipeline.models import recorded_passes
from pipeline.models.batch_decoding import decode_batch
from pipeline.models.devices import describe_machine, mark, peak_memory, seconds_between, set_up
from pipeline.models.eagle3.drafter import Eagle3Drafter, Eagle3Module
from pipeline.models.kept import release_models
from pipeline.models.kv_session import KVSession
from pipeline.models.language_model import LMHead, linear_of
from pipeline.models.loading import LanguageModel, wrap
from pipeline.models.logit_statistics import StatisticsColumns, logit_statistics
from pipeline.stages.drafts import BATCH_TEXTS
from pipeline.study import Study

COMMON: dict[str, Any] = {
    "vocab_size": 151_936, "head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40_960, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {  # config.json of Qwen/Qwen3-0.6B, 1.7B and 4B
    "Qwen3-0.6B": COMMON | {"hidden_size": 1024, "intermediate_size": 3072,
                            "num_hidden_layers": 28, "num_attention_heads": 16},
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
GAMMA = 4  # tokens of a draft that is timed
TIMED = ("prompts", "distributions", "certificates", "run_lengths", "drafts", "acceptance",
         "decoding", "report")  # fmt: skip
METHODS = {
    "greedy": "{drafter: model, rule: greedy, draft_length: 4}",
    "speculative": "{drafter: model, sampling: speculative, draft_length: 4, temperature: 0.5}",
}
Prompts = dict[str, list[int]]
Row = dict[str, Any]  # of the results
COLUMNS = ("part", "model", "setting", "value", "unit", "bound")  # of a row


@dataclass(frozen=True)
class Size:
    """How much is timed."""

    shapes: dict[str, dict[str, Any]]
    context: int  # tokens before a timed pass
    repeats: int  # of a pass
    steps: int  # of a decoded answer, and of the dump
    prompts: int  # of the dump
    batches: tuple[int, ...]
    study: dict[str, int]  # of the small study: prompts, steps, decoding.prompts, decoding.steps


FULL = Size(SHAPES, 512, 20, 64, 256, (128, 256),
            {"prompts.count": 64, "distributions.steps": 64,
             "decoding.prompts": 3, "decoding.steps": 64})  # fmt: skip
SMALL = Size({name: REDUCED for name in SHAPES if name != "Qwen3-4B"}, 32, 3, 8, 8, (4, 8),
             {"prompts.count": 4, "distributions.steps": 6,
              "decoding.prompts": 2, "decoding.steps": 6})  # fmt: skip


@contextmanager
def passes(*, recorded: bool) -> Iterator[None]:
    """Run passes recorded (on a CPU: as if they were), or eagerly, where that is possible."""
    asked = recorded_passes.can_record if recorded else lambda _: False
    with (
        patch.object(recorded_passes, "FIXED_ON_CPU", recorded),
        patch.object(recorded_passes, "can_record", asked),
    ):
        yield


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
    return wrap(module.eval(), label, device, key=label)


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
    wanted = {name: torch.cat([single[name] for single in alone]) for name in together}
    assert together["entropy"].isfinite().all(), "an entropy is not finite"
    return f"first differences from texts alone: {compared(together, wanted, dtype)}"


def compared(found: StatisticsColumns, wanted: StatisticsColumns, dtype: str) -> str:
    """Check that two runs emit the same tokens with the same log-sum-exps; return how nearly."""
    same = (found["token_id"] == wanted["token_id"]).cumprod(1).bool()
    before = torch.cat([torch.ones_like(same[:, :1]), same[:, :-1]], 1)  # up to a difference
    share = 1 - int(same.sum()) / int(before.sum())
    apart = (found["logsumexp"] - wanted["logsumexp"]).abs()[before].max().item()
    assert share <= DIFFERING[dtype], f"texts differ first at {share:.2%} of the steps"
    assert apart <= TOLERANCE[dtype], f"log-sum-exps are {apart:.3g} apart"
    return f"{share:.2%} of the steps; log-sum-exps {apart:.2g} apart"


def recorded_as_eager(device: torch.device, dtype: str) -> str:
    """Check that recorded passes emit the tokens of eager ones: in batches, and in the loop."""
    model, prompts = small(device, dtype)
    found = []
    answers = []
    for recorded in (True, False):
        with passes(recorded=recorded):
            found.append(decoded(model, prompts))
            answers.append(looped(model, prompts))
    if dtype == "float32":
        assert answers[0] == answers[1], "the loop emits other tokens"
    return f"first differences from eager passes: {compared(found[0], found[1], dtype)}"


def random_head(target: LanguageModel) -> Eagle3Head:
    """Return a head with random weights, and the output layer of its target."""
    with target.device:
        module = Eagle3Module(REDUCED, layers=2, fc_norm=False).eval()
    rows = target.module.get_output_embeddings()
    return Eagle3Head(
        Eagle3Drafter(target, module, rows, (1, 2), "small head", None, target.vocab_size)
    )


@torch.inference_mode()
def texts_together(device: torch.device) -> str:
    """Check that texts read together, as in stage drafts, have the logits of each alone."""
    target, prompts = small(device, "float32")
    texts = list(prompts.values())
    width = max(map(len, texts))
    padding = [width - len(text) for text in texts]
    padded = [[0] * before + text for before, text in zip(padding, texts, strict=True)]
    ids = torch.tensor(padded, device=device)
    before = torch.tensor(padding, device=device)
    worst = 0.0
    for drafter in (DraftModel(target), random_head(target)):
        logits, drafts, _ = read_pairs(target, drafter, ids, 8, 2, before)
        for row, text in enumerate(texts):
            alone = read_pair(target, drafter, torch.tensor([text], device=device), 8, 2)
            wanted = [alone[0], *alone[1]]
            found = [logits[row], *(draft[row] for draft in drafts)]
            gaps = [_distance(*pair) for pair in zip(found, wanted, strict=True)]
            worst = max(worst, *gaps)
    assert worst <= TOLERANCE["float32"], f"logits are {worst:.3g} apart"
    return f"{len(texts)} texts, by a language model and by a head, logits {worst:.2g} apart"


def head_and_statistics(device: torch.device) -> str:
    """Check the product in bfloat16 and the statistics against those of the CPU."""
    torch.manual_seed(1)
    hidden = torch.randn(8, 256).bfloat16()
    weight = torch.randn(4096, 256).bfloat16()
    head = LMHead(linear_of(weight.to(device), None), torch.float32)
    on_device = head(hidden.to(device)).cpu()
    product = (on_device - hidden.double() @ weight.double().T).abs().max().item()
    assert product <= 1e-3, f"logits are {product:.3g} apart"
    logits = torch.randn((8, 4096), generator=torch.Generator().manual_seed(1))
    logits[0, :200] = logits[0].max()  # ties
    logits[1, 1:] = -torch.inf
    on_host = logit_statistics(logits, 64, 0.5)
    moved = logit_statistics(logits.to(device), 64, 0.5)
    assert (on_host["top_ids"] == moved["top_ids"].cpu()).all(), "other tokens are stored"
    gaps = (_distance(on_host[name], moved[name].cpu()) for name in on_host)
    worst = max(gaps)
    assert worst <= 1e-10, f"statistics are {worst:.3g} apart"
    return f"logits {product:.2g} apart, statistics {worst:.2g}"


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    apart = torch.where(one == other, 0, (one - other).abs())  # of equal infinities 0
    return float(apart.max().item())


def looped(model: LanguageModel, prompts: Prompts) -> list[list[list[int]]]:
    """Return the answers of the loop alone, with a chain and with a tree."""
    drafters = [
        Proposer(model.device),
        ModelProposer(model, GreedySampler()),
        ModelProposer(model, GreedySampler(), symmetric(2, 3).by_level()),
    ]
    return [
        [
            decode(model, drafter, ExactMatch(GreedySampler()), ids, 3, STEPS).tokens
            for ids in prompts.values()
        ]
        for drafter in drafters
    ]


def loop_emits_the_target(device: torch.device) -> str:
    """Check that drafting, as a chain and as a tree, does not change the emitted tokens."""
    model, prompts = small(device, "float32")
    plain, *drafted = looped(model, prompts)
    assert all(answers == plain for answers in drafted), "drafts change the answers"
    return f"{sum(map(len, plain))} tokens, the same with a chain and with a tree"


def verified_at_all_nodes(device: torch.device) -> str:
    """Check speculative sampling at all nodes on the device against one after the other."""
    generator = torch.Generator().manual_seed(2)
    accepted = 0
    for seed in range(100):
        tree = sequence(3)
        z = 2 * torch.randn((4, 500), generator=generator)
        q = torch.softmax((z[:3] + torch.randn((3, 500), generator=generator)).double(), 1)
        tokens = torch.multinomial(q, 1, generator=generator)[:, 0]
        noise = Noise(seed, "p", 8, device, 3)
        moved = Draft(tokens.to(device), tree, q.to(device))
        with patch.object(verification, "ALL_NODES_ON_CPU", new=True):
            found = SpeculativeSampling(1.0, noise).verify(z.to(device), moved, 0)
        wanted = SpeculativeSampling(1.0, noise).verify(z, Draft(tokens, tree, q), 0)
        assert found == wanted, f"{found} for {wanted}"
        accepted += len(found[0])
    return f"100 drafts of 3, {accepted} tokens accepted"


CHECKS: dict[str, Callable[[torch.device], str]] = {
    "tokens, float32": partial(same_tokens, dtype="float32"),
    "tokens, bfloat16": partial(same_tokens, dtype="bfloat16"),
    "recorded passes, float32": partial(recorded_as_eager, dtype="float32"),
    "recorded passes, bfloat16": partial(recorded_as_eager, dtype="bfloat16"),
    "texts read together": texts_together,
    "head and statistics": head_and_statistics,
    "decoding": loop_emits_the_target,
    "verification": verified_at_all_nodes,
}


def bandwidth(device: torch.device) -> float:
    """Return the bytes a second of a copy, read and written ones together."""
    source = torch.zeros(
        2**30 if device.type == "cuda" else 2**26, dtype=torch.uint8, device=device
    )
    target = torch.empty_like(source)
    target.copy_(source)
    seconds = []
    for _ in range(10):
        marks = [mark(device)]
        target.copy_(source)
        marks.append(mark(device))
        seconds += seconds_between(marks)
    return 2 * source.nbytes / min(seconds)


@dataclass(frozen=True)
class Bound:
    """The least time of a pass."""

    rate: float  # bytes a second

    def __call__(self, model: LanguageModel, columns: float, rows: int = 1) -> float:
        """Return the seconds in which weights, and caches of so many tokens, can be read."""
        read = model.memory_bytes() + rows * columns * model.cache_bytes()
        return read / self.rate


def median_seconds(run: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Return the seconds of a run. The first three, in which passes are recorded, do not count."""
    seconds = []
    for _ in range(repeats + 3):
        marks = [mark(device)]
        run()
        marks.append(mark(device))
        seconds += seconds_between(marks)
    return median(seconds[3:])


@torch.inference_mode()
def pass_rows(model: LanguageModel, size: Size, bound: Bound) -> Iterator[Row]:
    """Yield the milliseconds of a pass over 1 to 8 tokens of one text, eager and recorded."""
    device = model.device
    prompt = torch.zeros((1, size.context), dtype=torch.long, device=device)

    def read(session: KVSession, count: int) -> None:
        session.append(prompt[:, :count])
        session.truncate(size.context)

    for kind in ("eager", "recorded"):
        with passes(recorded=kind == "recorded"):
            session = KVSession(model, size.context + 16, rolls_back=True)
            session.prefill(prompt)
            for count in range(1, 9):
                seconds = median_seconds(partial(read, session, count), size.repeats, device)
                least = bound(model, size.context + count)
                yield {
                    "part": f"pass, {kind}", "model": model.label, "setting": f"{count} tokens",
                    "value": 1e3 * seconds, "unit": "ms", "bound": 1e3 * least,
                }  # fmt: skip


@torch.inference_mode()
def attention_rows(
    label: str, shape: dict[str, Any], size: Size, bound: Bound, device: torch.device
) -> Iterator[Row]:
    """Yield the milliseconds of a head's attention over one token, by who repeats the keys.

    With a mask, which a head always has, the kernel that shares keys may be a slow one.
    """
    heads = shape["num_attention_heads"]
    groups = heads // shape["num_key_value_heads"]
    query = torch.zeros((1, heads, 1, shape["head_dim"]), dtype=torch.bfloat16, device=device)
    keys = query[:, ::groups].repeat(1, 1, size.context, 1)
    mask = query.new_zeros((1, 1, 1, size.context))

    def shared() -> None:
        scaled_dot_product_attention(query, keys, keys, attn_mask=mask, enable_gqa=True)

    def repeated() -> None:
        every = keys.repeat_interleave(groups, 1)
        scaled_dot_product_attention(query, every, every, attn_mask=mask)

    for name, run in (("keys shared in the kernel", shared), ("keys repeated before", repeated)):
        yield {
            "part": "attention of a head", "model": label, "setting": name,
            "value": 1e3 * median_seconds(run, size.repeats, device), "unit": "ms",
            "bound": 1e3 * 2 * keys.nbytes / bound.rate,
        }  # fmt: skip


def loop_rows(
    target: LanguageModel, drafter: LanguageModel, size: Size, bound: Bound
) -> Iterator[Row]:
    """Yield the tokens a second of the loop, alone and drafted; the prompt's pass is left out."""
    prompt = random_prompts(1, size.context, target.vocab_size)["000"]
    columns = len(prompt) + size.steps / 2
    for name, source in (
        ("alone", Proposer(target.device)),
        (f"drafts of {GAMMA} by {drafter.label}", ModelProposer(drafter, GreedySampler())),
    ):
        verifier = ExactMatch(GreedySampler())
        decode(target, source, verifier, prompt, GAMMA, size.steps)  # passes are recorded
        calls = decode(target, source, verifier, prompt, GAMMA, size.steps).calls
        seconds = sum(
            call.draft_seconds + call.verify_seconds + call.other_seconds for call in calls
        )
        drafted = sum(call.drafted for call in calls)
        least = len(calls) * bound(target, columns) + drafted * bound(drafter, columns)
        tokens = sum(call.emitted for call in calls)
        yield {
            "part": "loop", "model": target.label, "setting": name,
            "value": tokens / seconds, "unit": "tokens/s", "bound": tokens / least,
        }  # fmt: skip


def dump_rows(model: LanguageModel, size: Size, bound: Bound) -> Iterator[Row]:
    """Yield the tokens a second of stage distributions at every batch size that fits."""
    prompts = random_prompts(size.prompts, 1024, model.vocab_size)
    by_length = sorted(prompts, key=lambda name: -len(prompts[name]))
    decoded(model, {name: prompts[name] for name in by_length[-4:]}, size.steps)  # warm-up
    for batch in size.batches:
        if model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(model.device)
        begun = time.perf_counter()
        least = 0.0
        try:
            for start in range(0, size.prompts, batch):
                some = {name: prompts[name] for name in by_length[start : start + batch]}
                decoded(model, some, size.steps)
                columns = max(map(len, some.values())) + size.steps / 2
                least += size.steps * bound(model, columns, len(some))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            print(f"{model.label}: a batch of {batch} does not fit", flush=True)
            continue
        tokens = size.prompts * size.steps
        memory = peak_memory(model.device) / 2**30
        yield {
            "part": "dump", "model": model.label, "setting": f"batch {batch}, {memory:.1f} GiB",
            "value": tokens / (time.perf_counter() - begun), "unit": "tokens/s",
            "bound": tokens / least,
        }  # fmt: skip


def write_model(shape: dict[str, Any], folder: Path) -> Path:
    """Write a random model as a study reads it, with the tokenizer of the embedded models."""
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(Qwen3Config(**shape), dtype=torch.bfloat16)
    module.save_pretrained(folder)
    for path in (ROOT / "assets/mini/large").iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            shutil.copy(path, folder)
    return folder


def study_rows(
    models: Sequence[LanguageModel], size: Size, bound: Bound, folder: Path
) -> Iterator[Row]:
    """Yield the seconds of the stages of a small study: a target and its drafter, from disk."""
    drafter, target = models[:2]
    device = target.device
    places = [
        write_model(size.shapes[model.label], folder / model.label) for model in (drafter, target)
    ]
    overrides = [
        "study=paper", "~targets.qwen3_4b", f"targets.qwen3_1_7b.path='{places[1]}'",
        f"drafter.path='{places[0]}'", "prompts=mini", f"device.name={device.type}",
        f"outputs='{folder / 'outputs'}'", "decoding=settings",
        *(f"{key}={value}" for key, value in size.study.items()),
        *(f"+decoding.methods.{name}={method}" for name, method in METHODS.items()),
    ]  # fmt: skip
    study = Study(*overrides)
    for stage in TIMED:
        begun = time.perf_counter()
        with redirect_stdout(StringIO()):
            artifacts = study.make(stage)
        seconds = time.perf_counter() - begun
        yield {
            "part": "study", "model": f"{target.label} and {drafter.label}", "setting": stage,
            "value": seconds, "unit": "s",
            "bound": _stage_bound(stage, artifacts[0], target, drafter, size, bound),
        }  # fmt: skip
    release_models()


def _stage_bound(
    stage: str,
    artifact: Any,
    target: LanguageModel,
    drafter: LanguageModel,
    size: Size,
    bound: Bound,
) -> float | None:
    """Return the seconds of the passes of a stage, None without passes; prompts are not counted."""
    count = size.study["prompts.count"]
    steps = size.study["distributions.steps"]
    if stage == "distributions":
        rows = artifact.metadata["batch"]
        return -(-count // rows) * steps * bound(target, steps / 2, min(rows, count))
    if stage == "drafts":
        reads = -(-count // BATCH_TEXTS[target.device.type])
        return reads * (bound(target, 0) + bound(drafter, 0))
    if stage == "decoding":
        calls = artifact.read("calls", columns=["drafted"])["drafted"].to_numpy()
        passes_of_drafter = float(calls.sum()) * bound(drafter, size.study["decoding.steps"] / 2)
        return len(calls) * bound(target, size.study["decoding.steps"] / 2) + passes_of_drafter
    return None


def timings(device: torch.device, size: Size, folder: Path) -> Iterator[Row]:
    """Yield all rows of the results."""
    rate = bandwidth(device)
    yield {
        "part": "copy", "model": "", "setting": "read and written", "value": rate / 1e9,
        "unit": "GB/s", "bound": None,
    }  # fmt: skip
    bound = Bound(rate)
    models = []
    for label, shape in size.shapes.items():
        torch.manual_seed(0)
        models.append(random_qwen3(shape, "bfloat16", device, label))
        yield from pass_rows(models[-1], size, bound)
    label, shape = list(size.shapes.items())[-1]
    yield from attention_rows(label, shape, size, bound, device)
    drafter = models[0]
    for target in models[1:]:
        yield from loop_rows(target, drafter, size, bound)
        yield from dump_rows(target, size, bound)
    yield from study_rows(models, size, bound, folder)


def write_rows(rows: Iterator[Row], machine: Row, path: Path) -> None:
    """Print rows, and write them with their machine to a CSV file as they come."""
    of_machine = {name: machine[name] for name in ("gpu", "processor", "torch", "date")}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*COLUMNS, *of_machine], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            value = f"{row['value']:.4g}"
            bound = "" if row["bound"] is None else f"{row['bound']:.4g}"
            writer.writerow(row | {"value": value, "bound": bound} | of_machine)
            file.flush()
            beside = f", bound {bound}" if bound else ""
            what = ", ".join(row[name] for name in ("part", "model", "setting") if row[name])
            print(f"{what}: {value} {row['unit']}{beside}", flush=True)
    print(f"results: {path}", flush=True)


def main() -> None:
    """Run the checks, then the timings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reduced", action="store_true", help="small shapes, on the CPU as well")
    parser.add_argument("--results", type=Path, default=ROOT / "outputs/check-gpu.csv")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type != "cuda" and not arguments.reduced:
        raise SystemExit("error: no CUDA device; add --reduced to run small shapes on the CPU")
    set_up(device, None)
    for name, check in CHECKS.items():
        print(f"{name}: {check(device)}", flush=True)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    machine = describe_machine(device)
    print(json.dumps(machine), flush=True)
    size = SMALL if arguments.reduced else FULL
    with tempfile.TemporaryDirectory() as folder:
        write_rows(timings(device, size, Path(folder)), machine, arguments.results)


if __name__ == "__main__":
    main()
