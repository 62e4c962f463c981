"""Do sampled answers have the target's law? ``python -m benchmarks.losslessness [--answers N]``.

Decodes the shortest prompt many times with the study's pair, by speculative sampling and by
exponential races, on chains and on draft trees, and holds the joint frequencies of the first four
tokens (the prompt's own, two drafted ones and the bonus or correction) against their exact law,
from plain forward passes of the target: chi-square over the cells that are expected often enough,
the rest in one. The drafter's own answers are held against the same law, which must refuse them.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np
import torch
from scipy import stats

from analysis.trees.topology import Growth, symmetric
from benchmarks.decoding import load
from pipeline.decoding.choices import DRAFT, DrawnRace, Inversion, Noise, Race
from pipeline.decoding.drafters import Drafter, Nothing, model_drafter
from pipeline.decoding.loop import decode
from pipeline.decoding.verifiers import Match, SpeculativeSampling, TreeSampling, Verifier
from pipeline.models.load import LanguageModel

TEMPERATURE, LEAST = 0.7, 8.0
DRAFTED, COUNTED, LENGTH = 2, 4, 6  # the limit cuts no draft that bears on the counted tokens
GSS, ERSS, ALONE = "speculative sampling", "exponential races", "the drafter alone"
Start = tuple[int, ...]


@torch.inference_mode()
def law(target: LanguageModel, prompt: list[int], first: Start) -> np.ndarray:
    """Return the law of the next token after the prompt and the tokens `first`."""
    logits = target.module(torch.tensor([[*prompt, *first]])).logits[0, -1]
    return torch.softmax(logits.double() / TEMPERATURE, 0).numpy()


def expected(target: LanguageModel, prompt: list[int], answers: int) -> dict[Start, float]:
    """Return the expected count of every beginning that is expected at least LEAST times.

    A beginning has COUNTED tokens, or fewer and ends the answer.
    """
    cells: dict[Start, float] = {(): float(answers)}
    for _ in range(COUNTED):
        longer: dict[Start, float] = {}
        for start, count in cells.items():
            if start and start[-1] in target.eos:
                longer[start] = count
                continue
            p = count * law(target, prompt, start)
            longer |= {(*start, int(b)): float(p[b]) for b in np.flatnonzero(p >= LEAST)}
        cells = longer
    return cells


def p_value(counts: Counter[Start], cells: dict[Start, float], answers: int) -> float:
    """Return the chi-square p-value of counted beginnings, all others being one cell."""
    found = [counts[cell] for cell in cells]
    wanted = list(cells.values())
    return float(
        stats.chisquare([*found, answers - sum(found)], [*wanted, answers - sum(wanted)]).pvalue
    )


def by_name(name: str, drafter: LanguageModel, noise: Noise) -> tuple[Verifier, Drafter]:
    """Return what verifies and what drafts."""
    race = Race(TEMPERATURE, noise)
    if name == GSS:
        drawn = Inversion(TEMPERATURE, noise, DRAFT)
        return SpeculativeSampling(TEMPERATURE, noise), model_drafter(drafter, drawn)
    if name == f"{GSS}, tree":
        raced = DrawnRace(TEMPERATURE, noise)
        tree = symmetric(2, DRAFTED)
        return TreeSampling(TEMPERATURE, noise), model_drafter(drafter, raced, tree)
    if name == ALONE:
        return Match(race), Nothing(drafter.device)
    grown = Growth(3, 6, DRAFTED) if name != ERSS else None
    return Match(race), model_drafter(drafter, race, grown)


def main() -> None:
    """Print the p-value of every law."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=int, default=2000, help="of each method")
    arguments, overrides = parser.parse_known_args()
    answers = arguments.answers
    target, drafter, prompts, _ = load(overrides)
    if not isinstance(drafter, LanguageModel):
        parser.error(f"{drafter.label} is a head and can't decode alone: give drafter=mini")
    prompt = min(prompts, key=len)
    cells = expected(target, prompt, answers)
    if len(cells) < 2:
        parser.error(f"--answers={answers} is too few for a test: give 1000 or more")
    print(f"{target.label}, {drafter.label}: {answers} answers, {len(cells) + 1} cells")
    for name in (GSS, f"{GSS}, tree", ERSS, f"{ERSS}, dynamic tree", ALONE):
        counts: Counter[Start] = Counter()
        for seed in range(answers):
            noise = Noise(seed, "losslessness", LENGTH + 1, target.device, DRAFTED)
            verifier, source = by_name(name, drafter, noise)
            model = drafter if name == ALONE else target
            answer = decode(model, source, verifier, prompt, DRAFTED, LENGTH).tokens
            counts[tuple(answer[:COUNTED])] += 1
        print(f"  {name:<32} chi-square p = {p_value(counts, cells, answers):.3g}", flush=True)


if __name__ == "__main__":
    main()
