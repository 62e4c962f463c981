"""The training loop: every step of a plan once, checkpoints, the best weights kept.

A run that was stopped goes on from its checkpoint and ends with the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.errors import PipelineError

REPORTS = 20  # a run; a fixed number of steps apart, so that the best does not depend on the clock

Optimizers = list[torch.optim.Optimizer]


def muon(
    model: nn.Module,
    rate: float,
    other_rate: float,
    other_decay: float = 0.0,
    adjust: str | None = None,
) -> Optimizers:
    """Return Muon for the matrices but embeddings, and AdamW for all else.

    Args:
        model: whose parameters are trained.
        rate: peak learning rate of the matrices.
        other_rate: of the others.
        other_decay: weight decay of the others.
        adjust: how Muon scales its steps; "match_rms_adamw" makes them as long as AdamW's.
    """
    named = list(model.named_parameters())
    matrices = [value for name, value in named if value.ndim == 2 and "embed" not in name]
    others = [value for name, value in named if value.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, rate, weight_decay=0.01, momentum=0.95, adjust_lr_fn=adjust),
        torch.optim.AdamW(others, other_rate, betas=(0.9, 0.95), weight_decay=other_decay),
    ]


def train_steps(
    model: nn.Module,
    optimizers: Optimizers,
    steps: int,
    loss: Callable[[int], Tensor],
    schedule: Callable[[int], float],
    report: Callable[[], Mapping[str, float]],
    directory: Path,
    of: Mapping[str, Any],
    *,
    checkpoint_seconds: float,
    best: str | None = None,
) -> nn.Module:
    """Train `model` to the last step, and return it in evaluation mode.

    Args:
        model: with its initial weights.
        optimizers: as of `muon`, at their peak rates.
        steps: how many.
        loss: of a step.
        schedule: the share of the peak rates at a step.
        report: what is measured on held-out text, by name.
        directory: of the checkpoint.
        of: what decides the result: a checkpoint of a run with other values is refused.
        checkpoint_seconds: between two checkpoints.
        best: which of the reported values decides whose weights are returned, the largest; None
            takes the last weights.

    Raises:
        PipelineError: the checkpoint is of another run.
    """
    directory.mkdir(parents=True, exist_ok=True)
    checkpoint, every = directory / "checkpoint.pt", max(1, steps // REPORTS)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    state = _load(checkpoint, of, model, optimizers)
    saved = time.monotonic()
    for step in range(state["step"], steps):
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * schedule(step)
        value = loss(step)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        known = state["loss"]
        state["loss"] = value.item() if known is None else 0.98 * known + 0.02 * value.item()
        state["step"] = step + 1
        last = step + 1 == steps
        if last or (step + 1) % every == 0:
            found = report()
            shown = ", ".join(f"{name} {number:.3f}" for name, number in found.items())
            print(f"step {step + 1}/{steps}: loss {state['loss']:.3f}, {shown}", flush=True)
            if best is not None and (state["best"] is None or found[best] > state["best"][0]):
                weights = {name: value.clone() for name, value in model.state_dict().items()}
                state["best"] = found[best], weights
        if last or time.monotonic() - saved > checkpoint_seconds:
            _save(checkpoint, state, of, model, optimizers)
            saved = time.monotonic()
    if state["best"] is not None:
        model.load_state_dict(state["best"][1])
    return model.eval()


def _load(
    path: Path, of: Mapping[str, Any], model: nn.Module, optimizers: Optimizers
) -> dict[str, Any]:
    if not path.exists():
        return {"step": 0, "loss": None, "best": None}
    read = torch.load(path, weights_only=True)
    made_of = read.pop("of")
    if changed := sorted(n for n in of.keys() | made_of if of.get(n) != made_of.get(n)):
        raise PipelineError(
            f"{path} is of a run with other {', '.join(changed)}: finish that one, or remove it"
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
    kept = {"model": model.state_dict(), "optimizers": [one.state_dict() for one in optimizers]}
    torch.save({"of": dict(of), **kept, **state}, beside)
    beside.replace(path)
