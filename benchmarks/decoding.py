"""Time greedy decoding with a drafter against transformers' assisted generation.

``make bench-decoding`` or ``python -m benchmarks.decoding study=mini``, with the overrides of
``python -m pipeline``. Same models, drafter, prompts and draft length; every prompt is decoded
by all of them in turn, in one process. Prints milliseconds a token (medians over prompts) and
the paired ratios, and whether all gave the same tokens.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from hydra import compose, initialize_config_dir

from pipeline import cli
from pipeline.execution import runner
from pipeline.models.load import LanguageModel, load_model
from pipeline.paths import CONF
from pipeline.stages.decoding.choices import Greedy
from pipeline.stages.decoding.drafters import ModelDrafter, Nothing
from pipeline.stages.decoding.loop import decode
from pipeline.stages.decoding.verifiers import Match

STEPS, LENGTHS, PROMPTS = 64, (3, 5, 7), 8
Decoder = Callable[[list[int]], list[int]]


def main(overrides: list[str]) -> None:
    """Compare all ways to decode for the first target of the configuration."""
    target, drafter, prompts = load_pair(overrides)
    prompts = prompts[:PROMPTS]
    print(
        f"{target.label} and {drafter.label}, {len(prompts)} prompts, {STEPS} tokens, "
        f"{torch.get_num_threads()} threads"
    )
    for gamma in LENGTHS:
        compare(gamma, decoders(target, drafter, gamma), prompts)


def load_pair(overrides: list[str]) -> tuple[LanguageModel, LanguageModel, list[list[int]]]:
    """Return the first target of a configuration, its drafter, and the tokens of its prompts."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides)
    _, nodes, store = cli.prepare(config)
    node = nodes["decoding"][0]
    prompts = runner.ensure([node.upstream["prompts"][0]], store)[0].read().to_pylist()
    target = load_model(node.config["target"], node.settings["target"], f"targets.{node.label}")
    drafter = load_model(node.config["drafter"], node.settings["drafter"], "drafter")
    return target, drafter, [row["token_ids"] for row in prompts]


def decoders(target: LanguageModel, drafter: LanguageModel, gamma: int) -> dict[str, Decoder]:
    """Return every way to decode, by name; the first is what the others are compared with."""
    strict = Match(Greedy())
    return {
        "assisted generation": generate(target, assistant(drafter, gamma)),
        "this project": lambda ids: (
            decode(target, ModelDrafter(drafter, Greedy()), strict, ids, gamma, STEPS).tokens
        ),
        "target alone, generate": generate(target, None),
        "target alone, this project": lambda ids: (
            decode(target, Nothing(target.device), strict, ids, 0, STEPS).tokens
        ),
    }


def assistant(drafter: LanguageModel, gamma: int) -> Any:
    """Return the drafter's module set to draft exactly `gamma` tokens a call."""
    settings = drafter.module.generation_config
    settings.num_assistant_tokens = gamma
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0
    return drafter.module


def generate(target: LanguageModel, assistant_model: Any) -> Decoder:
    """Return transformers' greedy generation, with a drafter or without."""
    extra = {} if assistant_model is None else {"assistant_model": assistant_model}

    def run(ids: list[int]) -> list[int]:
        text = torch.tensor([ids], device=target.device)
        with torch.inference_mode():
            out = target.module.generate(
                text,
                attention_mask=torch.ones_like(text),
                max_new_tokens=STEPS,
                do_sample=False,
                **extra,
            )
        return out[0, len(ids) :].tolist()

    return run


def compare(gamma: int, ways: dict[str, Decoder], prompts: list[list[int]]) -> None:
    """Print what every way takes for a token, and its ratio to the first, prompt by prompt."""
    for way in ways.values():
        way(prompts[0])
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    same = True
    for at, ids in enumerate(prompts):
        answers = {}
        for turn in range(len(ways)):
            name = list(ways)[(turn + at) % len(ways)]
            started = time.perf_counter()
            answers[name] = ways[name](ids)
            seconds[name].append((time.perf_counter() - started) / len(answers[name]))
        same &= len({tuple(answer) for answer in answers.values()}) == 1
    first = next(iter(seconds.values()))
    print(f"draft length {gamma}, {'equal' if same else 'DIFFERENT'} tokens")
    for name, mine in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(first, mine, strict=True))
        print(
            f"  {name:28} {1000 * statistics.median(mine):7.2f} ms a token, {ratio:5.2f} times "
            "the speed of assisted generation"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
