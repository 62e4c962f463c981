"""Runs of an engine beside each other: acceptance, tokens a pass, cost of a step, speed-up.

A run is a file of answers, or a page of /metrics. Seconds are, where both runs have them of every
answer, those of decoding by the engine's clock (llama.cpp), else those of whole requests
(`pipeline.ask`), with an interval over prompts; else those of the pages, without one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.decoding.formulas import formula_speedup
from analysis.decoding.metrics import Decoded
from analysis.decoding.speed import speedups
from analysis.statistics.bootstrap import Resampling
from analysis.statistics.trajectories import acceptance_by_position
from pipeline.engines.answers import counted, read_bytes
from pipeline.engines.clock import gain_of, has_pages, page_difference, read_run
from pipeline.engines.counts import EngineCounts, read_counts, read_sums
from pipeline.engines.pages import EnginePage, is_page, read_page
from pipeline.errors import PipelineError

LENGTH_NAMES = {"llama.cpp": "--spec-draft-n-max"}  # of the draft length; else vLLM's
SAME_TOKENS = 0.02  # by which the tokens of the same requests may differ
CLOCKS = {"decode_seconds": "decoding, by the engine's clock", "seconds": "whole requests"}


@dataclass(frozen=True)
class Run:
    """A run of an engine.

    Attributes:
        path: its file.
        engine: empty where nothing tells it.
        length: drafted tokens of a full draft; 0 without drafts, None where it is not told.
        drafts: calls with a draft; NaN where they are not told, as the next two.
        drafted: tokens.
        accepted: tokens.
        acceptance: share of the tested tokens that are accepted, by position; empty if not told.
        rate: of all positions together, NaN if not told.
        emitted: tokens of the passes after the prompts', NaN where they are not told.
        passes: the least and the most of them.
        counts: of the answers, None of a page.
        page: the difference of the pages beside the answers, or the page, None without one.
    """

    path: Path
    engine: str
    length: int | None
    drafts: float
    drafted: float
    accepted: float
    acceptance: Sequence[float]
    rate: float
    emitted: float
    passes: tuple[float, float]
    counts: EngineCounts | None = None
    page: EnginePage | None = None


class Speed(NamedTuple):
    """How many times as fast as the base a run is, with its interval (NaN without one)."""

    times: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return it as printed."""
        if math.isnan(self.times):
            return "-"
        interval = "" if math.isnan(self.low) else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.times:.2f} times{interval}"


@dataclass
class Compared:
    """Runs beside a base.

    Attributes:
        speeds: of each run.
        costs: of a step with a draft, in passes of the base; NaN where no clock tells it.
        clock: what the speeds are of.
        notes: what the reader must know of them.
    """

    speeds: list[Speed]
    costs: list[float]
    clock: str = ""
    notes: list[str] = field(default_factory=list)


def read_engine_run(path: Path, length: int | None = None) -> Run:
    """Read a run.

    Args:
        path: answers, or a page of /metrics; of NAME.after.txt with NAME.before.txt beside it the
            difference of the two.
        length: of a full draft, where the file does not tell it.

    Raises:
        PipelineError: the file can't be read; names it, and the line where there is one.
    """
    text = read_bytes(path).decode("utf-8", errors="replace")
    if is_page(text):
        before = path.with_name(path.name.replace(".after.", ".before."))
        page = read_page(path, text)
        if before != path and before.is_file():
            page = page_difference(before, path)
        return _of_page(path, page, length)
    counts = read_sums(path)
    if counts.engine:
        counts = read_counts(path)
    pages = has_pages(path) and path.suffix == ".jsonl"
    found = read_run(path) if pages else None
    emitted, passes = counts.emitted, (counts.passes, counts.most_passes)
    if found is not None:
        if not counts.by_place or not counts.engine:  # which llama.cpp's answers do not tell
            return replace(_of_page(path, found, length), counts=counts)
        if has_pages(path, len(counts.answers)):
            emitted, passes = found.emitted, (found.passes, found.passes)
    told = len(counts.by_place) if counts.engine else 0
    answers = counts.answers.values()
    steps = [step for answer in answers for step in answer.per_step or ()]
    rates = _by_place(counts.calls, counts.by_place)
    if steps and not any(answer.per_step is None for answer in answers):
        kept, tried = np.array(steps, dtype=np.intp).T
        tested, passed = acceptance_by_position(np.minimum(kept + 1, tried), kept)
        rates = (passed / tested).tolist(), float(passed.sum() / tested.sum())
    return Run(
        path,
        counts.engine or (found.engine if found else ""),
        0 if not counts.engine else told or length,
        counts.calls,
        counts.drafted,
        counts.accepted,
        *rates,
        emitted,
        passes,
        counts,
        found,
    )


