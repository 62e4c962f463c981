"""The rows of one prompt: answers, calls, timings, and what both models say of the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.decoding.judging import ranked
from pipeline.decoding.loop import Answer
from pipeline.decoding.reading import Reader, compared
from pipeline.plan.method import Method, baseline


def shard(
    reader: Reader,
    prompt: dict[str, Any],
    runs: Sequence[Method],
    answers: Sequence[tuple[Answer, int | None]],
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a prompt by table; nothing in here is timed."""
    rows: dict[str, list[dict[str, Any]]] = {
        "data": [],
        "calls": [],
        "levels": [],
        "timings/runs": [],
        "timings/calls": [],
    }
    alone = {
        run: answer.tokens
        for run, (answer, _) in zip(runs, answers, strict=True)
        if run.drafter == "none"
    }
    likelihoods: dict[tuple[int, ...], float] = {}
    for at, (run, (answer, peak)) in enumerate(zip(runs, answers, strict=True)):
        key = {"prompt_id": prompt["prompt_id"], "run": at}
        tokens = tuple(answer.tokens)
        if tokens not in likelihoods:
            likelihoods[tokens] = reader.log_likelihood(answer.tokens)
        rows["data"].append(
            key
            | {
                "source": prompt["source"],
                "method": run.name,
                "drafter": run.drafter,
                "draft_length": run.draft_length,
                "temperature": run.temperature,
                "token_ids": answer.tokens,
                "n_tokens": len(tokens),
                "text_tokens": len(prompt["token_ids"]) + len(tokens),
                "ended": answer.ended,
                "log_likelihood": likelihoods[tokens],
                **compared(answer.tokens, alone[baseline(run)]),
            }
        )
        rows["timings/runs"].append(
            key
            | {
                "first_seconds": answer.first_seconds,
                "begin_seconds": answer.begin_seconds,
                "seconds": answer.seconds,
                "peak_bytes": peak,
            }
        )
        for call in answer.calls:
            rows["calls"].append(
                key
                | {
                    "position": call.position,
                    "drafted": call.drafted,
                    "depth": call.depth,
                    "reach": call.reach,
                    "tested": call.tested,
                    "accepted": call.accepted,
                    "emitted": call.emitted,
                }
            )
            rows["levels"] += [
                key | {"position": call.position, "level": at, **level._asdict()}
                for at, level in enumerate(call.levels, start=1)
            ]
            rows["timings/calls"].append(
                key
                | {
                    "drafted": call.drafted,
                    "depth": call.depth,
                    "emitted": call.emitted,
                    "draft_seconds": call.draft_seconds,
                    "verify_seconds": call.verify_seconds,
                    "other_seconds": call.other_seconds,
                }
            )
    greedy = next((tokens for run, tokens in alone.items() if run.temperature == 0), None)
    if greedy is not None:
        rows["trajectory"] = trajectory(reader, prompt, greedy)
    return rows


def trajectory(
    reader: Reader, prompt: dict[str, Any], answer: Sequence[int]
) -> list[dict[str, Any]]:
    """Return what the drafter would draft at every step of the greedy baseline's answer."""
    logits, drafts = reader.both(answer)
    drafted = drafts.argmax(1)
    dist, rank, log_prob = ranked(logits, drafted, 2)
    assert dist.logits is not None
    return [
        {
            "prompt_id": prompt["prompt_id"],
            "position": at,
            "token_id": answer[at],
            "draft_token_id": int(drafted[at]),
            "draft_rank": int(rank[at]),
            "draft_log_prob": float(log_prob[at]),
            "z1": float(dist.logits[at, 0]),
            "z2": float(dist.logits[at, 1]),
            "top_surprisal": float(dist.top_surprisal[at]),
        }
        for at in range(len(answer))
    ]
