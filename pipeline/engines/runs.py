"""Runs of an engine beside each other: acceptance, tokens per pass, cost of a step, speed-up.

A run is a file of answers, or a page of /metrics. Seconds are, where both runs have them of every
answer, those of decoding by the engine's clock (llama.cpp), else those of whole requests
(`pipeline.ask`), with an interval over prompts; else those of the pages, with a rough interval from
their numbers of requests. The servers must have answered the same requests at the same load: where
the counts show that they did not, nothing is recommended.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import norm

from analysis.decoding.draft_length import best_length, costs_by_length, drafting_pass_cost
from analysis.decoding.speed import LEAST_VERIFY_RATIO, speed_bootstrap, speedups
from analysis.report.text import estimate_text
from analysis.statistics.bootstrap import Resampling
from analysis.statistics.estimate import Estimate
from analysis.statistics.trajectories import acceptance_by_position
from pipeline.core.errors import PipelineError
from pipeline.engines.answers import printable, read_bytes
from pipeline.engines.counts import REMEDIES, Counts, read_sums
from pipeline.engines.pages import UNDRAFTED, page_difference, page_of

VLLM_KEY = "num_speculative_tokens"
FLAGS = {  # that set drafts of n tokens
    "vLLM": (VLLM_KEY, "--speculative-config '{{..., \"" + VLLM_KEY + "\": {n}}}'"),
    "llama.cpp": ("--spec-draft-n-max", "--spec-draft-n-max {n}"),
    "SGLang": (
        "--speculative-num-steps",
        "--speculative-num-steps {n} --speculative-num-draft-tokens {more} "
        "--speculative-eagle-topk 1",
    ),
}
SAME_TOKENS = 0.02  # by which the tokens of the same requests may differ
SAME_LOAD = 1.5  # times as many requests at once; answers of other lengths leave other gaps
IMPLAUSIBLE = 20  # passes that a step costs
ROUGH_SPREAD = 0.3  # standard deviation of a request's log seconds per token: docs/engine.md
SURE = 1.1  # a gain of two pages, from which on drafts are recommended
CLOCKS = {"decode_seconds": "decoding, by the engine's clock", "seconds": "whole requests"}


@dataclass(frozen=True)
class Run:
    """A run of an engine."""

    path: Path
    length: int | None  # of a full draft; 0 without drafts, None where it is not told
    counts: Counts  # of its answers, or its page
    page: Counts | None  # the page, or the difference of those beside the answers
    record: Mapping[str, Any]  # that pipeline.ask wrote; empty without one

    @property
    def engine(self) -> str:
        """The engine, empty where nothing tells it."""
        recorded = self.record.get("engine")
        return self.counts.engine or (recorded if recorded in REMEDIES else "")

    @property
    def tokens(self) -> float:
        """The tokens after each answer's first one."""
        return self.counts.emitted if self.page is None else self.page.emitted

    @property
    def acceptance(self) -> tuple[list[float], float]:
        """The accepted share of tested tokens, by position and of all; nothing where not told."""
        counts = self.counts
        steps = [answer.per_step for answer in counts.answers.values()]
        if any(steps) and None not in steps:
            calls = [call for calls in steps for call in calls or ()]
            kept, tried = np.array(calls, dtype=np.intp).T
            tested, passed = acceptance_by_position(np.minimum(kept + 1, tried), kept)
            return (passed / tested).tolist(), float(passed.sum() / tested.sum())
        before = [counts.drafts, *counts.by_place[:-1]] if counts.by_place else []
        pairs = zip(counts.by_place, before, strict=True)  # all drafts are full
        rates = [passing / n if n else math.nan for passing, n in pairs]
        return rates, sum(counts.by_place) / sum(before) if sum(before) else math.nan


