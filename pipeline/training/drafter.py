"""Train a head that drafts: ``python -m pipeline.training.drafter drafter``.

The first argument is one of `heads` of conf/drafter_training.yaml; overrides follow as KEY=VALUE.
It reads the text in assets/smollm2/training_text and what `pipeline.training.text` wrote since,
lets the target read it once (outputs/drafter_training/features), trains, and writes the head to
assets/smollm2/NAME. A run that was stopped goes on after the last whole shard or checkpoint.

With train.epochs=0 train.deep_epochs=0 train.start=DIRECTORY nothing is trained or written: the
head in DIRECTORY is measured on the held-out text.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from pipeline.console import command
from pipeline.errors import PipelineError
from pipeline.models.heads.feature_head import FeatureHead
from pipeline.models.heads.head_files import read_weights, save_head
from pipeline.models.language_model import LanguageModel
from pipeline.paths import ASSETS
from pipeline.training import features, head
from pipeline.training.features import Example, round_products
from pipeline.training.questions import ngrams
from pipeline.training.text import alone, load_target, recipe_of, study_prompts

HEAD_CARD = """# {name}

A head that drafts for {target}: it reads the target's hidden states after {layers} of its layers
and the embedding of the next token, and predicts the one after. One decoder layer of width {width}
(after EAGLE-3, arXiv 2503.01840), {parameters:,} parameters in bfloat16. Embedding and output
projection are the target's own and are not in this directory. `d2t` in `model.safetensors` names
the {vocabulary:,} tokens of its reduced vocabulary (`drafter.head.vocabulary=reduced`).

Trained by `python -m pipeline.training.drafter {name}` on text that the target wrote itself
(`assets/smollm2/training_text/`): {conversations:,} conversations, {answer_tokens:,} answer
tokens. Settings are in `conf/drafter_training.yaml`. Loss: cross-entropy to the target's
distribution and distance to its last hidden state; {passes}.
Optimizer: Muon, for norms AdamW; products in {products}. The weights are those of the report that
drafted best on held-out text.

On {held_out:,} answer tokens of conversations that were held out, its argmax, of the
{vocabulary:,} tokens, is the target's at these shares of the first tokens of the answers; and a
call of the target, with 2 tokens drafted, gives so many tokens:

| | {depths} | tokens a call |
|---|{rules}---:|
{rows}

