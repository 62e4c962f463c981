"""Puts the page together: one file that needs no other, and the verdict as text beside it.

Template and style lie in `web/`.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
import pandas as pd
from PIL import Image

from analysis.decoding.paired_accuracy import losses
from analysis.decoding.speed import signs_of_load
from analysis.decoding.verdict import Advice, advise, engines
from analysis.report import headline_tables as first_screen
from analysis.report.results import EPS, FATES, median_answer
from analysis.report.table import Section, Table
from analysis.report.text import few_notes
from pipeline.core.store import VERDICT
from pipeline.stages.report.inputs import Content
from pipeline.stages.report.setup_text import introduction, machine_lines, setup

WEB = Path(__file__).parent / "web"
COLOURS = 64  # of a figure on the page
BARS = "margins"  # the figure that stands before the answers


def page_files(
    content: Content, sections: Sequence[Section], files: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Return the page, the verdict as text, and the files of the page's own tables.

    `files` are those of the sections, by path.
    """
    targets = content.targets
    sources = content.sources
    results = content.results
    pairs = zip(content.answered, content.accuracies, strict=True)
    scores = {answered.target: losses(table) for answered, table in pairs}
    command = f"python -m pipeline study={content.task.label}"
    advice = [_advised(content, at, scores, command) for at in range(len(targets))]
    methods = first_screen.methods_table(advice, results)
    tried = [rule for speeds in content.speeds for rule in speeds["rule"].dropna()]
    relax = first_screen.relax_table(results, tried, scores)
    settings = first_screen.settings_table(results, targets)
    setups = {of.label: setup(of, source) for of, source in zip(targets, sources, strict=True)}
    made = [source.artifacts for source in sources]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"whole": whole}
    environment.globals["embedded"] = lambda path: embedded(files[path])
    environment.tests["table"] = lambda item: isinstance(item, Table)
    page = environment.get_template("page.html").render(
        css=(WEB / "page.css").read_text(encoding="utf-8"),
        study=content.task.settings,
        command=command,
        drafter=results.drafter,
        targets=targets,
        advice=advice,
        methods=methods,
        costs=list(map(first_screen.costs, content.decoded, content.speeds)),
        few=few_notes(target.bootstrap.count for target in targets),
        machine=machine_lines(sources),
        soundness=[of["acceptance"].metadata for of in made if "acceptance" in of],
        relax=relax,
        bars=[item for section in sections for item in section.items if item and item.name == BARS],
        answers=[median_answer(target) for target in targets],
        fates=FATES,
        eps=EPS,
        settings=settings,
        sections=sections,
        introduction=introduction(setups, content.task.runtime.statistics),
        setups=setups,
        facts=dict.fromkeys(name for facts in setups.values() for name in facts),
    )
    verdict = first_screen.verdict_text(advice, methods)
    own = {"index.html": page.encode(), VERDICT: verdict.encode()}
    for place, table in (("timings/", methods), ("", relax), ("", settings)):
        if table is not None:
            own |= {f"{place}{path}": text for path, text in table.files().items()}
    return own


def _advised(content: Content, at: int, scores: Mapping[str, pd.DataFrame], command: str) -> Advice:
    source = content.sources[at]
    target = content.targets[at]
    settings = content.task.settings
    if "log" in source.tasks["distributions"].settings:
        return first_screen.log_advice(target)
    speeds = ratios = None
    busy = list[str]()
    if content.decoded:
        task = source.tasks["decoding"]
        head = any(model.head is not None for model in task.runtime.models)
        engine = engines(content.decoded[at].runs, head, task.settings["lookup_match"])
        speeds = content.speeds[at].assign(engine=engine)
        ratios = content.ratios[at]
        busy = signs_of_load(speeds)
    return advise(
        target.label,
        content.results.drafter,
        speeds,
        scores.get(target.label),
        settings["margin"] or 0.0,  # of answers that were scored
        busy=busy,
        command=command,
        ratios=ratios,
    )


def embedded(picture: bytes) -> str:
    """Return the address of a picture that is part of the page, in few colours."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    small = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(small.getvalue()).decode()}"


def whole(text: str) -> str:
    """Return a text that is not broken within a setting or an interval, or before a unit.

    >>> whole("t = 0.2, 95 % [1, 2]") == "t\u00a0=\u00a00.2, 95\u00a0% [1,\u00a02]"
    True
    """
    text = text.replace(" = ", "\u00a0=\u00a0").replace(" %", "\u00a0%")
    return re.sub(r"\[[^]]*\]", lambda bracket: bracket[0].replace(" ", "\u00a0"), text)