class Speed(NamedTuple):
    """How many times as fast as the base a run is, its interval, and the cost of a step.

    The cost is in passes of the base; NaN where something is not known.
    """

    times: float
    low: float = math.nan
    high: float = math.nan
    cost: float = math.nan
    rough: bool = False  # the interval is from the number of requests alone
    compares: bool = True  # with the base

    def __str__(self) -> str:
        if math.isnan(self.times):
            return "-"
        if math.isnan(self.low):
            return f"{self.times:.2f} times"
        unit = " times, roughly" if self.rough else " times"
        times = Estimate(self.times, self.low, self.high)
        return estimate_text(times, unit=unit, apart=[1], zero_width=True)


def read_run(path: Path, length: int | None = None) -> Run:
    """Read a run: answers, or a page of /metrics; `length` where the file does not tell it.

    Of NAME.after.txt with NAME.before.txt beside it the page is the difference of the two.
    """
    counts = page = page_of(path)
    if counts is None:
        counts = read_sums(path)
        page = _page_beside(path, len(counts.answers))
        if page is not None and counts.by_place:
            passes = page.passes
            counts = replace(counts, passes=passes, most_passes=passes, emitted=page.emitted)
        elif page is not None and (page.drafts > 0 or counts.drafting is None):
            counts = replace(page, answers=counts.answers, excluded=counts.excluded)
    if counts.drafting is False:
        length = 0
    elif _drafts_are_full(counts):
        length = len(counts.by_place)
    return Run(path, length, counts, page, _record(path))


def _drafts_are_full(counts: Counts) -> bool:
    """Whether counts by position end at the draft length.

    SGLang's end at the longest accepted draft, and a tree has more tokens than positions.
    """
    places = len(counts.by_place)
    return places > 0 and (counts.engine != "SGLang" or counts.drafted == counts.drafts * places)


def _record(path: Path) -> Mapping[str, Any]:
    """Return what `pipeline.ask` wrote beside answers or a page; nothing where it did not."""
    name = path.name.removesuffix(".jsonl").removesuffix(".after.txt")
    record = path.with_name(f"{name}.json")
    if name == path.name or not record.is_file():
        return {}
    try:
        read = json.loads(read_bytes(record))
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _page_beside(path: Path, answers: int) -> Counts | None:
    """Return the sums between the pages beside answers; None where they do not cover all."""
    first, last, record = (path.with_suffix(end) for end in (".before.txt", ".after.txt", ".json"))
    if path.suffix != ".jsonl" or not all(file.is_file() for file in (first, last, record)):
        return None
    covered = _record(path).get("answers_of_pages")
    if covered is None:
        raise PipelineError(
            f"{record} has no answers_of_pages, which pipeline.ask writes: ask again, ask.name=NAME"
        )
    return page_difference(first, last, answers) if covered == answers else None


def compare(
    base: Run, runs: Sequence[Run], statistics: Resampling
) -> tuple[list[Speed], list[str]]:
    """Return the speed and the cost of a step of each run, and what the reader must know of them.

    The base is without drafts. Intervals hold for all runs together.
    """
    if base.counts.drafting:
        raise PipelineError(f"{base.path} counts drafts: give the run without drafts first")
    for run in runs:
        if run.counts.drafting is False:
            raise PipelineError(
                f"{run.path} counts no drafts: start this server with a drafter, or "
                "give what counts them (vLLM's answers with --per-request-spec-decode-metrics "
                "detailed)"
            )
        if base.engine and run.engine and base.engine != run.engine:
            raise PipelineError(
                f"{base.path} is of {base.engine} and {run.path} of {run.engine}: give those of one"
            )
    clock, speeds = _speeds(base, runs, statistics)
    notes = [f"speed beside the target alone: {clock}"] if clock else []
    for i, run in enumerate(runs):
        doubts = _differences(base, run) + _doubts_of_cost(run, speeds[i].cost)
        notes += doubts
        speeds[i] = speeds[i]._replace(compares=not doubts)
    return speeds, notes


