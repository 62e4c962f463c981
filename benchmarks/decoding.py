"""Time greedy decoding with a drafter against transformers' own generation.

``make bench-decoding`` or ``python -m benchmarks.decoding study=mini``, with the overrides of
``python -m pipeline``; decoding.prompts and decoding.steps count, draft lengths are LENGTHS. Same
target, prompts and draft length; every prompt is decoded by all ways in turn, in one process.
Transformers drafts with the same model, or, where the drafter is a head, which it can't load, by
prompt look-up. Prints milliseconds a token (medians over prompts), the paired ratios to the target
alone with their interval over prompts, and whether all gave the same tokens.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_dir

from pipeline import cli
from pipeline.decoding.choices import Greedy
from pipeline.decoding.drafters import Drafter, Nothing, model_drafter
from pipeline.decoding.lookup import LookupFirst, PromptLookup
from pipeline.decoding.loop import decode
from pipeline.decoding.verifiers import Match
from pipeline.execution import runner
from pipeline.models.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.pair import load_pair
from pipeline.paths import CONF

LENGTHS, RESAMPLES = (2, 3, 4, 5), 2000
ALONE = "target alone, this project"
Decoder = Callable[[list[int]], list[int]]


def main(overrides: list[str]) -> None:
    """Compare all ways to decode for the first target of the configuration."""
    target, drafter, prompts, config = load(overrides)
    print(
        f"{target.label} and {drafter.label}, {len(prompts)} prompts, {config['steps']} tokens, "
        f"{torch.get_num_threads()} threads"
    )
    for gamma in LENGTHS:
        compare(gamma, decoders(target, drafter, gamma, config), prompts)


def load(
    overrides: list[str],
) -> tuple[LanguageModel, LanguageModel | HiddenDrafter, list[list[int]], Mapping[str, Any]]:
    """Return the first target of a study, its drafter, the tokens of its prompts, and settings."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides)
    _, nodes, store = cli.prepare(config)
    node = nodes["decoding"][0]
    prompts = runner.ensure([node.upstream["prompts"][0]], store)[0].read().to_pylist()
    target, drafter = load_pair(node.config, node.settings, f"targets.{node.label}")
    chosen = [row["token_ids"] for row in prompts[: node.config["prompts"]]]
    return target, drafter, chosen, node.config


def decoders(
    target: LanguageModel,
    drafter: LanguageModel | HiddenDrafter,
    gamma: int,
    config: Mapping[str, Any],
) -> dict[str, Decoder]:
    """Return every way to decode, by name."""
    device, steps = target.device, config["steps"]
    lookup = PromptLookup(config["lookup"], device)

    def own(make: Callable[[], Drafter], count: int) -> Decoder:
        return lambda ids: decode(target, make(), Match(Greedy()), ids, count, steps).tokens

    def model() -> Drafter:
        return model_drafter(drafter, Greedy())

    def lookup_first() -> Drafter:
        return LookupFirst(lookup, model())

    assisted: dict[str, Any] = {"prompt_lookup_num_tokens": gamma}
    if isinstance(drafter, LanguageModel):
        assisted = {"assistant_model": assistant(drafter, gamma)}
    return {
        ALONE: own(lambda: Nothing(device), 0),
        "the drafter": own(model, gamma),
        "look-up first, else the drafter": own(lookup_first, gamma),
        "prompt look-up": own(lambda: lookup, gamma),
        "target alone, transformers": generate(target, steps, {}),
        f"transformers, {next(iter(assisted))}": generate(target, steps, assisted),
    }


def assistant(drafter: LanguageModel, gamma: int) -> Any:
    """Return the drafter's module set to draft exactly `gamma` tokens a call."""
    settings = drafter.module.generation_config
    settings.num_assistant_tokens = gamma
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0
    return drafter.module


def generate(target: LanguageModel, steps: int, assisted: dict[str, Any]) -> Decoder:
    """Return transformers' greedy generation, with a drafter or without."""

    def run(ids: list[int]) -> list[int]:
        text = torch.tensor([ids], device=target.device)
        with torch.inference_mode():
            out = target.module.generate(
                text,
                attention_mask=torch.ones_like(text),
                max_new_tokens=steps,
                do_sample=False,
                **assisted,
            )
        return out[0, len(ids) :].tolist()

    return run


def compare(gamma: int, ways: dict[str, Decoder], prompts: list[list[int]]) -> None:
    """Print what every way takes for a token, and how much faster it is than the target alone."""
    for way in ways.values():
        way(prompts[0])
    seconds = {name: np.empty(len(prompts)) for name in ways}
    tokens = {name: np.empty(len(prompts)) for name in ways}
    differ = dict.fromkeys(ways, 0)
    for at, ids in enumerate(prompts):
        answers = {}
        for turn in range(len(ways)):
            name = list(ways)[(turn + at) % len(ways)]
            started = time.perf_counter()
            answers[name] = ways[name](ids)
            seconds[name][at] = time.perf_counter() - started
            tokens[name][at] = len(answers[name])
        for name, answer in answers.items():
            differ[name] += answer != answers[ALONE]
    draws = np.random.default_rng(0).integers(len(prompts), size=(RESAMPLES, len(prompts)))
    print(f"draft length {gamma}")
    for name in ways:
        each = [sum(of[name][draws].T) for of in (seconds, tokens)]
        alone = [sum(of[ALONE][draws].T) for of in (seconds, tokens)]
        low, high = np.quantile((alone[0] / alone[1]) / (each[0] / each[1]), [0.025, 0.975])
        pace = seconds[name].sum() / tokens[name].sum()
        ratio = seconds[ALONE].sum() / tokens[ALONE].sum() / pace
        print(
            f"  {name:40} {1000 * pace:7.2f} ms a token, {ratio:5.2f} [{low:.2f}, {high:.2f}] "
            f"times the target alone; {differ[name]} answers differ"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
