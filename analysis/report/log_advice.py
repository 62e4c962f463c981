"""Answers to questions about an engine's log: relax, draft length, is my drafter worth it."""

from __future__ import annotations

from ..acceptance.verdict import Advice
from ..rules import StrictGreedy
from ..statistics.trajectories import count_calls
from .answer import EPS
from .measured import Target
from .text import number_text

LENGTHS = (1, 2, 4, 8)  # draft lengths that are compared
RELAX = (
    "Should I relax? vLLM and llama.cpp run no relaxed rule: at temperature 0 they accept the "
    "target's first choice alone. SGLang, TensorRT-LLM and Medusa have rules that can be set; "
    "which setting certifies stands below."
)
LONG = (
    "How long should drafts be? That depends on what a step costs, which no log tells. Ask the "
    "server with drafts and without (`python -m pipeline.ask URL`), then `python -m "
    "pipeline.check_engine drafted.jsonl alone.jsonl` says how much faster it is with drafts."
)
WORTH = "Is my drafter worth it? The two runs above decide."


def log_advice(advice: Advice, target: Target) -> Advice:
    """Return the verdict on the target of a log.

    Args:
        advice: on its speed: not measured.
        target: its steps.
    """
    name, greedy, long = target.label, StrictGreedy(), LONG
    if greedy in target.certificates:
        certified = target.certificates[greedy][0] > EPS
        counts = {n: count_calls(certified, target.trajectories, n) for n in LENGTHS}
        if all(made.calls.sum() for made in counts.values()):
            tokens = {n: made.tokens.sum() / made.calls.sum() for n, made in counts.items()}
            each = ", ".join(f"{number_text(x)} for {n}" for n, x in tokens.items())
            long += (
                " Guaranteed tokens per call by draft length, to a drafter within "
                f"{EPS:g} nats at every step: {each}."
            )
        else:
            long += " No answer has a second token, so no tokens per call are guaranteed."
    sentence = (
        f"A log of {name} tells how much drafter error it tolerates, not whether drafting pays: "
        "the cost of a step is missing."
    )
    return Advice(name, advice.outcome, sentence, [RELAX, long, WORTH])
