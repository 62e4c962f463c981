"""Compares decoding with transformers, and with bare passes of the model.

``python -m benchmarks.decoding speed [OVERRIDES]`` times greedy decoding with a drafter beside
transformers' own generation: same target, prompts and draft lengths, every prompt by all ways in
turn, three rounds, of which the median counts. Transformers drafts with the same model, or, where
the drafter is a head, by prompt look-up. Prints milliseconds a token, ratios to the target alone
with their interval over prompts, how far the rounds are apart, and whether all gave the same
tokens; decoding.prompts and decoding.steps count.

``scored`` decodes the prompts of a study as stage distributions does, scores the same answers in
passes, and prints seconds, memory, and how far tokens, logits and certificates are apart.

``passes`` times passes over n tokens after a prompt of 160, of study=smollm2, with transformers'
own linear maps and attention, and with those of `pipeline.models.few_rows`. With device.threads=1
the processor's time is counted, which other programs disturb less.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analysis.certificates.certify import certify
from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import Floats
from analysis.topk import TopK
from pipeline.decoding.choices import Greedy
from pipeline.decoding.drafters import Drafter, LookupFirst, Nothing, PromptLookup, model_drafter
from pipeline.decoding.loop import decode
from pipeline.decoding.verifiers import Match
from pipeline.execution import runner
from pipeline.execution.stopwatch import Stopwatch, peak_memory
from pipeline.models import few_rows
from pipeline.models.heads.hidden_drafter import HiddenDrafter
from pipeline.models.language_model import LanguageModel
from pipeline.models.load import load_model, load_pair
from pipeline.models.passes import Text
from pipeline.plan.composition import composed
from pipeline.plan.graph import prepare
from pipeline.plan.specs import DecodingSpec
from pipeline.plan.stage import models_of
from pipeline.stages.distributions.decode import Found, decode_batch, score_batch

LENGTHS, ROUNDS, RESAMPLES = (1, 2, 4), 3, 2000
MODEL_LENGTH = 2  # tokens that the model drafts where look-up finds nothing
ALONE = "target alone, this project"
Decoder = Callable[[list[int]], list[int]]


def time_decoding(overrides: list[str]) -> None:
    """Compare all ways to decode for the first target of the configuration."""
    target, drafter, prompts, spec = load_inputs(overrides)
    print(
        f"{target.label} and {drafter.label}, {len(prompts)} prompts, {spec.steps} tokens, "
        f"{torch.get_num_threads()} threads; the median of {ROUNDS} rounds for each prompt"
    )
    print_comparison(decoders(target, drafter, spec), prompts)


def load_inputs(
    overrides: list[str],
) -> tuple[LanguageModel, LanguageModel | HiddenDrafter, list[list[int]], DecodingSpec]:
    """Return the first target of a study, its drafter, the tokens of its prompts, and settings."""
    _, nodes, store = prepare(composed(overrides))
    node = nodes["decoding"][0]
    prompts = runner.ensure([node.upstream["prompts"][0]], store)[0].read().to_pylist()
    target, drafter = load_pair(*models_of(node))
    spec: DecodingSpec = node.spec
    chosen = [row["token_ids"] for row in prompts[: spec.prompts]]
    return target, drafter, chosen, spec


def decoders(
    target: LanguageModel, drafter: LanguageModel | HiddenDrafter, spec: DecodingSpec
) -> dict[str, Decoder]:
    """Return every way to decode, by name."""
    device, steps = target.device, spec.steps
    lookup = PromptLookup(spec.lookup, device)

    def own(make: Callable[[], Drafter], count: int) -> Decoder:
        return lambda ids: decode(target, make(), Match(Greedy()), ids, count, steps).tokens

    def model() -> Drafter:
        return model_drafter(drafter, Greedy())

    ways = {
        ALONE: own(lambda: Nothing(device), 0),
        "target alone, transformers": generate(target, steps, lambda: {}),
    }
    for gamma in LENGTHS:
        by_model = isinstance(drafter, LanguageModel)
        ways |= {
            f"the drafter, {gamma}": own(model, gamma),
            f"look-up first, else the drafter, {gamma}": own(
                lambda: LookupFirst(lookup, model(), MODEL_LENGTH), gamma
            ),
            f"prompt look-up, {gamma}": own(lambda: lookup, gamma),
            f"transformers, {'assistant' if by_model else 'prompt look-up'}, {gamma}": generate(
                target, steps, partial(assisted, drafter, gamma)
            ),
        }
    return ways


def assisted(drafter: LanguageModel | HiddenDrafter, gamma: int) -> dict[str, Any]:
    """Return what lets transformers draft exactly `gamma` tokens a call: by look-up for a head."""
    if isinstance(drafter, HiddenDrafter):
        return {"prompt_lookup_num_tokens": gamma}
    settings = drafter.module.generation_config
    settings.num_assistant_tokens = gamma
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0
    return {"assistant_model": drafter.module}


def generate(target: LanguageModel, steps: int, options: Callable[[], dict[str, Any]]) -> Decoder:
    """Return transformers' greedy generation, with a drafter or without."""

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


