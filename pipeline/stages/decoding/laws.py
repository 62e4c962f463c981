"""How the methods of the configuration choose drafted tokens and verify them."""

from __future__ import annotations

from pipeline.plan.methods import BLOCK, RACES, Method
from pipeline.stages.decoding.choices import (
    DRAFT,
    Choice,
    DrawnRace,
    FreshInversion,
    Greedy,
    Inversion,
    Noise,
    Race,
)
from pipeline.stages.decoding.verifiers import (
    BlockVerification,
    Match,
    Relaxed,
    SpeculativeSampling,
    TreeSampling,
    Verifier,
)


def laws(method: Method, noise: Noise) -> tuple[Choice, Verifier]:
    """Return how `method` chooses the drafted tokens, and how it verifies them."""
    temperature = method.temperature
    if method.sampling == RACES:
        race = Race(temperature, noise)
        return race, Match(race)
    if method.sampling == BLOCK:
        return FreshInversion(temperature, noise), BlockVerification(temperature, noise)
    if temperature > 0 and method.tree is not None:
        return DrawnRace(temperature, noise), TreeSampling(temperature, noise)
    if temperature > 0:
        drawn = Inversion(temperature, noise, DRAFT)
        return drawn, SpeculativeSampling(temperature, noise, method.rule)
    if method.rule is None or method.lossless:
        return Greedy(), Match(Greedy())
    return Greedy(), Relaxed(method.rule)
