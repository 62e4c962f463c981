"""The training of a head: every step of its plan once, checkpoints, the best weights kept.

A run that was stopped goes on from its checkpoint and ends with the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.errors import PipelineError
from pipeline.models.heads.feature_head import FeatureHead
from pipeline.models.language_model import LanguageModel
from pipeline.training.features import Example, batches
from pipeline.training.head import BEST, HeldOut, loss

REPORTS = 20  # a run; a fixed number of steps apart, so that the best does not depend on the clock

MOMENTUM, WEIGHT_DECAY = 0.95, 0.01

Optimizers = list[torch.optim.Optimizer]


def train_head(
    head: FeatureHead,
    target: LanguageModel,
    drafted: Tensor,
    *,
    examples: Sequence[Example],
    held_out: HeldOut,
    recipe: Any,
    directory: Path,
) -> FeatureHead:
    """Train `head` by `recipe` and return the weights that drafted best on held-out text.

    Matrices are trained by Muon, with steps as long as AdamW's; all else by AdamW.

    Args:
        head: with its initial weights.
        target: that it drafts for.
        drafted: (n,) ids of the tokens that can be drafted, increasing.
        examples: to train on.
        held_out: for the reports.
        recipe: tokens (of a batch), epochs, deep_epochs, depth, learning_rate, others,
            checkpoint_seconds, seed, bfloat16; see conf/drafter_training.yaml.
        directory: of the checkpoint.

    Raises:
        PipelineError: the checkpoint is of another recipe or of other conversations.
    """
    directory.mkdir(parents=True, exist_ok=True)
    plan, weights = (
        plan_of([len(example.tokens) for example in examples], recipe),
        list(head.parameters()),
    )
    optimizers: Optimizers = [
        Muon([weight for weight in weights if weight.ndim == 2], {"lr": recipe.learning_rate}),
        torch.optim.AdamW([weight for weight in weights if weight.ndim != 2], betas=(0.9, 0.95),
                          weight_decay=WEIGHT_DECAY),
    ]  # fmt: skip
    of = {name: value for name, value in vars(recipe).items() if name != "checkpoint_seconds"}
    of["conversations"] = len(examples)
    checkpoint, every = directory / "checkpoint.pt", max(1, len(plan) // REPORTS)
    state = _load(checkpoint, of, head, optimizers)
    saved = time.monotonic()
    for step in range(state["step"], len(plan)):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = recipe.learning_rate * rate(step, len(plan), recipe)
        members, depth = plan[step]
        some = [examples[i] for i in members]
        value = loss(head, target, drafted, some, depth=depth, step=step, recipe=recipe)
        value.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        before = state["loss"]
        state["loss"] = value.item() if before is None else 0.98 * before + 0.02 * value.item()
        state["step"] = step + 1
        last = step + 1 == len(plan)
        if last or (step + 1) % every == 0:
            statistics = held_out.measured(head, recipe.depth)
            shown = ", ".join(f"{name} {number:.3f}" for name, number in statistics.items())
            print(f"step {step + 1}/{len(plan)}: loss {state['loss']:.3f}, {shown}", flush=True)
            if state["best"] is None or statistics[BEST] > state["best"][0]:
                kept = {name: value.clone() for name, value in head.state_dict().items()}
                state["best"] = statistics[BEST], kept
        if last or time.monotonic() - saved > recipe.checkpoint_seconds:
            _save(checkpoint, state, of, head, optimizers)
            saved = time.monotonic()
    if state["best"] is not None:
        head.load_state_dict(state["best"][1])
    return head.eval()


class Muon(torch.optim.Optimizer):
    """Steps of orthogonal matrices, as `torch.optim.Muon`, with products in float32.

    torch's are in bfloat16, which many processors emulate: a matrix of 576 x 1,536 took 6.3 s on
    one core, and takes 0.27 s here. Momentum is Nesterov's; a step is as long as AdamW's
    (`adjust_lr_fn="match_rms_adamw"`).
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Move every matrix W by -0.2 sqrt(max(rows, columns)) lr orthogonal(momentum)."""
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                momentum = state["momentum"].lerp_(weight.grad, 1 - MOMENTUM)
                update = orthogonal(weight.grad.lerp(momentum, MOMENTUM))
                weight.mul_(1 - group["lr"] * WEIGHT_DECAY)
                weight.add_(update, alpha=-0.2 * max(weight.shape) ** 0.5 * group["lr"])


def orthogonal(matrix: Tensor) -> Tensor:
    """Return U S' V^T of `matrix` = U S V^T, all of S' near 1: five steps of Newton and Schulz.

    X <- a X + (b X X^T + c (X X^T)^2) X from X = matrix / ||matrix||_F, with a, b, c of Jordan
    and others (2024), which raise small singular values fast: S' lies in (0.5, 1.5).
    """
    a, b, c = 3.4445, -4.775, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if tall else x


def plan_of(lengths: Sequence[int], recipe: Any) -> list[tuple[list[int], int]]:
    """Return the conversations of every step and the depth it trains; alike long ones together."""
    plan = []
    epochs = [1] * recipe.epochs + [recipe.depth] * recipe.deep_epochs
    for epoch, depth in enumerate(epochs):
        rng = np.random.default_rng([recipe.seed, epoch])
        order = sorted(range(len(lengths)), key=lambda i: lengths[i] + rng.uniform(0, 20))
        steps = list(batches(order, lengths, recipe.tokens))
        plan += [(steps[at], depth) for at in rng.permutation(len(steps))]
    return plan


def rate(step: int, steps: int, recipe: Any) -> float:
    """Return the share of the peak learning rate: warm-up, then a cosine to a hundredth."""
    if step < recipe.warmup_steps:
        return (step + 1) / float(recipe.warmup_steps)
    along = (step - recipe.warmup_steps) / max(1, steps - recipe.warmup_steps)
    return float(0.01 + 0.99 * (1 + np.cos(np.pi * along)) / 2)


def _load(
    path: Path, of: Mapping[str, Any], model: nn.Module, optimizers: Optimizers
) -> dict[str, Any]:
    if not path.exists():
        return {"step": 0, "loss": None, "best": None}
    read = torch.load(path, weights_only=True)
    made_of = read.pop("of")
    if changed := sorted(n for n in of.keys() | made_of if of.get(n) != made_of.get(n)):
        raise PipelineError(
            f"{path} belongs to a run with other {', '.join(changed)}: finish that run or remove it"
        )
    model.load_state_dict(read.pop("model"))
    for optimizer, kept in zip(optimizers, read.pop("optimizers"), strict=True):
        optimizer.load_state_dict(kept)
    state: dict[str, Any] = read
    return state


def _save(
    path: Path,
    state: Mapping[str, Any],
    of: Mapping[str, Any],
    model: nn.Module,
    optimizers: Optimizers,
) -> None:
    beside = path.with_suffix(".tmp")
    kept = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
    }
    torch.save({"of": dict(of), **kept, **state}, beside)
    beside.replace(path)
