"""Answers to questions about an engine's log: relax, draft length, is my drafter worth it."""

from __future__ import annotations

import numpy as np

from ..acceptance.verdict import Advice
from ..rules import Additive, StrictGreedy
from ..statistics.trajectories import Trajectories, count_calls
from .answer import EPS
from .measured import Target
from .text import share_text

SHARE_WANTED = 0.95  # of the steps, to be certified by a relaxed rule
LENGTHS = (1, 2, 4, 8)  # draft lengths that are compared
MISSING = (
    "Ask the server with drafts and without (`python -m pipeline.ask URL`), then `python -m "
    "pipeline.engine alone.jsonl drafted.jsonl` says how much faster it is with drafts"
)


def log_advice(advice: Advice, target: Target) -> Advice:
    """Return the verdict on the target of a log.

    Args:
        advice: on its speed: not measured.
        target: its steps.
    """
    name = target.label
    greedy = StrictGreedy()
    enough = [
        rule.t
        for rule, (lower, _) in target.certificates.items()
        if isinstance(rule, Additive) and (lower > EPS).mean() >= SHARE_WANTED
    ]
    relax = (
        "Should I relax? vLLM and llama.cpp run no relaxed rule: at temperature 0 they accept the "
        "target's first choice alone. SGLang, TensorRT-LLM and Medusa have rules that can be set"
    )
    if enough:
        relax += (
            f"; additive t = {min(enough):g} certifies {100 * SHARE_WANTED:g} % of the steps for "
            f"any drafter within {EPS:g} nats"
        )
    long = (
        "How long should drafts be? That depends on what a step costs, which no log tells. "
        f"{MISSING}."
    )
    if greedy in target.certificates:
        certified = target.certificates[greedy][0] > EPS
        relax += f" (strict greedy: {share_text(certified.mean())})"
        bootstrap = target.bootstrap
        starts = np.cumsum(bootstrap.steps) - bootstrap.steps
        steps = Trajectories(starts, bootstrap.prompts)
        counts = {n: count_calls(certified, steps, n) for n in LENGTHS}
        tokens = [
            f"{x.tokens.sum() / max(x.calls.sum(), 1):.2f} for {n}" for n, x in counts.items()
        ]
        guaranteed = (
            ", ".join(tokens)
            if any(x.calls.any() for x in counts.values())
            else ("undefined, as no answer has a second token")
        )
        long += (
            f" Guaranteed tokens a pass by draft length, any drafter within {EPS:g} nats: "
            f"{guaranteed}."
        )
    worth = "Is my drafter worth it? The two runs above decide."
    headline = "Drafts: not measured; relaxed rules: not in vLLM or llama.cpp"
    sentence = (
        f"A log of {name} tells how much drafter error it tolerates, not whether drafting pays: "
        "the cost of a step is missing."
    )
    beside = [f"{relax}.", long, worth]
    return Advice(name, advice.outcome, sentence, beside, headline=headline)
