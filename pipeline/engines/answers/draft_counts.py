"""The counts of drafts in the answers of a file, and their sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pipeline.core.errors import PipelineError
from pipeline.engines.answers.files import read_answers
from pipeline.engines.counts import MAX_PLACES, Counts, EngineAnswer
from pipeline.engines.engine_base import AnswerError, AnswerPart
from pipeline.engines.printed_text import counted
from pipeline.engines.registry import engine_named, engine_of

MANY_CHOICES = "answers of several choices"


def read_answer_counts(path: Path) -> Counts:
    """Add up the counts of all answers of a file, whether or not anything was drafted.

    Raises:
        PipelineError: it can't be read, holds no answers or those of two engines, or its counts
            contradict each other.
    """
    read, _, excluded = read_answers(path, read_answer)
    if not read:
        raise PipelineError(
            f"{path} holds no answers as JSON (left out: {counted(excluded)}): give answers that "
            "`python -m pipeline.ask URL` saved"
        )
    answers: dict[str, EngineAnswer] = {}
    for name, answer in read.items():
        if f"{name}#1" in read or answer is None:
            excluded[MANY_CHOICES] += answer is not None
        else:
            answers[name] = answer
    engine = _engine_of_all(path, answers.values())
    sums = replace(total_counts(engine, _with_zeros(answers, engine)), excluded=+excluded)
    if sums.accepted > sums.drafted:  # NaN compares as false
        raise PipelineError(
            f"{path}: {sums.accepted:g} tokens were accepted of {sums.drafted:g} drafted"
        )
    return sums


def total_counts(engine: str, answers: Mapping[str, EngineAnswer]) -> Counts:
    """Add up the counts of answers of an engine."""
    every = answers.values()
    return Counts(
        engine=engine,
        drafts=sum(answer.drafts for answer in every),
        drafted=sum(answer.drafted for answer in every),
        accepted=sum(answer.accepted for answer in every),
        by_place=_by_place(every),
        least_passes=sum(answer.passes_range[0] for answer in every),
        most_passes=sum(answer.passes_range[1] for answer in every),
        emitted=sum(_emitted(answer) for answer in every),
        answers=answers,
    )


def _engine_of_all(path: Path, answers: Iterable[EngineAnswer]) -> str:
    """Return the engine of all answers, of those that count drafts where some do."""
    every = list(answers)
    counting = [answer for answer in every if not math.isnan(answer.accepted)]
    engines = sorted({answer.engine for answer in counting or every} - {""})
    if len(engines) > 1:
        raise PipelineError(f"{path} holds answers of {' and '.join(engines)}: give one")
    return "".join(engines)


def _with_zeros(answers: Mapping[str, EngineAnswer], engine: str) -> dict[str, EngineAnswer]:
    """Return answers with counts of 0, where an engine leaves out those of answers without drafts.

    No engine drafts for an answer of one token, which prefill emits.
    """
    if all(math.isnan(answer.accepted) for answer in answers.values()):
        return dict(answers)
    leaves_out_zeros = engine_named(engine).leaves_out_zeros
    return {
        name: answer.without_drafts()
        if math.isnan(answer.accepted) and (leaves_out_zeros or answer.size == 1)
        else answer
        for name, answer in answers.items()
    }


def _by_place(answers: Iterable[EngineAnswer]) -> list[float]:
    """Return how many tokens were accepted at each position; empty where an answer lacks them."""
    histograms = [answer.histogram for answer in answers]
    known = [histogram for histogram in histograms if histogram is not None]
    if len(known) < len(histograms):
        return []
    times = [sum(place) for place in zip_longest(*known, fillvalue=0)]
    return [sum(times[place:]) for place in range(1, len(times))]


def _emitted(answer: EngineAnswer) -> float:
    """Return how many tokens of an answer follow the first one."""
    return math.nan if answer.size is None else max(answer.size - 1, 0)


def read_answer(part: AnswerPart) -> EngineAnswer | None:
    """Return what an answer says; None for another choice of the same answer.

    Raises:
        AnswerError: a field has another form, or a number contradicts another one.
    """
    if part.content.get("index"):
        return None
    engine = engine_of(part)
    fields = engine.read_fields(part)
    sizes = fields.completion_tokens, fields.size, len(fields.ids or ()), _logged_tokens(part)
    prompt = part.request.get("prompt", part.request.get("token_ids"))
    answer = EngineAnswer(
        prompt=prompt if prompt and _are_ids(prompt) else None,
        tokens=fields.ids,
        temperature=_temperature(part.request),
        size=next((size for size in sizes if size), None),
        engine=engine.name,
        seconds=part.seconds,
        load=part.load,
        source=part.source,
    )
    answer = fields.add_counts(answer, part)
    if answer.drafted > MAX_PLACES * answer.drafts:  # NaN compares as false
        raise AnswerError(
            f"has {answer.drafted} drafted tokens in {answer.drafts} calls, above {MAX_PLACES} each"
        )
    return answer


def _temperature(request: Mapping[str, Any]) -> float:
    sampling = request.get("sampling_params") or request  # vLLM's /inference/v1/generate
    temperature = sampling.get("temperature") if isinstance(sampling, dict) else None
    return temperature if isinstance(temperature, int | float) else math.nan


def _logged_tokens(part: AnswerPart) -> int:
    """Return how many tokens have log-probabilities; 0 where the prompt's may be among them."""
    if part.request.get("echo"):
        return 0
    tokens = part.log_probs.get("content") or part.log_probs.get("tokens")
    return len(tokens) if isinstance(tokens, list) else 0


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int and token >= 0 for token in value)
