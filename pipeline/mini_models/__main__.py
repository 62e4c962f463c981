"""Make the embedded models: ``python -m pipeline.mini_models [NAME ...]`` (``make mini-models``).

Corpus, tokenizer and checkpoints stay in outputs/mini_models/; an interrupted run goes on
where it was. When all models of the recipe are trained, tokenizer, weights (bfloat16) and
model card are written to assets/mini/.
"""

from __future__ import annotations

import sys

from omegaconf import OmegaConf
from torch import nn

from pipeline.mini_models import dataset, export
from pipeline.mini_models.train import train
from pipeline.paths import ASSETS, CONF, OUTPUTS


def main(names: list[str]) -> None:
    """Train the named models (all when none is named), then export what is complete."""
    recipe = OmegaConf.load(CONF / "mini_models.yaml")
    unknown = set(names) - set(recipe.models)
    if unknown:
        raise SystemExit(f"unknown model {sorted(unknown)}; known: {list(recipe.models)}")
    directory = OUTPUTS / "mini_models"
    directory.mkdir(parents=True, exist_ok=True)
    data = dataset.prepare_data(directory, list(recipe.packages), recipe.vocab_size, recipe.seed)
    trained: dict[str, nn.Module] = {}
    for name in names or recipe.models:
        teacher_name = recipe.models[name].teacher
        teacher = None
        if teacher_name is not None:
            teacher = trained.get(teacher_name) or train(recipe, teacher_name, data, directory)
        trained[name] = train(recipe, name, data, directory, teacher)
    if len(trained) == len(recipe.models):
        export.export(recipe, trained, data, directory, ASSETS / "mini")


if __name__ == "__main__":
    main(sys.argv[1:])
