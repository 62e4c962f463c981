"""Speed of decoding, compared with transformers.

``python -m benchmarks.decoding [OVERRIDES]`` times greedy decoding with a drafter and
transformers' own generation, with the same target, prompts and draft lengths (lengths=2,4). All
decoders take each prompt in turn, in three rounds, and the median counts. Transformers drafts with
the same model or, if the drafter is a head, by prompt look-up. The output has milliseconds a token
and ratios to the target alone with their interval over prompts. decoding.prompts, decoding.steps,
decoding.lookup_match and statistics apply.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from analysis.decoding.speed import speed_bootstrap, speedups
from analysis.statistics.bootstrap import Resampling
from pipeline.decoding.loop import decode
from pipeline.decoding.proposers import Proposer
from pipeline.decoding.sampling import GreedySampler
from pipeline.decoding.verification import ExactMatch
from pipeline.drafters import PromptLookup
from pipeline.drafters.pairs import load_pair
from pipeline.models.eagle3.drafter import Eagle3Drafter
from pipeline.models.language_model import LanguageModel
from pipeline.study import Study

ROUNDS = 3
Decoder = Callable[[list[int]], list[int]]


def time_decoding(words: list[str]) -> None:
    """Compare all decoders on the first target of the configuration; the first is it alone."""
    given = [word for word in words if word.startswith("lengths=")]
    study = Study(*(word for word in words if word not in given))
    lengths = "1,2,4" if not given else given[0].removeprefix("lengths=")
    task = study.task("decoding")
    settings = task.settings
    rows = study.store.get(task.inputs["prompts"]).read().to_pylist()
    prompts = [row["token_ids"] for row in rows[: settings["prompts"]]]
    target, drafter = load_pair(*task.runtime.models)
    steps = settings["steps"]
    device = target.device

    def own(source: Callable[[], Proposer], count: int) -> Decoder:
        return lambda ids: (
            decode(target, source(), ExactMatch(GreedySampler()), ids, count, steps).tokens
        )

    ways = {
        "target alone, this project": own(lambda: Proposer(device), 0),
        "target alone, transformers": generate(target, steps, None, 0),
    }
    lookup = PromptLookup(settings["lookup"], settings["lookup_match"]).proposer(
        GreedySampler(), None, device
    )
    for gamma in map(int, lengths.split(",")):
        ways[f"the drafter, {gamma}"] = own(
            lambda: drafter.proposer(GreedySampler(), None, device), gamma
        )
        ways[f"prompt look-up, {gamma}"] = own(lambda: lookup, gamma)
        ways[f"transformers, {gamma}"] = generate(target, steps, drafter.model, gamma)
    print(
        f"{target.label} and {drafter.model.label}, {len(prompts)} prompts, {steps} tokens, "
        f"{torch.get_num_threads()} threads; the median of {ROUNDS} rounds for each prompt"
    )
    print_comparison(ways, prompts, study.statistics)


def generate(
    target: LanguageModel, steps: int, drafter: LanguageModel | Eagle3Drafter | None, gamma: int
) -> Decoder:
    """Return transformers' greedy generation, with `gamma` drafted tokens a call."""
    options = {}
    if isinstance(drafter, Eagle3Drafter):
        options["prompt_lookup_num_tokens"] = gamma
    elif drafter is not None:
        options["assistant_model"] = drafter.module

    def run(ids: list[int]) -> list[int]:
        if isinstance(drafter, LanguageModel):
            own = drafter.module.generation_config
            own.num_assistant_tokens = gamma
            own.num_assistant_tokens_schedule = "constant"
            own.assistant_confidence_threshold = 0.0
        text = torch.tensor([ids], device=target.device)
        with torch.inference_mode():
            out = target.module.generate(
                text,
                attention_mask=torch.ones_like(text),
                max_new_tokens=steps,
                do_sample=False,
                **options,
            )
        return out[0, len(ids) :].tolist()

    return run


def print_comparison(
    ways: dict[str, Decoder], prompts: list[list[int]], statistics: Resampling
) -> None:
    """Print the time a token of every decoder, in turn at each prompt, and its speedup."""
    names = list(ways)
    for decoder in ways.values():
        decoder(prompts[0])  # the first call is slow
    taken = np.empty((ROUNDS, len(prompts), len(names)))
    tokens = np.empty((len(prompts), len(names)))
    for round_, at in np.ndindex(ROUNDS, len(prompts)):
        for turn in range(len(names)):
            way = (turn + at + round_) % len(names)
            started = time.perf_counter()
            tokens[at, way] = len(ways[names[way]](prompts[at]))
            taken[round_, at, way] = time.perf_counter() - started
    seconds = np.median(taken, axis=0)
    others = range(1, len(names))
    bootstrap = speed_bootstrap(len(prompts), *statistics)
    times = speedups(seconds, tokens, [0] * len(names), [others], bootstrap)
    paces = 1000 * seconds.sum(0) / tokens.sum(0)
    for name, pace, (ratio, low, high) in zip(names, paces, np.transpose(times), strict=True):
        print(
            f"  {name:40} {pace:7.2f} ms a token, {ratio:5.2f} [{low:.2f}, {high:.2f}] times the "
            "target alone"
        )


if __name__ == "__main__":
    time_decoding(sys.argv[1:])