def _of_page(path: Path, page: EnginePage, length: int | None) -> Run:
    told = len(page.by_place) or length
    rates = _by_place(page.drafts, page.by_place)
    return Run(
        path,
        page.engine,
        told if page.drafts else 0,
        page.drafts,
        page.drafted,
        page.accepted,
        *rates,
        page.emitted,
        (page.passes, page.passes),
        page=page,
    )


def _by_place(drafts: float, accepted: Sequence[float]) -> tuple[list[float], float]:
    """Return the accepted share of tested tokens, by position and of all; drafts are full."""
    tested = [drafts, *accepted[:-1]] if accepted else []
    rates = [a / n if n else math.nan for a, n in zip(accepted, tested, strict=True)]
    return rates, sum(accepted) / sum(tested) if sum(tested) else math.nan


def compare(base: Run, runs: Sequence[Run], statistics: Resampling) -> Compared:
    """Return the speed and the cost of a step of each run.

    Args:
        base: without drafts.
        runs: with drafts.
        statistics: of the bootstrap over prompts; intervals hold for all runs together.

    Raises:
        PipelineError: the base drafts, a run does not, or they are of two engines.
    """
    if base.length != 0:
        raise PipelineError(f"{base.path} counts drafts: give the run without drafts first")
    for run in runs:
        if run.length == 0:
            older = "; llama.cpp's /metrics count none in older builds: give its answers"
            llama = run.page is not None and run.counts is None and run.engine == "llama.cpp"
            raise PipelineError(
                f"{run.path} counts no drafts: start this server with a drafter{older * llama}"
            )
        if base.engine and run.engine and base.engine != run.engine:
            raise PipelineError(
                f"{base.path} is of {base.engine} and {run.path} of {run.engine}: give those of one"
            )
    found = Compared([], [])
    for run in runs:
        cost = math.nan
        if base.page is not None and run.page is not None:
            told = gain_of(base.page, run.page)
            cost = told.step_cost
            found.speeds.append(Speed(told.speedup, math.nan, math.nan))
            ratio = run.page.emitted / base.page.emitted if base.page.emitted else math.nan
            if abs(ratio - 1) > SAME_TOKENS:
                found.notes.append(
                    f"{base.path.name} counts {base.page.emitted:,.0f} tokens and {run.path.name} "
                    f"{run.page.emitted:,.0f}: other requests, or a server that was started again"
                )
            if cost <= 0:
                found.notes.append(f"{run.path.name}: a step would cost {cost:.2f} passes")
                cost = math.nan
        else:
            found.speeds.append(Speed(math.nan, math.nan, math.nan))
        found.costs.append(cost)
    if not all(math.isnan(speed.times) for speed in found.speeds):
        found.clock = "sums of the pages"
    _with_intervals(base, runs, statistics, found)
    return found


def _with_intervals(
    base: Run, runs: Sequence[Run], statistics: Resampling, found: Compared
) -> None:
    """Put speeds by the clock of single answers in the place of the pages', where all have one."""
    if any(run.counts is None for run in (base, *runs)):
        return
    answers = [run.counts.answers for run in (base, *runs) if run.counts is not None]
    prompts = [name for name in answers[0] if all(name in others for others in answers)]
    for clock, words in CLOCKS.items():
        spent = np.array([[getattr(of[name], clock) for name in prompts] for of in answers])
        sizes = [[of[name].tokens or math.nan for name in prompts] for of in answers]
        tokens = np.array(sizes, dtype=np.float64)
        if not prompts or not np.isfinite(spent).all() or not np.isfinite(tokens).all():
            continue
        table = speedups(_decoded(spent, tokens), *statistics)
        ends = table[["speedup", "ci_low", "ci_high"]].to_numpy()[1:]
        found.speeds = [Speed(*map(float, row)) for row in ends]
        found.clock = f"{words}, {len(prompts)} prompts"
        return


