"""Train one embedded model, from its last checkpoint if there is one."""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pipeline.mini_models.dataset import Tokens
from pipeline.models.load import new_qwen3


def train(
    recipe: Any,
    name: str,
    data: tuple[Tokens, Tokens],
    directory: Path,
    teacher: nn.Module | None = None,
) -> nn.Module:
    """Train `recipe.models[name]` to its last step and return it in evaluation mode.

    The order of the windows follows from the seed and the step alone, so an interrupted
    training goes on from its checkpoint as if nothing had happened.
    """
    shape = recipe.models[name]
    torch.manual_seed(shape.seed)
    model = new_qwen3(shape, recipe.vocab_size)
    optimizers = _optimizers(model, recipe)
    schedule = [(optimizer, optimizer.param_groups[0]["lr"]) for optimizer in optimizers]
    checkpoint = directory / name / "checkpoint.pt"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    done = _load(checkpoint, model, optimizers)
    forward = torch.compile(model)
    training, validation = data
    saved = time.monotonic()
    smoothed = math.nan
    for step in range(done, shape.steps):
        for optimizer, peak in schedule:
            optimizer.param_groups[0]["lr"] = peak * rate(step, shape.steps, recipe)
        ids, _ = training.windows(_batch(training, step, shape.seed, recipe), recipe.context)
        loss = _loss(forward, torch.from_numpy(ids), teacher)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        smoothed = value if math.isnan(smoothed) else 0.98 * smoothed + 0.02 * value
        last = step + 1 == shape.steps
        if last or time.monotonic() - saved > recipe.checkpoint_seconds:
            _save(checkpoint, model, optimizers, step + 1)
            held_out = validation_loss(model, validation, recipe.context, 32)
            _log(checkpoint.parent / "log.csv", step + 1, smoothed, held_out)
            print(
                f"{name} step {step + 1}/{shape.steps}: loss {smoothed:.3f}, "
                f"validation {held_out:.3f}",
                flush=True,
            )
            saved = time.monotonic()
    return model.eval()


def rate(step: int, steps: int, recipe: Any) -> float:
    """Share of the peak learning rate: warm-up, plateau, linear decay to zero."""
    decay = recipe.decay_share * steps
    return min(1.0, (step + 1) / recipe.warmup_steps, (steps - step) / decay)


@torch.no_grad()
def validation_loss(model: nn.Module, validation: Tokens, context: int, windows: int) -> float:
    """Mean negative log-likelihood of the answer tokens, in nats a token."""
    total, count = 0.0, 0
    chosen = np.arange(min(windows, validation.count(context)))
    for start in range(0, len(chosen), 16):
        ids, in_answer = validation.windows(chosen[start : start + 16], context)
        tokens = torch.from_numpy(ids)
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits.float()
        losses = functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
        )
        mask = torch.from_numpy(in_answer).flatten()
        total += losses[mask].double().sum().item()
        count += int(mask.sum())
    return total / count


@torch.no_grad()
def argmax_agreement(target: nn.Module, drafter: nn.Module, data: Tokens, recipe: Any) -> float:
    """Share of held-out answer tokens on which both models have the same argmax."""
    equal, count = 0, 0
    chosen = np.arange(min(recipe.validation_windows, data.count(recipe.context)))
    for start in range(0, len(chosen), 16):
        ids, in_answer = data.windows(chosen[start : start + 16], recipe.context)
        tokens = torch.from_numpy(ids)[:, :-1]
        p, q = (
            model(input_ids=tokens, use_cache=False).logits.argmax(-1)
            for model in (target, drafter)
        )
        mask = torch.from_numpy(in_answer)
        equal += int((p == q)[mask].sum())
        count += int(mask.sum())
    return equal / count


def _loss(forward: Any, tokens: torch.Tensor, teacher: nn.Module | None) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = forward(input_ids=tokens[:, :-1], use_cache=False).logits
    if teacher is None:
        return functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        target = teacher(input_ids=tokens[:, :-1], use_cache=False).logits.float()
    log_p = functional.log_softmax(target.flatten(0, 1), -1)
    log_q = functional.log_softmax(logits.float().flatten(0, 1), -1)
    return functional.kl_div(log_q, log_p, log_target=True, reduction="batchmean")


def _batch(training: Tokens, step: int, seed: int, recipe: Any) -> np.ndarray:
    count = training.count(recipe.context)
    per_epoch = count // recipe.batch
    epoch, at = divmod(step, per_epoch)
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return order[at * recipe.batch : (at + 1) * recipe.batch]


def _optimizers(model: nn.Module, recipe: Any) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=recipe.peak_lr, momentum=0.95, weight_decay=0.01),
        torch.optim.Adam(others, lr=recipe.embedding_lr, betas=(0.9, 0.95)),
    ]


def _load(path: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return int(state["step"])


def _save(path: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    beside = path.with_suffix(".tmp")
    states = [optimizer.state_dict() for optimizer in optimizers]
    torch.save({"model": model.state_dict(), "optimizers": states, "step": step}, beside)
    beside.replace(path)


def _log(path: Path, step: int, training: float, validation: float) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(["step", "training_loss", "validation_loss"])
        writer.writerow([step, f"{training:.4f}", f"{validation:.4f}"])
