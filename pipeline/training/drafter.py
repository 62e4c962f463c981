"""Train a head that drafts: ``python -m pipeline.training.drafter drafter``.

The first argument is the head's name; overrides of conf/drafter_training.yaml follow as KEY=VALUE.
It reads the text in assets/smollm2/training_text and what `pipeline.training.text` wrote since,
lets the target read it once (outputs/drafter_training/features), trains, and writes the head to
assets/smollm2/NAME; its README.md is for the printed numbers. A run that was stopped goes on after
the last whole shard or checkpoint.

With train.epochs=0 train.deep_epochs=0 train.start=DIRECTORY nothing is trained or written: the
head in DIRECTORY is measured on the held-out text.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.console import command
from pipeline.errors import PipelineError
from pipeline.models.heads.feature_head import FeatureHead, Norms
from pipeline.models.heads.head_files import OFFSETS, drafted_ids, own_head, read_weights, save_head
from pipeline.models.language_model import LanguageModel
from pipeline.paths import ASSETS
from pipeline.training import features, head
from pipeline.training.features import Example
from pipeline.training.loop import train_head
from pipeline.training.text import alone, load_target, ngrams, recipe_of, study_prompts

AS_TARGET = (  # of the head's layer, as the target's
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps"),
    *("hidden_act", "max_position_embeddings", "vocab_size"),
)


def main(arguments: list[str]) -> None:
    """Train one head."""
    with command("python -m pipeline.training.drafter HEAD [OVERRIDES]", __doc__, arguments):
        name, *overrides = arguments or [""]
        if not name or "=" in name:
            raise PipelineError("give the name of the head first, drafter say, then overrides")
        recipe = recipe_of(overrides)
        with alone(recipe, name) as directory:
            train_drafter(recipe, name, directory)


def train_drafter(recipe: Any, name: str, directory: Path) -> None:
    """Train the head `name` of `recipe`, and write it; or only measure it."""
    torch.manual_seed(recipe.seed)
    target, tokenizer = load_target(recipe, "float32")
    chosen = {**recipe.train, "seed": recipe.seed, "bfloat16": recipe.bfloat16}
    settings = SimpleNamespace(**chosen | {"layers": tuple(recipe.train.layers)})
    trained = settings.epochs + settings.deep_epochs > 0
    if not trained and settings.start is None:
        raise PipelineError("train.epochs=0 train.deep_epochs=0: name a head by train.start")
    if not 0 < settings.vocabulary < target.vocab_size:
        raise PipelineError(
            f"train.vocabulary={settings.vocabulary}: give an integer above 0 and below "
            f"{target.vocab_size}, the target's"
        )
    used, held_out = read_examples(
        directory, target, tokenizer, settings, recipe.generate.ngram_of_study, all_states=trained
    )
    if not used or not held_out:
        raise PipelineError(
            f"{directory}: {len(used) + len(held_out)} conversations are too few to train on and "
            "to hold some out: let `python -m pipeline.training.text` write more"
        )
    config = target.module.config
    shape = {key: getattr(config, key) for key in AS_TARGET}
    shape |= {"intermediate_size": settings.intermediate_size}
    shape |= {"rope_theta": config.rope_parameters["rope_theta"]}
    made = FeatureHead(shape, len(settings.layers), Norms(fc_norm=True))
    drafted = None
    if settings.start is None:
        head.initial(made, target)
    else:
        drafted = begin_from(made, settings.start, settings.layers)
    if drafted is None:
        drafted = head.drafted_tokens(used, settings.vocabulary, target.eos)
    for part, some in ((name, used), ("held out", held_out)):
        tokens = sum(len(conversation.tokens) - conversation.answer_at for conversation in some)
        print(f"{part}: {len(some)} conversations, {tokens} answer tokens", flush=True)
    if trained:
        fourth = head.HeldOut(held_out[::4], target, drafted)
        train_head(
            made,
            target,
            drafted,
            examples=used,
            held_out=fourth,
            recipe=settings,
            directory=directory / name,
        )
    measured = head.HeldOut(held_out, target, drafted).measured(made, 4)
    lengths = [len(conversation.tokens) for conversation in held_out]
    with torch.no_grad():
        losses = [
            head.loss(
                made,
                target,
                drafted,
                [held_out[i] for i in some],
                depth=settings.depth,
                step=0,
                recipe=settings,
            )
            for some in features.batches(range(len(held_out)), lengths, settings.tokens)
        ]
    measured[f"loss at depths 1 to {settings.depth}"] = float(torch.stack(losses).mean())
    for key, value in measured.items():
        print(f"{key}: {value:.3f}", flush=True)
    if not trained:
        return
    folder = ASSETS / "smollm2" / name
    save_head(made, shape, settings.layers, drafted, folder)
    print(f"{folder}: written", flush=True)


def begin_from(made: FeatureHead, start: str, layers: tuple[int, ...]) -> Tensor | None:
    """Give `made` the weights of the head in `start`; return the ids of the tokens it drafts.

    None where its files name none.

    Raises:
        PipelineError: it is no such head.
    """
    files, weights = own_head(start, "train.start"), read_weights(Path(start))
    shapes = {name: weights[name].shape for name in weights if name != OFFSETS}
    wanted = {name: value.shape for name, value in made.state_dict().items()}
    if (files.norms, files.layers, shapes) != (made.norms, layers, wanted):
        raise PipelineError(
            f"train.start={start}: it is no head of the shape that is trained here, with fc_norm "
            f"and layers {list(layers)}: give another one, or null to begin anew"
        )
    made.load_state_dict({name: weights[name] for name in wanted})
    return drafted_ids(weights[OFFSETS]) if OFFSETS in weights else None


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

    No question is near one of the study's prompts. Of the others `settings.share` is trained on, by
    whole shards in random order. Without `all_states` only those held out have hidden states, which
    take long to compute.
    """
    n = ngram_of_study
    study = {gram for prompt in study_prompts() for gram in ngrams(prompt, n)}
    shards = {}
    for shard in features.shards([ASSETS / "smollm2" / "training_text", directory]):
        shards[shard] = features.read_shard(shard)
    kept = []
    for shard, conversations in shards.items():
        for at, conversation in enumerate(conversations):
            question = tokenizer.decode(
                conversation.tokens[: conversation.answer_at], skip_special_tokens=True
            )
            if not ngrams(question, n) & study:
                kept.append((shard, at))
    first = len(kept) - round(len(kept) * settings.held_out)
    rest, held_out = kept[:first], kept[first:]
    order = {shard: i for i, shard in enumerate(shards)}
    rank = np.random.default_rng(settings.seed).permutation(len(order))
    rest.sort(key=lambda entry: rank[order[entry[0]]])  # stable: a shard stays in its order
    used = rest[: round(settings.share * len(rest))]
    needed = {shard for shard, _ in (used if all_states else []) + held_out}
    for shard in sorted(needed):
        file = directory / "features" / f"{shard.stem}.safetensors"
        if not features.whole(file):
            count = features.extract(
                target.module, settings.layers, shards[shard], file, settings.bfloat16
            )
            print(f"{file.name}: hidden states of {count} tokens", flush=True)
        shards[shard] = features.with_hidden(shards[shard], settings.layers, file)
    return [shards[a][i] for a, i in used], [shards[a][i] for a, i in held_out]


if __name__ == "__main__":
    main(sys.argv[1:])