def print_comparison(ways: dict[str, Decoder], prompts: list[list[int]]) -> None:
    """Print what every way takes for a token, and how much faster it is than the target alone.

    Every prompt is decoded by all ways in turn, and all prompts in each round: what disturbs the
    machine for a while disturbs all ways alike. The spread is the largest less the least time of a
    prompt, over its median; half of the prompts have less.
    """
    names = list(ways)
    for way in ways.values():
        way(prompts[0])
    taken = {name: np.empty((ROUNDS, len(prompts))) for name in names}
    answers: dict[str, dict[int, list[int]]] = {name: {} for name in names}
    for round_ in range(ROUNDS):
        for at, ids in enumerate(prompts):
            for turn in range(len(names)):
                name = names[(turn + at + round_) % len(names)]
                started = time.perf_counter()
                answers[name][at] = ways[name](ids)
                taken[name][round_, at] = time.perf_counter() - started
    seconds = {name: np.median(found, axis=0) for name, found in taken.items()}
    tokens = {name: np.array([len(found[at]) for at in range(len(prompts))], float)
              for name, found in answers.items()}  # fmt: skip
    draws = np.random.default_rng(0).integers(len(prompts), size=(RESAMPLES, len(prompts)))
    paces = {name: seconds[name][draws].sum(1) / tokens[name][draws].sum(1) for name in names}
    alone = seconds[ALONE].sum() / tokens[ALONE].sum()
    for name in names:
        pace = seconds[name].sum() / tokens[name].sum()
        low, high = np.quantile(paces[ALONE] / paces[name], [0.025, 0.975])
        spread = np.median(np.ptp(taken[name], axis=0) / seconds[name])
        differ = sum(answers[name][at] != answers[ALONE][at] for at in range(len(prompts)))
        print(
            f"  {name:40} {1000 * pace:7.2f} ms a token, {alone / pace:5.2f} [{low:.2f}, "
            f"{high:.2f}] times the target alone; spread {spread:.0%}; {differ} answers differ"
        )


BATCHES = (1, 8, 32)


def certificates(found: Found, vocabulary: int) -> Floats:
    """Return strict greedy's certificates (N,) of N stored steps."""
    names = ("top_ids", "top_logits", "top_surprisal", "log_tail", "entropy")
    columns: dict[str, Any] = {name: found[name].numpy() for name in names}
    dist = TopK.from_columns(**columns, vocab_size=vocabulary)
    return certify(dist, StrictGreedy()).lower[:, 0]