The text is a model's and has its mistakes; the head has learned to predict that model and nothing
else. Licence: Apache-2.0, as the model whose text and states it was trained on.
"""
AS_TARGET = (  # of the head's layer, as the target's
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps"),
    *("hidden_act", "max_position_embeddings", "vocab_size"),
)


def main(arguments: list[str]) -> None:
    """Train one head."""
    with command("python -m pipeline.training.drafter HEAD [OVERRIDES]", __doc__, arguments):
        name, *overrides = arguments or [""]
        recipe = recipe_of(overrides)
        if name not in recipe.heads:
            raise PipelineError(f"head {name!r}: give one of {', '.join(recipe.heads)}")
        with alone(recipe, name) as directory:
            train_drafter(recipe, name, directory)


def train_drafter(recipe: Any, name: str, directory: Path) -> None:
    """Train the head `name` of `recipe`, and write it; or only measure it."""
    torch.manual_seed(recipe.seed)
    target, tokenizer = load_target(recipe)
    chosen = {**recipe.train, **recipe.heads[name], "seed": recipe.seed}
    settings = SimpleNamespace(**chosen | {"layers": tuple(recipe.train.layers)})
    trained = settings.epochs + settings.deep_epochs > 0
    if not trained and settings.start is None:
        raise PipelineError("train.epochs=0 train.deep_epochs=0: name a head by train.start")
    if not 0 < settings.vocabulary < target.vocab_size:
        raise PipelineError(
            f"train.vocabulary={settings.vocabulary}: give an integer above 0 and below "
            f"{target.vocab_size}, the target's"
        )
    if settings.bfloat16:
        round_products(target.module.model)  # not its projection, which the losses need exactly
    rest, held_out = read_examples(
        directory, target, tokenizer, settings, recipe.generate.ngram_of_study, all_states=trained
    )
    order = np.random.default_rng(recipe.seed).permutation(len(rest))
    used = [rest[i] for i in order[: round(settings.share * len(rest))]]
    if not used or not held_out:
        raise PipelineError(
            f"{directory}: {len(rest) + len(held_out)} conversations are too few to train on and "
            "to hold some out: let `python -m pipeline.training.text` write more"
        )
    config = target.module.config
    shape = {key: getattr(config, key) for key in AS_TARGET}
    shape |= {"intermediate_size": settings.intermediate_size}
    shape |= {"rope_theta": config.rope_parameters["rope_theta"]}
    made = FeatureHead(shape, len(settings.layers))
    if settings.start is None:
        head.initial(made, target.module.model.norm.weight)
    else:
        read_weights(made, Path(settings.start))
    projection = target.module.get_output_embeddings().weight
    vocabulary = head.Vocabulary(
        target.module.get_input_embeddings().weight,
        projection,
        head.drafted_tokens(used, settings.vocabulary, target.eos),
    )
    print(f"{name}: {len(used)} conversations, {_answer_tokens(used)} answer tokens", flush=True)
    if trained:
        some = head.HeldOut(held_out[::4], projection)
        head.train_head(made, vocabulary, used, some, settings, directory / name)
    found = head.HeldOut(held_out, projection).measured(made, vocabulary, 4)
    for key, value in found.items():
        print(f"{key}: {value:.3f}", flush=True)
    if not trained:
        return
    folder = ASSETS / "smollm2" / name
    save_head(made, shape, settings.layers, vocabulary.drafted, folder)
    facts = {
        "parameters": sum(parameter.numel() for parameter in made.parameters()),
        "width": config.hidden_size,
        "conversations": len(used),
        "answer_tokens": _answer_tokens(used),
        "held_out": _answer_tokens(held_out),
    }
    write_card(folder, name, target.label, settings, facts, found)
    print(f"{folder}: written", flush=True)


def write_card(
    folder: Path,
    name: str,
    target: str,
    settings: Any,
    facts: Mapping[str, int],
    found: Mapping[str, float],
) -> None:
    """Write README.md beside a head's weights.

    Args:
        folder: of the head.
        name: of the head in the recipe.
        target: printed name of the target.
        settings: of the training.
        facts: parameters, width, conversations, answer_tokens and held_out.
        found: as of `pipeline.training.head.HeldOut.measured`.
    """
    depths = sum(key.endswith(f"of first {head.FIRST[0]}") for key in found)
    rows = []
    for first in head.FIRST:
        shares = [f"{100 * found[f'share {d + 1} of first {first}']:.1f} %" for d in range(depths)]
        per_call = f"{found[f'tokens a call, first {first}']:.3f}"
        rows.append(f"| first {first} | {' | '.join(shares)} | {per_call} |")
    text = HEAD_CARD.format(
        name=name,
        target=target,
        layers=", ".join(map(str, settings.layers)),
        vocabulary=settings.vocabulary,
        passes=_passes(settings),
        products="bfloat16" if settings.bfloat16 else "float32",
        depths=" | ".join(f"depth {depth + 1}" for depth in range(depths)),
        rules="---:|" * depths,
        rows="\n".join(rows),
        **facts,
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


def read_examples(
    directory: Path,
    target: LanguageModel,
    tokenizer: Any,
    settings: Any,
    ngram_of_study: int,
    *,
    all_states: bool,
) -> tuple[list[Example], list[Example]]:
    """Return the conversations to train on and those held out, the last that were written.

    No question is near one of the study's prompts. Without `all_states` only those held out have
    hidden states, which take long to compute.
    """
    n = ngram_of_study
    study = {gram for prompt in study_prompts() for gram in ngrams(prompt, n)}
    shards = {}
    for shard in features.shards([ASSETS / "smollm2" / "training_text", directory]):
        shards[shard] = features.read_shard(shard)
    kept = []
    for shard, conversations in shards.items():
        for at, one in enumerate(conversations):
            asked = tokenizer.decode(one.tokens[: one.answer_at], skip_special_tokens=True)
            if not ngrams(asked, n) & study:
                kept.append((shard, at))
    first = len(kept) - round(len(kept) * settings.held_out)
    for shard in dict.fromkeys(shard for shard, _ in kept[0 if all_states else first :]):
        file = directory / "features" / f"{shard.stem}.safetensors"
        if not file.exists():
            count = features.extract(target.module, settings.layers, shards[shard], file)
            print(f"{file.name}: hidden states of {count} tokens", flush=True)
        shards[shard] = features.with_hidden(shards[shard], settings.layers, file)
    examples = [shards[shard][at] for shard, at in kept]
    return examples[:first], examples[first:]


def _answer_tokens(examples: Sequence[Example]) -> int:
    return sum(one.answer_tokens for one in examples)


if __name__ == "__main__":
    main(sys.argv[1:])
