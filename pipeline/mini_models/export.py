"""Write the trained models, their tokenizer and their card to assets/mini/."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, metadata, packages_distributions
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipeline.mini_models.dataset import CHAT_TEMPLATE, END, END_OF_TEXT, Tokens
from pipeline.mini_models.train import argmax_agreement, validation_loss
from pipeline.models.load import save_model

CARD = """# Model card: the embedded models

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
        loss = validation_loss(stored[name], validation, recipe.context, recipe.validation_windows)
        count = sum(weight.numel() for weight in model.parameters())
        shape = recipe.models[name]
        rows.append(
            f"| {name} | {shape.hidden_size} | {shape.layers} | {shape.heads} "
            f"({shape.kv_heads}) | {count:,} | {shape.steps} | {loss:.3f} |"
        )
    facts = json.loads((work / "corpus.json").read_text())
    card = CARD.format(
        rows="\n".join(rows),
        windows=recipe.validation_windows,
        context=recipe.context,
        batch=recipe.batch,
        vocab_size=recipe.vocab_size,
        agreement=argmax_agreement(stored["large"], stored["drafter"], validation, recipe),
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
