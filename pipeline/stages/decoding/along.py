"""What was certified along answers: the target's own, and those that each rule really emitted.

A relaxed rule's answer leaves the greedy one, and the certificates that were computed there say
nothing of the steps after that. So both models read every answer again, in one pass each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.acceptance.realised import Steps, judge
from pipeline.decoding.loop import Answer
from pipeline.decoding.reading import Reader, steps_of
from pipeline.plan.method import Method

STORED = 256  # of the target's tokens: where they do not decide, a certificate is an interval


def along(
    reader: Reader, prompt: dict[str, Any], runs: Sequence[Method], answers: Sequence[Answer]
) -> list[dict[str, Any]]:
    """Return a row a step of the greedy answer and of its own, for every rule that decoded one."""
    greedy = next(
        (
            answer
            for run, answer in zip(runs, answers, strict=True)
            if run.drafter == "none" and run.temperature == 0
        ),
        None,
    )
    if greedy is None:
        return []
    read: dict[tuple[int, ...], Steps] = {}
    rows = []
    for at, (run, answer) in enumerate(zip(runs, answers, strict=True)):
        if run.rule is None or not run.uses_model or run.temperature > 0:
            continue
        for own, tokens in ((False, tuple(greedy.tokens)), (True, tuple(answer.tokens))):
            if tokens not in read:
                read[tokens] = steps_of(*reader.both(tokens), STORED)
            steps = read[tokens]
            verdict = judge(steps, [run.rule])[0]
            rows += [
                {
                    "prompt_id": prompt["prompt_id"],
                    "position": step,
                    "run": at,
                    "own": own,
                    "kl": float(steps.kl[step]),
                    "lower": float(verdict.lower[step]),
                    "upper": float(verdict.upper[step]),
                    "accepted": bool(verdict.accepted[step]),
                    "certified": bool(verdict.certified[step]),
                }
                for step in range(len(steps))
            ]
    return rows