def _speeds(base: Run, runs: Sequence[Run], statistics: Resampling) -> tuple[str, list[Speed]]:
    """Return the clock, and the speed of each run by it with the cost of a step."""
    none = Speed(math.nan)
    pages = [gain(base.page, run.page) if base.page and run.page else none for run in runs]
    clock, of_answers = _by_answers([run.counts for run in (base, *runs)], statistics)
    if of_answers is None:
        if all(math.isnan(speed.times) for speed in pages):
            return "", pages
        z = float(norm.ppf(1 - (1 - statistics.confidence) / 2 / len(runs)))
        for i, run in enumerate(runs):
            if base.page and run.page:
                pages[i] = _roughly(pages[i], (base.page.requests, run.page.requests), z)
        return "sums of the pages, prefill left out", pages
    speeds = []
    for row, of_page, run in zip(np.transpose(of_answers).tolist(), pages, runs, strict=True):
        cost = of_page.cost
        if math.isnan(cost):
            cost = _cost_from_speed(run.counts, row[0])
        speeds.append(Speed(row[0], row[1], row[2], cost))
    return clock, speeds


def _cost_from_speed(counts: Counts, times: float) -> float:
    """Return the cost of a step that explains a speed; prefill, which has no draft, raises it."""
    passes = (counts.passes + counts.most_passes) / 2
    if not passes > 0:  # NaN compares as false
        return math.nan
    return drafting_pass_cost(counts.emitted / passes / times, counts.drafts / passes)


def _roughly(speed: Speed, requests: Sequence[float], z: float) -> Speed:
    """Return a speed with an interval from the numbers of requests alone; none where not told."""
    if not all(n > 0 for n in requests):  # NaN compares as false
        return speed
    half = z * ROUGH_SPREAD * math.sqrt(sum(1 / n for n in requests))
    ends = speed.times * math.exp(-half), speed.times * math.exp(half)
    return speed._replace(low=ends[0], high=ends[1], rough=True)


def _differences(base: Run, run: Run) -> list[str]:
    """Return why two runs do not compare: another model, other requests, another load."""
    names, found = (base.path.name, run.path.name), []
    if base.page and run.page:
        models = base.page.model, run.page.model
        if all(models) and models[0] != models[1]:
            found.append(f"{names[0]} is of {models[0]}, {names[1]} of {models[1]}")
    least, _ = base.counts.tokens_per_pass
    if least > UNDRAFTED:  # NaN compares as false
        found.append(f"{names[0]} has {least:.3f} tokens per pass, so something was drafted there")
    tokens = _tokens_of_both(base, run)
    if abs(tokens[1] - tokens[0]) > SAME_TOKENS * tokens[0]:  # NaN compares as false
        found.append(
            f"{names[0]} counts {tokens[0]:,.0f} tokens and {names[1]} {tokens[1]:,.0f}: other "
            "requests, or a server that was restarted"
        )
    at_once = base.record.get("concurrent"), run.record.get("concurrent")
    if None not in at_once:
        if at_once[0] != at_once[1]:
            asked = [printable(number) for number in at_once]
            found.append(
                f"{names[0]} was asked with {asked[0]} at once and {names[1]} with {asked[1]}: the "
                "speed is that of another load"
            )
    elif base.page and run.page:
        loads = base.page.load, run.page.load
        if max(loads) > SAME_LOAD * min(loads):
            found.append(
                f"{names[0]} served {loads[0]:.1f} requests a step and {names[1]} {loads[1]:.1f}: "
                "the speed is that of another load"
            )
    return found


def _tokens_of_both(base: Run, run: Run) -> tuple[float, float]:
    """Return each run's tokens, of the answers that both have or of all."""
    both = [name for name in base.counts.answers if name in run.counts.answers]
    if not both:
        return base.tokens, run.tokens
    sizes = [[of.counts.answers[name].size or math.nan for name in both] for of in (base, run)]
    return sum(sizes[0]), sum(sizes[1])


