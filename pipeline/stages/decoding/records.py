"""The rows of one prompt: answers, calls, timings, and both models along the baseline's answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.decoding.loop import Answer
from pipeline.decoding.reading import Reader, compared, ranked
from pipeline.plan.method import Method, baseline
from pipeline.stages.decoding import RUN, STAGE


def rows_of(
    reader: Reader,
    prompt: dict[str, Any],
    runs: Sequence[Method],
    answers: Sequence[tuple[Answer, int | None]],
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a prompt by table; nothing in here is timed.

    `answers` are those of the runs, with the peak of CUDA memory.
    """
    names = ("data", "calls", "levels", "timings/runs", "timings/calls")
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
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
            {
                **key,
                "source": prompt["source"],
                "method": run.name,
                **attributes(run, "drafter", "draft_length", "temperature"),
                "token_ids": answer.tokens,
                "n_tokens": len(tokens),
                "text_tokens": len(prompt["token_ids"]) + len(tokens),
                "ended": answer.ended,
                "log_likelihood": likelihoods[tokens],
                **compared(answer.tokens, alone[baseline(run)]),
            }
        )
        seconds = attributes(answer, "first_seconds", "begin_seconds", "seconds")
        rows["timings/runs"].append(key | seconds | {"peak_bytes": peak})
        for call in answer.calls:
            for name in ("calls", "timings/calls"):
                own = [column for column in STAGE.columns[name] if column not in RUN]
                rows[name].append(key | attributes(call, *own))
            rows["levels"] += [
                key | {"position": call.position, "level": level, "children": n, "accepted": taken}
                for level, (n, taken) in enumerate(call.levels if run.tree else (), start=1)
            ]
    greedy = next((tokens for run, tokens in alone.items() if run.temperature == 0), None)
    if greedy is not None:
        rows["trajectory"] = trajectory(reader, prompt, greedy)
    return rows


def attributes(source: object, *names: str) -> dict[str, Any]:
    """Return some attributes by name."""
    return {name: getattr(source, name) for name in names}


def trajectory(
    reader: Reader, prompt: dict[str, Any], answer: Sequence[int]
) -> list[dict[str, Any]]:
    """Return what the drafter would draft at every step of the greedy baseline's answer."""
    logits, drafts = reader.both(answer)
    drafted = drafts.argmax(1)
    dist, rank, log_prob = ranked(logits, drafted, 2)
    assert dist.logits is not None
    columns = {
        "position": range(len(answer)),
        "token_id": answer,
        "draft_token_id": drafted.tolist(),
        "draft_rank": rank.tolist(),
        "draft_log_prob": log_prob.tolist(),
        "z1": dist.logits[:, 0].tolist(),
        "z2": dist.logits[:, 1].tolist(),
        "top_surprisal": dist.top_surprisal.tolist(),
    }
    return [
        {"prompt_id": prompt["prompt_id"], **dict(zip(columns, row, strict=True))}
        for row in zip(*columns.values(), strict=True)
    ]