def _decoded(seconds: np.ndarray, tokens: np.ndarray) -> Decoded:
    """Return (R, P) seconds and tokens as runs of which the first is the target alone."""
    runs, prompts = seconds.shape
    drafters = ["none"] + ["model"] * (runs - 1)
    table = pd.DataFrame({"drafter": drafters, "temperature": 0.0, "sampling": "argmax"})
    keys = {
        "prompt_id": np.tile(np.arange(prompts), runs),
        "run": np.repeat(np.arange(runs), prompts),
    }
    data = pd.DataFrame(keys | {"n_tokens": tokens.ravel()})
    answers = pd.DataFrame(keys | {"seconds": seconds.ravel(), "first_seconds": 0.0})
    nothing = pd.DataFrame()
    return Decoded(
        "", "", table, data, nothing, answers, spans=nothing, trajectory=nothing, size={}, rules={}
    )


def recommendation(runs: Sequence[Run], found: Compared) -> list[str]:
    """Return the recommended draft length, which to measure next, and the engine's flags."""
    known = [
        i for i, run in enumerate(runs) if run.length and not math.isnan(found.speeds[i].times)
    ]
    if not known:
        return [
            "no recommendation: the files do not tell seconds and draft lengths; ask the servers "
            "with python -m pipeline.ask, or give their pages of /metrics (decoding.draft_length "
            "where a file does not tell it)"
        ]
    best = max(known, key=lambda i: found.speeds[i].times)
    run, speed = runs[best], found.speeds[best]
    length = run.length or 0
    name = LENGTH_NAMES.get(run.engine, "num_speculative_tokens")
    sentence = f"{name} = {length}: {speed}"
    if speed.times <= 1:
        sentence = f"no drafts: {sentence}"
    elif speed.low <= 1:
        sentence += " (not sure: the interval holds 1)"
    measured = {runs[i].length for i in known}
    others = [n for n in (length + 1, length - 1) if n >= 1 and n not in measured]
    if others:
        following = max(others, key=lambda n: _predicted(run, found.costs[best], n))
        sentence += f"; {following} was not measured, ask with {following} next"
    lines = [sentence]
    if speed.times > 1:
        flag = (
            f"--spec-draft-n-max {length}"
            if run.engine == "llama.cpp"
            else '--speculative-config \'{..., "num_speculative_tokens": ' + f"{length}}}'"
        )
        lines.append(f"flags: {flag}, the rest as in {run.path.name}'s server")
    return lines


def _predicted(run: Run, cost: float, length: int) -> float:
    """Return the closed form's speed at another length; without a cost the longer comes first."""
    if math.isnan(cost) or math.isnan(run.rate):
        return length
    return formula_speedup(min(run.rate, 1.0), length, max(cost - 1, 0) / (run.length or 1))


def screen(base: Run | None, runs: Sequence[Run], found: Compared | None) -> list[str]:
    """Return the lines of the table."""
    rows = []
    for i, run in enumerate(runs):
        passes = sorted(set(run.passes))
        per_pass = [run.emitted / some if some else math.nan for some in passes]
        row = {
            "run": run.path.name,
            "drafts of": "?" if run.length is None else run.length or "none counted",
            "accepted by position": " ".join(f"{rate:.3f}" for rate in run.acceptance) or "-",
            "accepted of drafted": f"{run.accepted:,.0f} of {_shown([run.drafted], ',.0f')}",
            "tokens": _shown([run.emitted], ",.0f"),
            "passes": _shown(passes, ",.0f"),
            "tokens per pass": _shown(sorted(per_pass), ".3f"),
        }
        if found is not None:
            cost = found.costs[i]
            row["a step costs"] = "-" if math.isnan(cost) else f"{cost:.2f} passes"
            row["speed"] = str(found.speeds[i])
        rows.append(row)
    lines = pd.DataFrame(rows).to_string(index=False).splitlines()
    for run in runs if base is None else (base, *runs):
        if run.counts is not None and run.counts.excluded:
            lines.append(f"{run.path.name}: left out: {counted(run.counts.excluded)}")
    if found is not None:
        lines += [f"speed beside the target alone: {found.clock}"] if found.clock else []
        lines += found.notes
    return lines


def _shown(ends: Sequence[float], form: str) -> str:
    """Return a number as printed, or the two ends between which it lies."""
    return " to ".join("-" if math.isnan(end) else format(end, form) for end in ends)