def _doubts_of_cost(run: Run, cost: float) -> list[str]:
    """Return why the cost of a step can't be right."""
    if cost < LEAST_VERIFY_RATIO:
        why = "less than a pass of the target alone: it had another load, or a busy machine"
        return [f"{run.path.name}: a step would cost {cost:.2f} passes, {why}"]
    if cost > IMPLAUSIBLE:
        why = "as in a server that still compiles"
        return [f"{run.path.name}: a step costs {cost:.0f} passes, {why}"]
    return []


def gain(base: Counts, run: Counts) -> Speed:
    """Return the gain of a run with drafts over one without; NaN where a page lacks a count.

    It is seconds a token of the target alone over those with drafts. Passes without a draft cost
    as much as those of the target alone. With s0 seconds a pass of the target alone, a step with a
    draft costs (seconds - (passes - drafts) s0) / (drafts s0).
    """

    def over(above: float, below: float) -> float:
        return above / below if below else math.nan

    pass_seconds = over(base.seconds, base.passes)
    spent = run.seconds - (run.passes - run.drafts) * pass_seconds
    speedup = over(over(base.seconds, base.emitted), over(run.seconds, run.emitted))
    return Speed(speedup, cost=over(spent, run.drafts * pass_seconds))


def _by_answers(runs: Sequence[Counts], statistics: Resampling) -> tuple[str, Estimate | None]:
    """Return the clock that all runs have of each answer, and the (R - 1,) speeds."""
    answers = [run.answers for run in runs]
    prompts = [name for name in answers[0] if all(name in others for others in answers)]
    sizes = [[of[name].size or math.nan for of in answers] for name in prompts]
    tokens = np.array(sizes, dtype=np.float64)  # (P, R)
    for clock, words in CLOCKS.items():
        seconds = np.array([[getattr(of[name], clock) for of in answers] for name in prompts])
        if not prompts or not np.isfinite(seconds).all() or not np.isfinite(tokens).all():
            continue
        bootstrap = speed_bootstrap(len(prompts), *statistics)
        speeds = speedups(seconds, tokens, [0] * len(runs), [range(1, len(runs))], bootstrap)
        return f"{words}, {len(prompts)} prompts", Estimate(*(numbers[1:] for numbers in speeds))
    return "", None


def recommendation(base: Run, runs: Sequence[Run], speeds: Sequence[Speed]) -> list[str]:
    """Return the recommended draft length, which to measure next, and the engine's flags."""
    pairs = list(zip(runs, speeds, strict=True))
    known = [(run, speed) for run, speed in pairs if run.length and not math.isnan(speed.times)]
    if not known:
        lengths = "how long its drafts are (decoding.draft_length=N)"
        missing = [
            f"{run.path.name} does not tell "
            f"{'seconds as BASE does' if math.isnan(speed.times) else lengths}"
            for run, speed in pairs
        ]
        return [
            f"no recommendation: {'; '.join(missing)}: give two pages of /metrics, or two files of "
            "answers that python -m pipeline.ask saved"
        ]
    known = [(run, speed) for run, speed in known if speed.compares]
    if not known:
        return [
            f"no recommendation: no run compares with {base.path.name} (see above): send the same "
            "requests to both servers, as many at once"
        ]
    run, speed = max(known, key=lambda pair: pair[1].times)
    length = run.length or 0
    name, flags = FLAGS.get(run.engine, ("draft length", ""))
    following = _following(known)
    if speed.times <= 1:
        told = f"{speed.times:.2f} times" if speed.rough else str(speed)
        return [
            f"no drafts: the best length measured, {name} = {length}, is {told} as fast{following}"
        ]
    doubt = _doubt(speed)
    if doubt:
        return [f"{doubt}: {name} = {length}: {speed}{following}"]
    lines = [f"{name} = {length}: {speed}{following}"]
    if flags:
        set_by = flags.format(n=length, more=length + 1)
        lines.append(f"flags: {set_by}, the rest as in {run.path.name}'s server")
    return lines


