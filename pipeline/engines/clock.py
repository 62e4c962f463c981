"""The passes, tokens and seconds of a run, from the engine's page of /metrics.

`pipeline.ask` saves the page before and after its requests: their difference counts these requests
only. The servers must have answered the same requests at the same load: seconds are those of
requests, added up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field, TypeAdapter
from pydantic import ValidationError as FieldsError

from pipeline.engines.answers import read_bytes
from pipeline.engines.pages import EnginePage, is_page, read_page
from pipeline.errors import PipelineError

ASK, AGAIN = "`python -m pipeline.ask URL`", "ask it again (ask.name=NAME)"
COUNTED = ("drafts", "drafted", "accepted", "passes", "emitted", "seconds")


@dataclass(frozen=True)
class AskedRun:
    """What is read of the record beside answers, which `pipeline.ask` writes.

    Attributes:
        answers_of_pages: answers given between the two pages.
    """

    answers_of_pages: Annotated[int, Field(ge=0, strict=True)]


class Gain(NamedTuple):
    """The gain of drafts.

    Attributes:
        speedup: seconds a token of the target alone over those with drafts.
        drafted: mean drafted tokens of a draft.
        step_cost: cost of a step with a draft, in passes of the target alone.
    """

    speedup: float
    drafted: float
    step_cost: float


def gain_of(base: EnginePage, run: EnginePage) -> Gain:
    """Return the gain of a run with drafts over one without; NaN where a page lacks a count.

    Passes without a draft cost as much as those of the target alone. With s0 seconds a pass of the
    target alone, a step with a draft costs (seconds - (passes - drafts) s0) / (drafts s0).
    """

    def over(above: float, below: float) -> float:
        return above / below if below else math.nan

    pass_seconds = over(base.seconds, base.passes)
    spent = run.seconds - (run.passes - run.drafts) * pass_seconds
    speedup = over(over(base.seconds, base.emitted), over(run.seconds, run.emitted))
    return Gain(speedup, over(run.drafted, run.drafts), over(spent, run.drafts * pass_seconds))


def has_pages(path: Path, answers: int | None = None) -> bool:
    """Whether answers have the pages beside them between which they were given.

    Where they were asked for in several runs, the pages cover the last one only: with `answers`,
    all must be covered.
    """
    if path.suffix != ".jsonl" or not all(file.is_file() for file in _beside(path)):
        return False
    return answers is None or _answers_of_pages(path) == answers


def _beside(path: Path) -> list[Path]:
    """Return the files that `pipeline.ask` writes beside answers: both pages, and the record."""
    return [path.with_suffix(suffix) for suffix in (".before.txt", ".after.txt", ".json")]


def _answers_of_pages(path: Path) -> int:
    """Return how many answers the pages cover, of the record beside answers.

    Raises:
        PipelineError: it can't be read, or is none.
    """
    record = path.with_suffix(".json")
    try:
        return TypeAdapter(AskedRun).validate_json(read_bytes(record)).answers_of_pages
    except FieldsError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise PipelineError(
            f"{record}: {place}: {first['msg'].lower()}; {ASK} writes this file: {AGAIN}"
        ) from error


def read_run(path: Path) -> EnginePage:
    """Return the sums of the requests between the two pages beside answers.

    Raises:
        PipelineError: a page is damaged, or the server was started again in between.
    """
    first, last, _ = _beside(path)
    return page_difference(first, last, _answers_of_pages(path))


def page_difference(first: Path, last: Path, prompts: int = 0) -> EnginePage:
    """Return the sums of the requests between two pages.

    llama.cpp counts the pass over each of the `prompts`, and the token from it, too.

    Raises:
        PipelineError: a page is damaged, or the server was started again in between.
    """
    before, after = _page(first), _page(last)
    spent = {name: getattr(after, name) - getattr(before, name) for name in COUNTED}
    places = zip_longest(after.by_place, before.by_place, fillvalue=0.0)
    by_place = [late - early for late, early in places]
    prompts = prompts if after.engine == "llama.cpp" else 0
    spent["passes"] -= prompts
    spent["emitted"] -= prompts
    if min([*spent.values(), *by_place]) < 0:
        raise PipelineError(
            f"{last} counts less than {first.name}: the server was started again in between; "
            f"{AGAIN}"
        )
    if not min(spent[name] for name in ("passes", "emitted", "seconds")):
        raise PipelineError(
            f"{last}: since {first.name} no answer got a second token, and only the passes for "
            "those are timed: ask for longer answers (distributions.steps=N ask.name=NAME)"
        )
    return replace(after, **spent, by_place=by_place)


def _page(path: Path) -> EnginePage:
    """Return the sums of a page, none of them missing."""
    text = read_bytes(path).decode("utf-8", errors="replace")
    if not is_page(text):
        raise PipelineError(f"{path} is no page of /metrics: {AGAIN}")
    page = read_page(path, text)
    if any(map(math.isnan, (page.passes, page.emitted, page.seconds))):
        needed = (
            "inter_token_latency_seconds, generation_tokens_total and time_to_first_token_seconds"
            if page.engine == "vLLM"
            else "n_decode_total, tokens_predicted_total and tokens_predicted_seconds_total"
        )
        raise PipelineError(f"{path} does not say how long its passes took ({needed}): {AGAIN}")
    return page
