"""Speed of decoding, compared with transformers and with bare passes of the model.

``python -m benchmarks.decoding speed [OVERRIDES]`` times greedy decoding with a drafter and
transformers' own generation, with the same target, prompts and draft lengths. All decoders take
each prompt in turn, in three rounds, and the median counts. Transformers drafts with the same model
or, if the drafter is a head, by prompt look-up. The output has milliseconds a token, ratios to the
target alone with their interval over prompts, the spread of the rounds, and the number of answers
that differ. decoding.prompts, decoding.steps and decoding.lookup_match apply. Words
NAME=http://HOST:PORT add servers of inference engines with the same target, which answer in turn
with the others. lengths=2,4 and rounds=2 give other draft lengths and rounds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import httpx2
import numpy as np
import torch

from pipeline.decoding.choices import Greedy
from pipeline.decoding.drafters import Drafter, Nothing, PromptLookup, model_drafter
from pipeline.decoding.loop import decode
from pipeline.decoding.verify import Match
from pipeline.engines.servers import Server, open_server, request_body
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.load import load_pair
from pipeline.stage import Json
from pipeline.study import Study

RESAMPLES = 2000
ALONE = "target alone, this project"
Decoder = Callable[[list[int]], list[int]]


def time_decoding(words: list[str]) -> None:
    """Compare all decoders on the first target of the configuration, servers among them."""
    own = {key: value for key, _, value in (word.partition("=") for word in words)
           if value.startswith("http") or key in ("lengths", "rounds")}  # fmt: skip
    overrides = [word for word in words if word.partition("=")[0] not in own]
    lengths = [int(length) for length in own.pop("lengths", "1,2,4").split(",")]
    rounds = int(own.pop("rounds", "3"))
    target, drafter, prompts, settings = load_inputs(overrides)
    print(
        f"{target.label} and {drafter.label}, {len(prompts)} prompts, {settings['steps']} tokens, "
        f"{torch.get_num_threads()} threads; the median of {rounds} rounds for each prompt"
    )
    ways = decoders(target, drafter, settings, lengths)
    ways |= {name: served(url, settings["steps"]) for name, url in own.items()}
    print_comparison(ways, prompts, rounds)


def connect(url: str) -> tuple[Server, httpx2.Client]:
    """Return the server of an inference engine at an address, and a client to ask it with."""

    async def opened() -> Server:
        async with httpx2.AsyncClient(trust_env=False) as asking:
            return await open_server(asking, url, None)

    return asyncio.run(opened()), httpx2.Client(timeout=600, trust_env=False)


def served(url: str, steps: int) -> Decoder:
    """Return greedy decoding by a server of an inference engine."""
    server, client = connect(url)

    def run(ids: list[int]) -> list[int]:
        request = request_body(server, ids, steps, 0.0)
        body = client.post(server.endpoint, json=request).raise_for_status().json()
        tokens: list[int] = body["choices"][0]["token_ids"] if "choices" in body else body["tokens"]
        return tokens

    return run


def load_inputs(
    overrides: list[str],
) -> tuple[LanguageModel, LanguageModel | HiddenDrafter, list[list[int]], Json]:
    """Return the first target of a study, its drafter, the tokens of its prompts, and settings."""
    study = Study(*overrides)
    task = study.task("decoding")
    prompts = study.store.get(task.inputs["prompts"]).read().to_pylist()
    target, drafter = load_pair(*task.runtime.models)
    chosen = [row["token_ids"] for row in prompts[: task.settings["prompts"]]]
    return target, drafter, chosen, task.settings


def decoders(
    target: LanguageModel,
    drafter: LanguageModel | HiddenDrafter,
    settings: Json,
    lengths: Sequence[int],
) -> dict[str, Decoder]:
    """Return every way to decode, by name."""
    device, steps = target.device, settings["steps"]

    def own(make: Callable[[int], Drafter], count: int) -> Decoder:
        return lambda ids: decode(target, make(count), Match(Greedy()), ids, count, steps).tokens

    def model(_: int) -> Drafter:
        return model_drafter(drafter, Greedy())

    def lookup(count: int) -> PromptLookup:
        return PromptLookup(settings["lookup"], count, device, settings["lookup_match"])

    decoders_by_name = {
        ALONE: own(lambda _: Nothing(device), 0),
        "target alone, transformers": generate(target, steps, lambda: {}),
    }
    for gamma in lengths:
        by_model = isinstance(drafter, LanguageModel)
        decoders_by_name |= {
            f"the drafter, {gamma}": own(model, gamma),
            f"prompt look-up, {gamma}": own(lookup, gamma),
            f"transformers, {'assistant' if by_model else 'prompt look-up'}, {gamma}": generate(
                target, steps, partial(assisted, drafter, gamma)
            ),
        }
    return decoders_by_name


def assisted(drafter: LanguageModel | HiddenDrafter, gamma: int) -> dict[str, Any]:
    """Return options with which transformers drafts `gamma` tokens a call; a head: by look-up."""
    if isinstance(drafter, HiddenDrafter):
        return {"prompt_lookup_num_tokens": gamma}
    settings = drafter.module.generation_config
    settings.num_assistant_tokens = gamma
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0
    return {"assistant_model": drafter.module}


def generate(target: LanguageModel, steps: int, options: Callable[[], dict[str, Any]]) -> Decoder:
    """Return transformers' greedy generation as a decoder."""

    def run(ids: list[int]) -> list[int]:
        text = torch.tensor([ids], device=target.device)
        with torch.inference_mode():
            out = target.module.generate(
                text,
                attention_mask=torch.ones_like(text),
                max_new_tokens=steps,
                do_sample=False,
                **options(),
            )
        return out[0, len(ids) :].tolist()

    return run


