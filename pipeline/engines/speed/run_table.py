"""The table of runs that `pipeline.engine` prints, and a line for each count that a run lacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from pipeline.engines.answers.draft_counts import total_counts
from pipeline.engines.counts import Counts
from pipeline.engines.engine_base import BY_POSITION, MEAN_LENGTH, RATE
from pipeline.engines.registry import counts_remedy, engine_named
from pipeline.engines.speed.comparison import Speed
from pipeline.engines.speed.runs import Run


def run_table(runs: Sequence[Run], speeds: Sequence[Speed] = ()) -> list[str]:
    """Return the lines of a table with a row for each run."""
    rows = []
    for i, run in enumerate(runs):
        row = _counted(run)
        if speeds:
            cost = speeds[i].cost
            row["a step costs"] = "-" if math.isnan(cost) else f"{cost:.2f} passes"
            row["speed"] = str(speeds[i])
        rows.append(row)
    return pd.DataFrame(rows).to_string(index=False).splitlines()


def _counted(run: Run) -> dict[str, object]:
    """Return what a run counts, as it is printed."""
    counts = run.counts
    rates = run.acceptance[0]
    return {
        "run": run.path.name,
        "drafts of": "-" if run.length is None else run.length or "none",
        "accepted by position": " ".join(_shown(".3f", rate) for rate in rates) or "-",
        "accepted of drafted": _accepted(counts),
        "tokens": _shown(",.0f", counts.emitted),
        "passes": _shown(",.0f", counts.least_passes, counts.most_passes),
        "tokens per pass": _shown(".3f", *counts.tokens_per_pass),
    }


def _accepted(counts: Counts) -> str:
    if counts.drafting is None:
        return "-"
    return f"{_shown(',.0f', counts.accepted)} of {_shown(',.0f', counts.drafted)}"


def _shown(form: str, *ends: float) -> str:
    """Return a number as printed, or the two ends between which it lies."""
    printed = dict.fromkeys("-" if math.isnan(end) else format(end, form) for end in ends)
    return " to ".join(printed)


def source_table(runs: Sequence[Run]) -> list[str]:
    """Return the lines of a table of each run by source of the prompts, if answers have several."""
    rows = []
    for run in runs:
        answers = run.counts.answers
        sources = sorted({answer.source for answer in answers.values()} - {""})
        for source in sources if len(sources) > 1 else ():
            of_source = {
                name: answer for name, answer in answers.items() if answer.source == source
            }
            counts = total_counts(run.engine, of_source)
            if counts.drafting:
                part = replace(run, counts=counts, page=None)
                rows.append({"source": source, "answers": str(len(of_source)), **_counted(part)})
    return pd.DataFrame(rows).to_string(index=False).splitlines() if rows else []


def engine_figures(runs: Sequence[Run]) -> list[str]:
    """Return what the engine would have printed of these counts, beside what is shown here.

    An engine counts calls with a draft alone, and the tokens that the last call accepts beyond the
    end of an answer. Runs with the same figures share a line.
    """
    names: dict[str, list[str]] = {}
    for run in runs:
        counts = run.counts
        drafts = counts.drafts or math.nan
        values = {
            MEAN_LENGTH: [1.0 + counts.accepted / drafts],
            BY_POSITION: [accepted / drafts for accepted in counts.by_place],
            RATE: [counts.accepted / (counts.drafted or math.nan)],
        }
        texts = []
        for name, figure in engine_named(run.engine).figures.items():
            known = [_shown(".3f", value) for value in values[figure]]
            if known and "-" not in known:
                texts.append(f"{name} {' '.join(known)}")
        if texts:
            figures = f"as {run.engine} prints it: {', '.join(texts)}"
            names.setdefault(figures, []).append(run.path.name)
    return [f"{', '.join(shared)} {figures}" for figures, shared in names.items()]


def missing_counts(runs: Sequence[Run]) -> list[str]:
    """Return a line for each run that lacks a count, with what would give it."""
    lines = []
    for run in runs:
        counts = {"drafts": run.counts.drafts, "passes": run.counts.least_passes}
        lacking = [name for name, count in counts.items() if math.isnan(count)]
        if run.page is run.counts and run.counts.drafting and lacking:
            lines.append(
                f"{run.path.name} lacks the counter of {' and of '.join(lacking)}, so what follows "
                "from it is shown as -: give the whole page, or that of a newer server"
            )
        if run.counts.drafting is None:
            if run.page is run.counts:
                remedy = f"take a newer {run.engine}, or give answers that count them"
            else:
                remedy = f"{counts_remedy(engine_named(run.engine))}, or give the page of /metrics"
            lines.append(
                f"{run.path.name} does not count drafts, so what is not known is shown as -: "
                f"{remedy}"
            )
    return lines