def scored(overrides: list[str]) -> None:
    """Time decoding and scoring of a study's first target, and compare what they store."""
    _, nodes, store = prepare(composed(overrides))
    node = nodes["distributions"][0]
    rows = runner.ensure([node.upstream["prompts"][0]], store)[0].read().to_pylist()
    model = load_model(*models_of(node))
    prompts = {row["prompt_id"]: row["token_ids"] for row in rows}
    names = sorted(prompts, key=lambda name: len(prompts[name]))
    print(f"{model.label}, {len(names)} prompts, {torch.get_num_threads()} threads")
    for batch in BATCHES:
        taken, steps, other, logits, apart = {"decoding": 0.0, "scoring": 0.0}, 0, 0, 0.0, 0.0
        memory = {}
        for at in range(0, len(names), batch):
            some = {name: prompts[name] for name in names[at : at + batch]}
            watch, begun = Stopwatch(model.device), time.perf_counter()
            one = decode_batch(model, some, node.spec, watch, lambda _: None)
            taken["decoding"] += time.perf_counter() - begun
            memory["decoding"] = peak_memory(model.device)
            lengths = one["lengths"].tolist()
            answers = [row[:n] for row, n in zip(one["token_id"].tolist(), lengths, strict=True)]
            begun = time.perf_counter()
            two = score_batch(model, list(some.values()), answers, node.spec, watch, lambda _: None)
            taken["scoring"] += time.perf_counter() - begun
            memory["scoring"] = peak_memory(model.device)
            longest = max(lengths)
            given = torch.arange(longest) < torch.tensor(lengths)[:, None]
            tops = [found["top_ids"][:, :longest, 0] for found in (one, two)]
            same = given & (tops[0] == tops[1])
            steps, other = steps + int(given.sum()), other + int((given & ~same).sum())
            columns = [found for found in two if found != "lengths"]
            kept = [{name: f[name][:, :longest][same] for name in columns} for f in (one, two)]
            off = kept[0]["top_logits"] - kept[1]["top_logits"]
            logits = max(logits, float(off.abs().max()))
            ends = [certificates(found, model.vocab_size) for found in kept]
            apart = max(apart, float(np.abs(ends[0] - ends[1]).max()))
        ratio = taken["decoding"] / taken["scoring"]
        print(
            f"{batch} prompts: decoding {taken['decoding']:.2f} s, scoring {taken['scoring']:.2f} s"
            f" ({ratio:.2f} times as fast); memory {memory['decoding'] / 2**20:.0f} and "
            f"{memory['scoring'] / 2**20:.0f} MiB; {other} of {steps} steps have another argmax; "
            f"logits at most {logits:.2g} apart, certificates {apart:.2g}",
            flush=True,
        )


TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
PROMPT, REPETITIONS = 160, 20


@torch.inference_mode()
def timed(sequence: Text, ids: Tensor) -> tuple[float, Tensor]:
    """Return the seconds and logits of a pass over `ids` after what `sequence` holds, unchanged."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    before, begun = sequence.length, clock()
    logits = sequence.extend(ids)
    taken = clock() - begun
    sequence.crop(before)
    return taken, logits


def time_passes(overrides: list[str]) -> None:
    """Time the first target of the study, with products of few rows and without."""
    _, nodes, _ = prepare(composed(["study=smollm2", *overrides]))
    (used,) = models_of(nodes["distributions"][0])
    models = {"few_rows": load_model(used)}
    few_rows.LEAST_BYTES = sys.maxsize
    models["transformers"] = load_model(used)
    ids = torch.randint(100, 1000, (PROMPT,), generator=torch.Generator().manual_seed(0))
    sequences = {kind: Text(model, PROMPT + max(TOKENS)) for kind, model in models.items()}
    for sequence in sequences.values():
        with torch.inference_mode():
            sequence.read(ids)
    best: dict[tuple[str, int], float] = {}
    off = 0.0
    for _ in range(REPETITIONS):
        for n in TOKENS:
            found = {kind: timed(sequence, ids[:n]) for kind, sequence in sequences.items()}
            for kind, (taken, _) in found.items():
                best[kind, n] = min(best.get((kind, n), taken), taken)
            one, other = (logits for _, logits in found.values())
            off = max(off, float((one - other).abs().max()))
    print(
        f"{target.label}, {torch.get_num_threads()} threads, ms a pass and c(n)/c(1); "
        f"logits at most {off:.1g} apart"
    )
    print("tokens        " + "".join(f"{n:>11}" for n in TOKENS))
    for kind in models:
        times = [best[kind, n] for n in TOKENS]
        print(f"{kind:14}" + "".join(f"{1e3 * t:>6.1f} {t / times[0]:.2f}" for t in times))


if __name__ == "__main__":
    commands = {"speed": time_decoding, "scored": scored, "passes": time_passes}
    if sys.argv[1:2] and sys.argv[1] in commands:
        commands[sys.argv[1]](sys.argv[2:])
    else:
        raise SystemExit(f"give one of {', '.join(commands)}, then overrides")