def print_comparison(
    decoders_by_name: dict[str, Decoder], prompts: list[list[int]], rounds: int
) -> None:
    """Print the time a token of every decoder, and its speedup over the target alone.

    All decoders take each prompt in turn, so that a disturbance of the machine affects all of them.
    The spread is the range of a prompt's times over their median, as a median over prompts.
    """
    names = list(decoders_by_name)
    for decoder in decoders_by_name.values():
        decoder(prompts[0])
    taken = {name: np.empty((rounds, len(prompts))) for name in names}
    answers: dict[str, dict[int, list[int]]] = {name: {} for name in names}
    for round_ in range(rounds):
        for index, ids in enumerate(prompts):
            for turn in range(len(names)):
                name = names[(turn + index + round_) % len(names)]
                started = time.perf_counter()
                answers[name][index] = decoders_by_name[name](ids)
                taken[name][round_, index] = time.perf_counter() - started
    seconds = {name: np.median(times, axis=0) for name, times in taken.items()}
    tokens = {name: np.array([len(texts[index]) for index in range(len(prompts))], float)
              for name, texts in answers.items()}  # fmt: skip
    draws = np.random.default_rng(0).integers(len(prompts), size=(RESAMPLES, len(prompts)))
    paces = {name: seconds[name][draws].sum(1) / tokens[name][draws].sum(1) for name in names}
    alone = seconds[ALONE].sum() / tokens[ALONE].sum()
    for name in names:
        pace = seconds[name].sum() / tokens[name].sum()
        low, high = np.quantile(paces[ALONE] / paces[name], [0.025, 0.975])
        spread = np.median(np.ptp(taken[name], axis=0) / seconds[name])
        differ = sum(answers[name][index] != answers[ALONE][index] for index in range(len(prompts)))
        print(
            f"  {name:40} {1000 * pace:7.2f} ms a token, {alone / pace:5.2f} [{low:.2f}, "
            f"{high:.2f}] times the target alone; spread {spread:.0%}; {differ} answers differ"
        )


if __name__ == "__main__":
    if sys.argv[1:2] != ["speed"]:
        raise SystemExit("give speed, then overrides")
    time_decoding(sys.argv[2:])
