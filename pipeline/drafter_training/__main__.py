"""Train a drafter's head: ``python -m pipeline.drafter_training drafter``.

The first argument is one of `heads` of conf/drafter_training.yaml; overrides follow as KEY=VALUE.
It reads the text in assets/smollm2/training_text and what `generate` wrote since, lets the target
read it once (outputs/drafter_training/features), trains, and writes the head to
assets/smollm2/NAME. A run that was stopped goes on after the last whole shard or checkpoint.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from pipeline.console import command
from pipeline.drafter_training import features, train
from pipeline.drafter_training.features import round_products
from pipeline.drafter_training.generate import load, recipe_of
from pipeline.drafter_training.openings import ngrams
from pipeline.errors import PipelineError
from pipeline.models.heads.feature_head import FeatureHead
from pipeline.models.heads.head_files import read_weights, save_head
from pipeline.models.language_model import LanguageModel
from pipeline.paths import ASSETS, OUTPUTS

CARD = """# {name}

A head that drafts for {target}: it reads the target's hidden states after {layers} of its layers
and the embedding of the next token, and predicts the one after. One decoder layer of width {width}
(after EAGLE-3, arXiv 2503.01840), {parameters:,} parameters in bfloat16. Embedding and output
projection are the target's own and are not in this directory. `d2t` in `model.safetensors` names
the {vocabulary:,} tokens of its reduced vocabulary (`drafter.head.vocabulary=reduced`).

Trained by `python -m pipeline.drafter_training {name}` on text that the target wrote itself
(`assets/smollm2/training_text/`): {conversations:,} conversations, {answer_tokens:,} answer
tokens. Settings are in `conf/drafter_training.yaml`. Loss: cross-entropy to the target's
distribution and distance to its last hidden state; {passes}.
Optimizer: Muon, for norms AdamW; products in {products}.

Its argmax, of the {vocabulary:,} tokens, is the target's at this share of the {held_out:,} answer
tokens of conversations that were held out:

| depth of the draft | {depths} |
|---|{rules}|
| share | {shares} |

