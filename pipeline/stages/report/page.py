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

from analysis.acceptance.verdict import Advice, advise, engines
from analysis.decoding.answers import losses
from analysis.decoding.speed import signs_of_load
from analysis.report.answer import EPS, FATES, median_answer
from analysis.report.first_screen import (
    costs,
    methods_table,
    relax_table,
    settings_table,
    verdict_text,
)
from analysis.report.log_advice import log_advice
from analysis.report.table import Section, Table
from analysis.report.text import few_notes
from pipeline.stages.report.setups import introduction, machine, setup
from pipeline.stages.report.sources import Measured
from pipeline.store import VERDICT
from pipeline.stored import read_distributions

WEB = Path(__file__).parent / "web"
COLOURS = 64  # of a figure on the page
BARS = "margins"  # the figure that stands before the answers


def page_files(
    measured: Measured, sections: Sequence[Section], study: str, files: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Return the page, the verdict as text, and the files of the page's own tables.

    Args:
        measured: of all targets.
        sections: all tables and figures by section, those beside the published last.
        study: its name on the command line.
        files: of the sections, by path.
    """
    spec, sources, targets = measured.spec, measured.sources, measured.targets
    results = measured.results
    pairs = zip(measured.answered, measured.accuracies, strict=True)
    scores = {answered.target: losses(table) for answered, table in pairs}
    advice = advised(measured, scores, study)
    methods = methods_table(advice, results)
    tried = [rule for speeds in measured.speeds for rule in speeds["rule"].dropna()]
    relax = relax_table(results, tried, scores)
    dists = [read_distributions(source.distributions.artifact) for source in sources]
    settings = settings_table(results, targets, dists)
    bars = [item for section in sections for item in section.items if item.name == BARS]
    setups = {
        target.label: setup(target, source) for target, source in zip(targets, sources, strict=True)
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"whole": whole}
    environment.globals["embedded"] = lambda path: embedded(files[path])
    environment.tests["table"] = lambda item: isinstance(item, Table)
    timed = [source.decoding or source.distributions for source in sources]
    page = environment.get_template("page.html").render(
        css=(WEB / "page.css").read_text(encoding="utf-8"),
        spec=spec,
        targets=targets,
        advice=advice,
        methods=methods,
        costs=list(map(costs, measured.decoded, measured.speeds)),
        few=few_notes(target.bootstrap.count for target in targets),
        machine=dict.fromkeys(machine(source.artifact) for source in timed),
        soundness=[source.acceptance.artifact.facts for source in sources if source.acceptance],
        relax=relax,
        bars=bars,
        answers=[median_answer(target) for target in targets],
        fates=FATES,
        eps=EPS,
        settings=settings,
        sections=sections,
        introduction=introduction(setups, spec),
        setups=setups,
        facts=dict.fromkeys(name for facts in setups.values() for name in facts),
    )
    text = verdict_text(advice, methods)
    own = {"index.html": page.encode(), VERDICT: text.encode()}
    for place, table in (("timings/", methods), ("", relax), ("", settings)):
        if table is not None:
            own |= {f"{place}{path}": content for path, content in table.files().items()}
    return own


def advised(measured: Measured, scores: Mapping[str, pd.DataFrame], study: str) -> list[Advice]:
    """Return the verdict on every target of a study, given by its name on the command line."""
    found = []
    for at, (source, target) in enumerate(zip(measured.sources, measured.targets, strict=True)):
        label, speeds, busy = source.label, None, list[str]()
        if source.decoding is not None:
            task = source.decoding.task
            head = any(model.head is not None for model in task.runtime.models)
            engine = engines(measured.decoded[at].runs, head, task.settings["lookup_match"])
            speeds = measured.speeds[at].assign(engine=engine)
            busy = signs_of_load(speeds)
        advice = advise(
            *(label, measured.spec.drafter or "", speeds, scores.get(label), measured.margin),
            busy=busy,
            command=f"python -m pipeline study={study}",
        )
        logged = "log" in source.distributions.task.settings
        found.append(log_advice(advice, target) if logged else advice)
    return found


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
