"""How the methods of the configuration choose drafted tokens and verify them."""

from __future__ import annotations

from pipeline.decoding.choices import (
    DRAFT,
    TOKEN,
    Choice,
    DrawnRace,
    FreshInversion,
    Greedy,
    Inversion,
    Noise,
    Race,
    Truncation,
)
from pipeline.decoding.verifiers import (
    BlockVerification,
    Match,
    Relaxed,
    SpeculativeSampling,
    TreeSampling,
    Verifier,
)
from pipeline.plan.method import BLOCK, RACES, Method


def laws(method: Method, noise: Noise) -> tuple[Choice, Verifier]:
    """Return how `method` chooses the drafted tokens, and how it verifies them."""
    t, kept = method.temperature, Truncation(method.top_p, method.top_k)
    if method.sampling == RACES:
        race = Race(t, noise, kept)
        return race, Match(race)
    if method.drafter == "none" and t > 0:
        drawn = Inversion(t, noise, TOKEN, kept)
        return drawn, Match(drawn)
    if method.sampling == BLOCK:
        return FreshInversion(t, noise, kept), BlockVerification(t, noise, kept)
    if t > 0 and method.tree is not None:
        return DrawnRace(t, noise, kept), TreeSampling(t, noise, kept)
    if t > 0:
        drawn = Inversion(t, noise, DRAFT, kept)
        return drawn, SpeculativeSampling(t, noise, method.rule, kept)
    if method.rule is None or method.lossless:
        return Greedy(), Match(Greedy())
    return Greedy(), Relaxed(method.rule)