The text is a model's and has its mistakes; the head has learned to predict that model and nothing
else. Licence: Apache-2.0, as the model whose text and states it was trained on.
"""


def write_card(
    folder: Path, name: str, target: str, settings: Any, measured: Mapping[str, Any]
) -> None:
    """Write README.md beside a head's weights.

    Args:
        folder: of the head.
        name: of the head in the recipe.
        target: printed name of the target.
        settings: of the training.
        measured: parameters, width, conversations, answer_tokens, held_out and agreement, by depth.
    """
    agreement: Sequence[float] = measured["agreement"]
    text = CARD.format(
        name=name,
        target=target,
        layers=", ".join(map(str, settings.layers)),
        vocabulary=settings.vocabulary,
        passes=_passes(settings),
        products="bfloat16" if settings.bfloat16 else "float32",
        depths=" | ".join(str(depth) for depth in range(1, len(agreement) + 1)),
        rules="|".join("---:" for _ in agreement),
        shares=" | ".join(f"{100 * share:.1f} %" for share in agreement),
        **{key: value for key, value in measured.items() if key != "agreement"},
    )
    (folder / "README.md").write_text(text)


def _passes(settings: Any) -> str:
    """Return how often it was trained on the text, and at which depths."""
    counts = (
        (settings.epochs, "depth 1 of a draft"),
        (settings.deep_epochs, f"depths 1 to {settings.depth}"),
    )
    passes = ", then ".join(f"{count} passes at {depths}" for count, depths in counts if count)
    return f"from the weights in `{settings.start}`, {passes}" if settings.start else passes


SHAPE = (  # of the head's layer, as the target's
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "hidden_act",
    "max_position_embeddings",
    "vocab_size",
)


def main(arguments: list[str]) -> None:
    """Train one head."""
    with command("python -m pipeline.drafter_training HEAD [OVERRIDES]", __doc__, arguments):
        try:
            name, *overrides = arguments or [""]
            recipe = recipe_of(overrides)
            if name not in recipe.heads:
                raise PipelineError(f"head {name!r}: give one of {', '.join(recipe.heads)}")
            directory = Path(recipe.directory or OUTPUTS / "drafter_training")
            directory.mkdir(parents=True, exist_ok=True)
            with FileLock(directory / f"{name}.lock", timeout=0):
                run(recipe, name, directory)
        except Timeout:
            raise SystemExit(f"error: {directory}: another process trains {name} there") from None


def run(recipe: Any, name: str, directory: Path) -> None:
    """Train the head `name` of `recipe`, and write it."""
    torch.manual_seed(recipe.seed)
    target, tokenizer = load(recipe)
    layers = tuple(recipe.train.layers)
    if recipe.train.bfloat16:
        round_products(target.module.model)  # not its projection, which the losses need exactly
    examples = read_examples(recipe, directory, target, tokenizer, layers)
    chosen = {**recipe.train, **recipe.heads[name], "seed": recipe.seed}
    settings = SimpleNamespace(**chosen | {"layers": layers})
    count = round(len(examples) * settings.held_out)
    held_out = examples[len(examples) - count :]  # written last: no earlier head was trained on it
    rest = np.random.default_rng(recipe.seed).permutation(len(examples) - count)
    used = [examples[i] for i in rest[: round(settings.share * len(rest))]]
    if not used or not held_out:
        raise PipelineError(
            f"{directory}: {len(examples)} conversations are too few to train on and to hold "
            "some out: let `python -m pipeline.drafter_training.generate` write more"
        )
    if not 0 < settings.vocabulary < target.vocab_size:
        raise PipelineError(
            f"train.vocabulary={settings.vocabulary}: give an integer above 0 and below "
            f"{target.vocab_size}, the target's"
        )
    config = target.module.config
    shape = {key: getattr(config, key) for key in SHAPE}
    shape |= {"intermediate_size": settings.intermediate_size}
    shape |= {"rope_theta": config.rope_parameters["rope_theta"]}
    head = FeatureHead(shape, len(layers))
    if settings.start is None:
        train.initial(head, target.module.model.norm.weight)
    else:
        read_weights(head, Path(settings.start))
    drafted = train.drafted_tokens(used, settings.vocabulary, target.eos)
    vocabulary = train.Vocabulary(
        target.module.get_input_embeddings().weight,
        target.module.get_output_embeddings().weight,
        drafted,
    )
    print(f"{name}: {len(used)} conversations, {_answer_tokens(used)} answer tokens", flush=True)
    head = train.train(head, vocabulary, used, held_out, settings, directory / name)
    agreed = train.agreement(head, vocabulary, held_out, 4)
    folder = ASSETS / "smollm2" / name
    save_head(head, shape, layers, drafted, folder)
    measured = {
        "parameters": sum(parameter.numel() for parameter in head.parameters()),
        "width": config.hidden_size,
        "conversations": len(used),
        "answer_tokens": _answer_tokens(used),
        "held_out": _answer_tokens(held_out),
        "agreement": agreed,
    }
    write_card(folder, name, target.label, settings, measured)
    print(f"{folder}: agreement by depth {agreed}", flush=True)


def read_examples(
    recipe: Any, directory: Path, target: LanguageModel, tokenizer: Any, layers: tuple[int, ...]
) -> list[features.Example]:
    """Return all conversations but those whose question is near one of the study's prompts."""
    texts = (ASSETS / "smollm2" / "prompts.jsonl").read_text().splitlines()
    n = recipe.generate.ngram_of_study
    study = {gram for line in texts for gram in ngrams(json.loads(line)["prompt"], n)}
    found = []
    for shard in features.shards([ASSETS / "smollm2" / "training_text", directory]):
        conversations, file = features.read(shard), features.file_of(directory, shard.name)
        if not file.exists():
            count = features.extract(target.module, layers, conversations, file)
            print(f"{file.name}: hidden states of {count} tokens", flush=True)
        for example in features.examples(conversations, layers, file):
            asked = tokenizer.decode(example.tokens[: example.answer_at], skip_special_tokens=True)
            if not ngrams(asked, n) & study:
                found.append(example)
    return found


def _answer_tokens(examples: list[features.Example]) -> int:
    return sum(len(one.tokens) - one.answer_at for one in examples)


if __name__ == "__main__":
    main(sys.argv[1:])
