"""The distributions of every step of a batch: of prompts that are decoded, or of given answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import PipelineError
from pipeline.execution.stopwatch import Stopwatch
from pipeline.models.devices import in_threads
from pipeline.models.load import LanguageModel
from pipeline.models.logit_statistics import Found, invert, logit_statistics, nucleus
from pipeline.models.passes import HELD, Batch, Texts, concat_columns
from pipeline.plan.facts import AnswersFacts
from pipeline.plan.specs import DistributionsSpec
from pipeline.store.artifacts import Artifact

RETIRE_EVERY = 8  # steps between looks at which answers have ended: each makes the host wait
RETIRE_SHARE = 0.2  # of the batch must have ended before it is made smaller


@torch.inference_mode()
def decode_batch(
    model: LanguageModel,
    prompts: Mapping[str, list[int]],
    spec: DistributionsSpec,
    watch: Stopwatch,
    progress: Callable[[int], object],
) -> Found:
    """Decode `prompts` (tokens by prompt_id) together.

    Left-padded, with a key-value cache. A step takes the statistics of the logits, chooses the
    token and runs the model on it. Prompts whose answer has ended leave the batch.

    Args:
        model: what decodes.
        prompts: B of them.
        spec: which distributions are stored, and how tokens are chosen.
        watch: of the parts of a step.
        progress: is called with the steps that were done.

    Returns:
        (B, n, ...) of each column that is stored; of row b the first `lengths` (B,) steps count, up
        to and with the token that ends the answer.
    """
    steps, k = spec.steps, min(spec.k, model.vocab_size)
    assert spec.seed is not None
    rows_of_noise = [uniforms(spec.seed, name, steps) for name in prompts]
    noise = torch.from_numpy(np.stack(rows_of_noise)).to(model.device)
    eos = torch.tensor(model.eos, dtype=torch.int32, device=model.device)
    out: Found = {}
    rows = torch.arange(len(prompts), device=model.device)  # still decoding

    with watch("prefill"):
        batch = Batch.make(list(prompts.values()), [[]] * len(prompts), model.device)
        texts = Texts(model, batch.width + steps, padding=batch.padding)
        logits = texts.read(batch.ids)[:, -1]
    for step in range(steps):
        with watch("statistics"):
            columns = stored_statistics(logits, k, spec)
            token = columns["top_ids"][:, 0].long()
            if spec.temperature > 0:
                drawn = noise[rows, step]
                token = choose(logits, drawn, spec.temperature, spec.top_p, spec.top_k)
            columns["token_id"] = token.int()
            if not out:
                size = (len(prompts), steps)
                out = {name: t.new_zeros((*size, *t.shape[1:])) for name, t in columns.items()}
            for name, values in columns.items():
                out[name][rows, step] = values
        progress(len(rows))
        if step + 1 == steps:
            break
        with watch("decode"):
            if (step + 1) % RETIRE_EVERY == 0:
                going = ~torch.isin(out["token_id"][rows, : step + 1], eos).any(1)
                share = float(going.float().mean())
                if share == 0:
                    break
                if share <= 1 - RETIRE_SHARE:
                    rows, token = rows[going], token[going]
                    texts.select(going.nonzero()[:, 0])
            logits = texts.extend(token[:, None])[:, -1]
    with watch("statistics"):
        ended = torch.isin(out["token_id"], eos)
        out["lengths"] = torch.where(ended.any(1), ended.int().argmax(1) + 1, steps)
    return out


def stored_statistics(logits: Tensor, k: int, spec: DistributionsSpec) -> Found:
    """Return the stored columns of logits (N, V)."""
    columns = logit_statistics(logits, k, spec.certified_temperature)
    return columns | {"top_ids": columns["top_ids"].int()}


def uniforms(seed: int, prompt_id: str, steps: int) -> np.ndarray:
    """Return the (steps,) uniform numbers of a prompt: entry i depends on (seed, id, i) only.

    The choice of a token is so reproducible whatever batch a prompt is decoded in.
    """
    key = hashlib.sha256(f"{seed}\n{prompt_id}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
    return generator.random(steps)


def choose(
    logits: Tensor, uniform: Tensor, temperature: float, top_p: float = 1.0, top_k: int = 0
) -> Tensor:
    """Return the (B,) tokens chosen from `logits` (B, V) by the inverse of their distribution.

    Args:
        logits: raw logits.
        uniform: (B,) float64 numbers in [0, 1).
        temperature: above 0.
        top_p: the least mass of the most probable tokens that may be chosen; 1 leaves all in.
        top_k: how many of them, applied before top_p; 0 leaves all in.
    """
    if top_k == 0 and top_p == 1:
        return invert(torch.softmax(logits.float() / temperature, dim=1).double(), uniform)
    ordered, ids = logits.float().sort(dim=1, descending=True, stable=True)
    weights = nucleus(ordered, temperature, top_p, top_k).double()
    return ids.gather(1, invert(weights, uniform)[:, None])[:, 0]


def served_answers(spec: DistributionsSpec, source: Artifact) -> dict[str, list[int]]:
    """Return the first `distributions.steps` tokens of every answer.

    Raises:
        PipelineError: the requests say that they were sampled otherwise than the configuration.
    """
    for option, values in (source.facts(AnswersFacts).sampling or {}).items():
        wanted = getattr(spec, option)
        other = [value for value in values if max(value, 0) != wanted]  # top_k -1 is all, too
        if other:
            raise PipelineError(
                f"distributions.{option}={wanted:g} differs from how the answers were sampled: "
                f"requests have {option} {', '.join(f'{value:g}' for value in other)}. Give "
                f"distributions.{option}={other[0]:g}, or only answers that were sampled so"
            )
    table = source.read("answers").to_pydict()
    pairs = zip(table["prompt_id"], table["token_ids"], strict=True)
    return {name: ids[: spec.steps] for name, ids in pairs}


@torch.inference_mode()
def score_batch(
    model: LanguageModel,
    prompts: list[list[int]],
    answers: list[list[int]],
    spec: DistributionsSpec,
    watch: Stopwatch,
    progress: Callable[[int], object],
) -> Found:
    """Return the result of `decode_batch` for given answers: one teacher-forced pass of blocks."""
    batch = Batch.make(prompts, answers, model.device)
    texts = Texts(model, batch.ids.shape[1], padding=batch.padding)
    k, parts = min(spec.k, model.vocab_size), []

    def statistics(logits: Tensor) -> Found:
        columns = concat_columns(
            in_threads(
                lambda rows: stored_statistics(logits[rows], k, spec), len(logits), logits.device
            )
        )
        return {name: tensor.unflatten(0, (len(answers), -1)) for name, tensor in columns.items()}

    for begin, end, steps in batch.blocks(HELD[model.device.type], model.vocab_size):
        with watch("decode" if steps else "prefill"):
            logits = texts.read(batch.ids[:, begin:end], max(steps, 1))
        if steps:
            with watch("statistics"):
                parts.append(statistics(logits.flatten(0, 1)))
            progress(steps * len(answers))
    own = {"token_id": batch.ids[:, batch.width :].int(), "lengths": batch.lengths}
    return concat_columns(parts, dim=1) | own
