"""Make the embedded models: ``python -m pipeline.training.mini [NAME ...]`` (``make mini-models``).

Corpus, tokenizer and checkpoints stay in outputs/mini_models/; an interrupted run goes on
where it was. When all models of the recipe are trained, tokenizer, weights (bfloat16) and
model card are written to assets/mini/.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, metadata, packages_distributions
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

MODEL_CARD = """# Model card: the embedded models

Three small language models with the Qwen3 architecture and one tokenizer, made by
`make mini-models` from the recipe `conf/mini_models.yaml`, so that the whole study runs
without a download. They imitate documentation; what they say is not to be relied on.

| model | hidden | layers | heads (kv) | parameters | steps | validation loss (nats a token) |
|---|---|---|---|---|---|---|
{rows}

- Weights: safetensors, bfloat16; the losses above are of the stored weights, computed in float32
  over the answer tokens of {windows} held-out windows of {context} tokens.
- Drafter: distilled from `large` (forward KL on the corpus). Its argmax equals that of `large` on
  {agreement:.1%} of the held-out answer tokens.
- Tokenizer: byte-level BPE, {vocab_size} tokens, trained on the training part; ChatML template.
- Data: the docstrings of the standard library of Python {python} and of the packages below,
  read from their installed source, formatted as one question and one answer, exact duplicates
  removed: {documents} documents and {tokens} tokens for training; one document in fifty, chosen by
  the hash of its text, is held out.
- Training: windows of {context} tokens, {batch} a step, Muon and Adam, bfloat16 autocast on a CPU,
  seeds in the recipe. It resumes from checkpoints; another machine gives other low bits.

## Corpus: packages, versions, licences

The docstrings keep the licences of their packages; the models are given under the project's own.

| package | version | licence |
|---|---|---|
| Python standard library | {python} | PSF-2.0 |
{licences}
"""


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
        teacher_name = recipe.models[name].teacher
        teacher = None
        if teacher_name is not None:
            teacher = trained.get(teacher_name) or train_model(
                recipe, teacher_name, data, directory
            )
        trained[name] = train_model(recipe, name, data, directory, teacher)
    if len(trained) == len(recipe.models):
        export(recipe, trained, data, directory, ASSETS / "mini")


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
    recipe: Any, models: dict[str, nn.Module], data: tuple[Tokens, Tokens], work: Path, place: Path
) -> None:
    """Write `place`/<model>/ and the card `place`/README.md."""
    validation = data[1]
    rows, stored = [], {}
    for name, model in models.items():
        model = model.to(torch.bfloat16)
        save_model(model, work / "tokenizer.json", place / name, CHAT_TEMPLATE, END, END_OF_TEXT)
        stored[name] = model.float()  # as it is computed with: rounded weights, float32
        loss, _ = held_out([stored[name]], validation, recipe.context, recipe.validation_windows)
        count = sum(weight.numel() for weight in model.parameters())
        shape = recipe.models[name]
        rows.append(
            f"| {name} | {shape.hidden_size} | {shape.layers} | {shape.heads} "
            f"({shape.kv_heads}) | {count:,} | {shape.steps} | {loss:.3f} |"
        )
    pair = [stored["large"], stored["drafter"]]
    facts = json.loads((work / "corpus.json").read_text())
    card = MODEL_CARD.format(
        rows="\n".join(rows),
        windows=recipe.validation_windows,
        context=recipe.context,
        batch=recipe.batch,
        vocab_size=recipe.vocab_size,
        agreement=held_out(pair, validation, recipe.context, recipe.validation_windows)[1],
        python=facts["python"],
        documents=f"{facts['training']['documents']:,}",
        tokens=f"{facts['training']['tokens']:,}",
        licences="\n".join(licence_row(package) for package in facts["packages"]),
    )
    (place / "README.md").write_text(card)
    print(card)


def licence_row(package: str) -> str:
    """Return the table row of an import name: distribution, version, licence."""
    names = packages_distributions().get(package, [package])
    try:
        found = metadata(names[0]).json
    except PackageNotFoundError:
        return f"| {package} | | |"
    classifiers = [
        name.split(" :: ")[-1]
        for name in found.get("classifier", [])
        if name.startswith("License ::")
    ]
    text = (
        found.get("license_expression")
        or ", ".join(classifiers)
        or str(found.get("license", "")).split("\n")[0]
    )
    return f"| {found['name']} | {found['version']} | {text} |"


if __name__ == "__main__":
    main(sys.argv[1:])
