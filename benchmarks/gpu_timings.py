"""The timings of `benchmarks.gpu`, of Qwen3's shapes with random weights.

Passes over 1 to 8 tokens, eager and recorded; a head's attention, with keys shared in the kernel,
as the product has it, and repeated before it; the loop alone and drafted; the dump; the stages of a
small study of the paper's form. Beside each is its bound: the bytes of weights and cache that have
to be read, over the bandwidth of a copy that is measured first.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, Qwen3Config

from benchmarks.gpu_models import REDUCED, SHAPES, decoded, passes, random_prompts, random_qwen3
from pipeline.core.paths import ROOT
from pipeline.core.workers import out_of_memory
from pipeline.decoding.loop import decode
from pipeline.decoding.proposers import ModelProposer, Proposer
from pipeline.decoding.sampling import GreedySampler
from pipeline.decoding.verification import ExactMatch
from pipeline.models.devices import mark, peak_memory, seconds_between
from pipeline.models.kept import release_models
from pipeline.models.kv_session import KVSession
from pipeline.models.loading import LanguageModel
from pipeline.stages.drafts import BATCH_TEXTS
from pipeline.study import Study

GAMMA = 4  # tokens of a draft that is timed
TIMED = ("prompts", "distributions", "certificates", "run_lengths", "drafts", "acceptance",
         "decoding", "report")  # fmt: skip
METHODS = {
    "greedy": "{drafter: model, rule: greedy, draft_length: 4}",
    "speculative": "{drafter: model, sampling: speculative, draft_length: 4, temperature: 0.5}",
}
Row = dict[str, Any]  # of the results


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
