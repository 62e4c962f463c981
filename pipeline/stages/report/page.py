"""Renders the report's page, a single self-contained file, and its verdict as a text file.

The template and the style sheet are in `web/`.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jinja2
import pandas as pd
from PIL import Image

from analysis.decoding.paired_accuracy import losses
from analysis.decoding.predicted_speed import speeds_of_timed_calls
from analysis.decoding.speed import signs_of_load
from analysis.decoding.verdict import Timed
from analysis.report.headline_tables import (
    engine_lines,
    methods_table,
    relax_speed_table,
    relax_table,
)
from analysis.report.median_answer import STEP_OUTCOMES, median_answer
from analysis.report.results import ASSUMED_KL
from analysis.report.settings_table import settings_table
from analysis.report.speed_by_length_figure import NAME as LENGTHS
from analysis.report.speed_by_length_figure import missed_predictions
from analysis.report.table import Section, Table
from analysis.report.text import few_notes
from analysis.report.tree_summary import tree_sentence, tree_summary
from analysis.report.verdict_markdown import verdict_markdown
from analysis.report.verdict_sentences import Advice, advise, cost_sentence, log_advice
from pipeline.core.store import VERDICT
from pipeline.stages.report.inputs import Content
from pipeline.stages.report.setup_text import introduction, machine_lines, setup

WEB = Path(__file__).parent / "web"
COLOURS = 64  # of a figure embedded in the page
BARS = "margins"  # the figure that is shown before the answers


def page_files(
    content: Content, sections: Sequence[Section], files: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Return, by path, the page, the verdict as text, and the files of the page's own tables.

    `files` are those of the sections; the page embeds some of them.
    """
    targets = content.targets
    sources = content.sources
    results = content.results
    pairs = zip(content.answered, content.accuracies, strict=True)
    scores = {answered.target: losses(table) for answered, table in pairs}
    command = f"python -m pipeline study={content.task.label}"
    advice = [_advice(content, at, scores, command) for at in range(len(targets))]
    predicted = {
        pair.target: table for pair, table in zip(content.decoded, content.predicted, strict=True)
    }
    methods = methods_table(advice, results, predicted)
    trees = tree_summary(content.decoded, content.accepted)
    tried = [rule for speeds in content.speeds for rule in speeds["rule"].dropna()]
    relax = relax_table(results, tried, scores)
    relax_speed = None
    if relax is not None and any(map(len, predicted.values())):
        relax_speed = relax_speed_table(relax, predicted, advice)
        if relax_speed.data["speed"].isna().all():
            relax_speed = None
    settings = settings_table(results, targets)
    setups = {of.label: setup(of, source) for of, source in zip(targets, sources, strict=True)}
    artifacts = [source.artifacts for source in sources]
    items = [item for section in sections for item in section.items if item is not None]
    page = _template(files).render(
        css=(WEB / "page.css").read_text(encoding="utf-8"),
        study=content.task.settings,
        command=command,
        drafter=results.drafter,
        targets=targets,
        advice=advice,
        headline=_headline(content, trees),
        trees=trees,
        methods=methods,
        engines=engine_lines(methods),
        costs=list(map(cost_sentence, content.decoded, content.speeds)),
        few=few_notes(target.bootstrap.count for target in targets),
        machine=machine_lines(sources),
        soundness=[made["acceptance"].metadata for made in artifacts if "acceptance" in made],
        relax=relax,
        relax_speed=relax_speed,
        bars=[item for item in items if item.name == BARS],
        lengths=[item for item in items if item.name == LENGTHS and trees is None],
        missed_predictions=[
            line if len(targets) == 1 else f"{pair.target}: {line}"
            for pair, speeds, table in zip(
                content.decoded, content.speeds, content.predicted, strict=True
            )
            for line in missed_predictions(
                speeds.assign(of_timed_calls=speeds_of_timed_calls(pair))[~pair.drafts_trees], table
            )
        ],
        answers=[median_answer(target) for target in targets],
        fates=STEP_OUTCOMES,
        eps=ASSUMED_KL,
        settings=settings,
        sections=sections,
        introduction=introduction(setups, content.task.runtime.statistics),
        setups=setups,
        facts=dict.fromkeys(name for facts in setups.values() for name in facts),
    )
    verdict = verdict_markdown(advice, methods)
    page_files = {"index.html": page.encode(), VERDICT: verdict.encode()}
    timed = [("timings/", table) for table in (methods, relax_speed)]
    for place, table in (*timed, ("", relax), ("", settings), ("", trees)):
        if table is not None:
            page_files |= {f"{place}{path}": text for path, text in table.files().items()}
    return page_files


def _template(files: Mapping[str, bytes]) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"non_breaking": non_breaking}
    environment.globals["embedded"] = lambda path: embedded(files[path])
    environment.tests["table"] = lambda item: isinstance(item, Table)
    return environment.get_template("page.html")


def _headline(content: Content, trees: Table | None) -> str:
    """Return the question that the page answers first."""
    if trees is not None:
        if trees.data["lossless"].all():
            return "How many tokens does a draft tree give?"
        return "How many more tokens does a relaxed rule give?"
    if content.results.drafter:
        return "Should I draft?"
    return "How much drafter error is tolerated?"


def _advice(content: Content, at: int, scores: Mapping[str, pd.DataFrame], command: str) -> Advice:
    """Return the advice for target number `at`."""
    source = content.sources[at]
    target = content.targets[at]
    if "log" in source.tasks["distributions"].settings:
        return log_advice(target)
    timed = None
    if content.decoded:
        speeds = content.speeds[at]
        busy = signs_of_load(speeds)
        timed = Timed(speeds, content.ratios[at], content.predicted[at], busy)
    advice = advise(
        target.label,
        content.results.drafter,
        timed,
        scores.get(target.label),
        content.task.settings["margin"] or 0.0,  # None where no answers were scored
        command=command,
    )
    own = tree_sentence(content.decoded[at], content.accepted[at]) if content.decoded else ""
    if own:
        return replace(
            advice, sentence=own, outlooks=[f"Speed: {advice.sentence}", *advice.outlooks]
        )
    return advice


def embedded(picture: bytes) -> str:
    """Return a picture as a data URL, reduced to few colours."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    small = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(small.getvalue()).decode()}"


def non_breaking(text: str) -> str:
    """Put non-breaking spaces into settings, intervals and pairs of numbers, and before units.

    >>> non_breaking("t = 0.2, 95 % [1, 2]") == "t\u00a0=\u00a00.2, 95\u00a0% [1,\u00a02]"
    True
    """
    text = text.replace(" = ", "\u00a0=\u00a0").replace(" %", "\u00a0%")
    return re.sub(r"\[[^]]*\]|\([\d., ]*\)", lambda pair: pair[0].replace(" ", "\u00a0"), text)
