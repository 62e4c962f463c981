"""The passes, tokens and seconds of a run, from the engine's page of /metrics.

`pipeline.ask` saves the page before and after its requests: their difference counts these requests
only. The servers must have answered the same requests at the same load: seconds are those of
requests, added up.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from pipeline.engines.answers import read_bytes
from pipeline.engines.pages import EngineCounts, is_page, read_page
from pipeline.errors import PipelineError

ASK, AGAIN = "`python -m pipeline.ask URL`", "ask it again (ask.name=NAME)"
COUNTED = ("drafts", "drafted", "accepted", "passes", "most_passes", "emitted", "seconds")


def gain(base: EngineCounts, run: EngineCounts) -> tuple[float, float]:
    """Return the gain of a run with drafts over one without; NaN where a page lacks a count.

    Passes without a draft cost as much as those of the target alone. With s0 seconds a pass of the
    target alone, a step with a draft costs (seconds - (passes - drafts) s0) / (drafts s0).

    Returns:
        Seconds a token of the target alone over those with drafts; and the cost of a step with a
        draft, in passes of the target alone.
    """

    def over(above: float, below: float) -> float:
        return above / below if below else math.nan

    pass_seconds = over(base.seconds, base.passes)
    spent = run.seconds - (run.passes - run.drafts) * pass_seconds
    speedup = over(over(base.seconds, base.emitted), over(run.seconds, run.emitted))
    return speedup, over(spent, run.drafts * pass_seconds)


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
        answers = json.loads(read_bytes(record))["answers_of_pages"]
    except (ValueError, LookupError, TypeError, RecursionError):
        answers = None
    if type(answers) is not int or answers < 0:
        raise PipelineError(
            f"{record}: answers_of_pages={answers!r:.40}: a number was expected, as {ASK} writes "
            f"it: {AGAIN}"
        )
    return answers


def read_run(path: Path) -> EngineCounts:
    """Return the sums of the requests between the two pages beside answers.

    Raises:
        PipelineError: a page is damaged, or the server was started again in between.
    """
    first, last, _ = _beside(path)
    return page_difference(first, last, _answers_of_pages(path))


def page_difference(first: Path, last: Path, prompts: int = 0) -> EngineCounts:
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
    for name in ("passes", "most_passes", "emitted"):
        spent[name] -= prompts
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


def _page(path: Path) -> EngineCounts:
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