def _doubt(speed: Speed) -> str:
    """Return why a gain is not sure, empty where it is."""
    if speed.low <= 1:
        return f"not decided, the {'rough ' if speed.rough else ''}interval holds 1"
    if math.isnan(speed.low):
        return "not sure, two pages without a count of requests give no interval"
    if speed.rough and speed.times < SURE:
        return f"not sure, a gain of two pages below {SURE:g}"
    return ""


def _following(known: Sequence[tuple[Run, Speed]]) -> str:
    """Return which length to measure next, by the acceptance of the longest drafts.

    A length costs what was measured, or what lies between; one more than the longest is tried.
    """
    by_speed = sorted(known, key=lambda pair: pair[1].times)  # of one length the fastest counts
    costs = {run.length or 1: speed.cost for run, speed in by_speed if not math.isnan(speed.cost)}
    longest = max((run for run, _ in known), key=lambda run: run.length or 0)
    rates = [min(rate, 1.0) for rate in longest.acceptance[0]]
    unknown = next((at for at, rate in enumerate(rates) if math.isnan(rate)), len(rates))
    if not costs or not unknown:
        return ""
    lengths = {run.length for run, _ in known}
    length = longest.length or 1
    best = best_length(rates[:unknown], costs_by_length(costs, length + 1))
    if best == 0:
        measured = max(costs)
        rho = (costs[measured] - 1) / measured
        return (
            f"; a drafted token costs {rho:.2f} passes and {longest.acceptance[1]:.2f} are "
            "accepted: no length pays"
        )
    return "" if best in lengths else f"; {best} was not measured, ask with {best} next"


def untold(runs: Sequence[Run]) -> list[str]:
    """Return a line for each run that lacks a count, with what would give it."""
    lines = []
    for run in runs:
        counts = {"drafts": run.counts.drafts, "passes": run.counts.passes}
        lacking = [name for name, count in counts.items() if math.isnan(count)]
        if run.page is run.counts and run.counts.drafting and lacking:
            lines.append(
                f"{run.path.name} lacks the counter of {' and of '.join(lacking)}, so what follows "
                "from it is shown as -: give the whole page, or that of a newer server"
            )
        if run.counts.drafting is None:
            remedy = REMEDIES.get(run.engine) or ", ".join(REMEDIES.values())
            remedy += ", or give the page of /metrics"
            if run.page is run.counts:
                remedy = f"take a newer {run.engine}, or give answers that count them"
            lines.append(
                f"{run.path.name} does not count drafts, so what is not known is shown as -: "
                f"{remedy}"
            )
    return lines


def screen(runs: Sequence[Run], speeds: Sequence[Speed] = ()) -> list[str]:
    """Return the lines of the table."""
    rows = []
    for i, run in enumerate(runs):
        counts, (rates, _) = run.counts, run.acceptance
        row = {
            "run": run.path.name,
            "drafts of": "-" if run.length is None else run.length or "none",
            "accepted by position": " ".join(_shown(".3f", rate) for rate in rates) or "-",
            "accepted of drafted": _accepted(counts),
            "tokens": _shown(",.0f", counts.emitted),
            "passes": _shown(",.0f", counts.passes, counts.most_passes),
            "tokens per pass": _shown(".3f", *counts.tokens_per_pass),
        }
        if speeds:
            cost = speeds[i].cost
            row["a step costs"] = "-" if math.isnan(cost) else f"{cost:.2f} passes"
            row["speed"] = str(speeds[i])
        rows.append(row)
    return pd.DataFrame(rows).to_string(index=False).splitlines()


def _accepted(counts: Counts) -> str:
    if counts.drafting is None:
        return "-"
    return f"{_shown(',.0f', counts.accepted)} of {_shown(',.0f', counts.drafted)}"


def _shown(form: str, *ends: float) -> str:
    """Return a number as printed, or the two ends between which it lies."""
    printed = dict.fromkeys("-" if math.isnan(end) else format(end, form) for end in ends)
    return " to ".join(printed)
