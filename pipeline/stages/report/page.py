"""Puts the page together: the verdict, an answer in colours, and the list of the files beside it.

The page is one file, the report as people look at it. Template and style lie in `web/`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import jinja2
import pandas as pd

from analysis.acceptance.verdict import Advice, Run, advice_text, advise, drafter_in_words
from analysis.decoding.answers import accuracy, losses
from analysis.decoding.metrics import Decoded
from analysis.decoding.predicted import draft_lengths
from analysis.decoding.speed import signs_of_load
from analysis.report.answer import EPS, FATES, median_answer
from analysis.report.log_advice import log_advice
from analysis.report.table import Figure, Section, Table
from analysis.report.text import UNDEFINED, interval_text, times_text
from analysis.statistics.bootstrap import FEW_PROMPTS, Resampling
from pipeline.decoding.decoded import read_answered
from pipeline.stages.report.setups import introduction, setup
from pipeline.stages.report.sources import Measured
from pipeline.store import VERDICT, Artifact

WEB = Path(__file__).parent / "web"
MARGIN = 0.05  # where the study was not asked for another: the loss of accuracy that matters
Row = dict[str, str]


def page_files(measured: Measured, sections: Sequence[Section], study: str) -> dict[str, bytes]:
    """Return the page, one file that needs no other and no network, and the files beside it.

    That is the verdict as text, and plain pages of all tables and figures.

    Args:
        measured: of all targets.
        sections: all tables and figures by section, those beside the published last.
        study: its name on the command line.
    """
    spec, sources, targets = measured.spec, measured.sources, measured.targets
    results, timed = measured.results, bool(measured.decoded)
    setups = {
        target.label: setup(target, source) for target, source in zip(targets, sources, strict=True)
    }
    advice = verdicts_of(measured, study)
    if "log" in sources[0].distributions.task.settings:
        advice = [log_advice(own, target) for own, target in zip(advice, targets, strict=True)]
    methods = [[method_row(run, str(spec.drafter)) for run in own.drafters] for own in advice]
    table = method_table(results.targets, methods)
    text_of_verdict = advice_text(advice) + (f"\n{table}\n" if table else "")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["whole"] = whole
    css = (WEB / "page.css").read_text(encoding="utf-8")
    environment.globals |= {"anchor": anchor, "few_prompts": FEW_PROMPTS}
    environment.globals |= {"study": spec.study, "note": spec.note, "css": css}
    opening = introduction(setups, spec)
    logged = [x for x in sources if "log" in x.distributions.task.settings]
    shown = {
        "drafter": results.drafter,
        "targets": results.targets,
        "advice": advice,
        "methods": methods,
        "answers": [median_answer(target) for target in targets],
        "fates": FATES,
        "eps": EPS,
        "confidence": 100 * spec.statistics.confidence,
        "steps": [len(target.tokens) for target in targets],
        "prompts": [target.bootstrap.count for target in targets],
        "soundness": [source.acceptance.artifact.facts for source in sources if source.acceptance],
        "log": [source.distributions.artifact.facts["log"] for source in logged],
        "sections": sections,
        "introduction": opening,
        "setups": setups,
        "settings": dict.fromkeys(name for facts in setups.values() for name in facts),
    }
    text = environment.get_template("page.html").render(page=shown)
    files = {"index.html": text, VERDICT: text_of_verdict}
    for place in ("", "timings/"):
        if placed := [section for section in sections if section.place == place]:
            files[f"{place}tables.html"] = environment.get_template("tables.html").render(
                sections=placed, introduction=opening, timed=timed, place=place
            )
    return {name: content.encode() for name, content in files.items()}


def method_row(run: Run, drafter: str) -> Row:
    """Return a drafter's row of the table of methods: one method, and all its numbers.

    Args:
        run: one of `Advice.drafters`.
        drafter: printed name of the study's drafter.
    """
    tokens = (run[f"tokens_per_call{end}"] for end in ("", "_ci_low", "_ci_high"))
    value, low, high = (100 * run[f"rate{end}"] for end in ("", "_ci_low", "_ci_high"))
    rate = f"{value:.1f} %" + (f" [{low:.1f}, {high:.1f}]" if low < high else "")
    return {
        "name": drafter_in_words(run, drafter),
        "answer": run["answer"],
        "speed": times_text(run["speedup"], run["ci_low"], run["ci_high"]),
        "tokens": interval_text(*tokens),
        "rate": UNDEFINED if pd.isna(value) else rate,
        "length": str(run["draft_length"]),
    }


def method_table(targets: Sequence[str], methods: Sequence[Sequence[Row]]) -> str:
    """Return the table of methods as a Markdown table to paste; empty without rows.

    Args:
        targets: printed names.
        methods: by target, rows of `method_row`.
    """
    rows = [
        f"| {target} | {row['name']} | {row['length']} | {row['answer']} | {row['speed']} "
        f"| {row['tokens']} | {row['rate']} |"
        for target, of_target in zip(targets, methods, strict=True)
        for row in of_target
    ]
    head = "| target | drafter | γ | faster | times as fast | tokens a call | drafts accepted |"
    return "\n".join([head, "|---" * 7 + "|", *rows]) if rows else ""


def anchor(item: Table | Figure) -> str:
    """Return the place of a table or figure within `tables.html`."""
    return f"{'tables' if isinstance(item, Table) else 'figures'}/{item.name}"


def whole(text: str) -> str:
    """Return a text that is not broken within a setting or an interval, or before a unit.

    >>> whole("t = 0.2, 95 % [1, 2]") == "t\u00a0=\u00a00.2, 95\u00a0% [1,\u00a02]"
    True
    """
    text = text.replace(" = ", "\u00a0=\u00a0").replace(" %", "\u00a0%")
    return re.sub(r"\[[^]]*\]", lambda bracket: bracket[0].replace(" ", "\u00a0"), text)


def verdicts_of(measured: Measured, study: str) -> list[Advice]:
    """Return the verdict on every target of a study, given by its name on the command line."""
    spec, sources = measured.spec, measured.sources
    command = f"python -m pipeline study={study}"
    if not measured.decoded:
        return [
            advise(target.label, spec.drafter or "", None, command=command) for target in sources
        ]
    margin = MARGIN if spec.margin is None else spec.margin
    return [
        verdict(
            decoded,
            speeds,
            answers=None if target.accuracy is None else target.accuracy.artifact,
            statistics=spec.statistics,
            margin=margin,
            command=command,
        )
        for decoded, speeds, target in zip(measured.decoded, measured.speeds, sources, strict=True)
    ]


def verdict(
    decoded: Decoded,
    speeds: pd.DataFrame,
    *,
    answers: Artifact | None,
    statistics: Resampling,
    margin: float,
    command: str,
) -> Advice:
    """Return the verdict on a target that was decoded.

    Args:
        decoded: its answers and calls.
        speeds: their table of `speed`.
        answers: of stage accuracy; None where it was not run.
        statistics: of the bootstrap.
        margin: the loss of accuracy that matters.
        command: that runs the study, up to a stage's name.
    """
    scores = None
    if answers is not None:
        answered = read_answered(decoded.target, answers)
        scores = losses(accuracy(answered, *statistics, margin))
    lengths, busy = draft_lengths(decoded, speeds), signs_of_load(speeds)
    return advise(
        decoded.target,
        decoded.drafter,
        speeds,
        lengths,
        answers=scores,
        margin=margin,
        busy=busy,
        command=command,
    )
