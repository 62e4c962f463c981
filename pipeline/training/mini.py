"""Make the embedded models: ``python -m pipeline.training.mini [NAME ...]`` (``make mini-models``).

Corpus, tokenizer and checkpoints stay in outputs/mini_models/; an interrupted run goes on
where it was. When all models of the recipe are trained, tokenizer and weights (bfloat16) are
written to assets/mini/.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import nn
from torch.nn import functional

from pipeline.models.load import new_qwen3, save_model
from pipeline.paths import ASSETS, CONF, OUTPUTS
from pipeline.training import loop
from pipeline.training.corpus import CHAT_TEMPLATE, END, END_OF_TEXT, Tokens, prepare_data


def main(names: list[str]) -> None:
    """Train the named models (all when none is named), then export what is complete."""
    recipe = OmegaConf.load(CONF / "mini_models.yaml")
    unknown = set(names) - set(recipe.models)
    if unknown:
        raise SystemExit(f"unknown model {sorted(unknown)}; known: {list(recipe.models)}")
    directory = OUTPUTS / "mini_models"
    directory.mkdir(parents=True, exist_ok=True)
    data = prepare_data(directory, list(recipe.packages), recipe.vocab_size, recipe.seed)
    trained: dict[str, nn.Module] = {}
    for name in names or recipe.models:
        teacher = recipe.models[name].teacher
        for one in (teacher, name):
            if one is not None and one not in trained:
                trained[one] = train_model(recipe, one, data, directory, trained.get(teacher))
    if len(trained) == len(recipe.models):
        export(recipe, trained, data[1], directory, ASSETS / "mini")


def train_model(
    recipe: Any,
    name: str,
    data: tuple[Tokens, Tokens],
    directory: Path,
    teacher: nn.Module | None = None,
) -> nn.Module:
    """Train `recipe.models[name]` to its last step and return it in evaluation mode.

    The order of the windows follows from the seed and the step alone.
    """
    shape = recipe.models[name]
    torch.manual_seed(shape.seed)
    model = new_qwen3(shape, recipe.vocab_size)
    forward = torch.compile(model)
    training, validation = data

    def loss(step: int) -> torch.Tensor:
        ids, _ = training.windows(_batch(training, step, shape.seed, recipe), recipe.context)
        return _loss(forward, torch.from_numpy(ids), teacher)

    print(f"{name}: {shape.steps} steps", flush=True)
    return loop.train_steps(
        model,
        loop.muon(model, recipe.peak_lr, recipe.embedding_lr),
        shape.steps,
        loss,
        lambda step: rate(step, shape.steps, recipe),
        lambda: {"validation": held_out([model], validation, recipe.context, 32)[0]},
        directory / name,
        {key: value for key, value in shape.items() if key != "teacher"},
        checkpoint_seconds=recipe.checkpoint_seconds,
    )


def rate(step: int, steps: int, recipe: Any) -> float:
    """Share of the peak learning rate: warm-up, plateau, linear decay to zero."""
    decay = recipe.decay_share * steps
    return min(1.0, (step + 1) / recipe.warmup_steps, (steps - step) / decay)


@torch.no_grad()
def held_out(
    models: list[nn.Module], data: Tokens, context: int, windows: int
) -> tuple[float, float]:
    """Return the first model's loss in nats an answer token, and how often all have its argmax."""
    total, equal, count = 0.0, 0, 0
    chosen = np.arange(min(windows, data.count(context)))
    for start in range(0, len(chosen), 16):
        ids, in_answer = data.windows(chosen[start : start + 16], context)
        tokens, mask = torch.from_numpy(ids), torch.from_numpy(in_answer)
        logits = [
            model(input_ids=tokens[:, :-1], use_cache=False).logits.float()[mask]
            for model in models
        ]
        losses = functional.cross_entropy(logits[0], tokens[:, 1:][mask], reduction="none")
        total += losses.double().sum().item()
        said = torch.stack([one.argmax(-1) for one in logits])
        equal += int((said == said[0]).all(0).sum())
        count += int(mask.sum())
    return total / count, equal / count


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


def export(
    recipe: Any, models: dict[str, nn.Module], validation: Tokens, work: Path, place: Path
) -> None:
    """Write `place`/<model>/, and print what the card `place`/README.md tells of them.

    That is the loss of the stored weights, rounded and computed in float32, and how often the
    drafter has the argmax of `large`.
    """
    for name, model in models.items():
        model = model.to(torch.bfloat16)
        save_model(model, work / "tokenizer.json", place / name, CHAT_TEMPLATE, END, END_OF_TEXT)
        model.float()
        loss, _ = held_out([model], validation, recipe.context, recipe.validation_windows)
        count = sum(weight.numel() for weight in model.parameters())
        print(f"{name}: {count:,} parameters, validation loss {loss:.3f}")
    pair = [models["large"], models["drafter"]]
    agreement = held_out(pair, validation, recipe.context, recipe.validation_windows)[1]
    print(f"agreement of drafter and large: {agreement:.1%}")


if __name__ == "__main__":
    main(sys.argv[1:])
