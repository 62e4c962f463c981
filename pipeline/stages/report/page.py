"""Puts the page together: the verdict, its data and charts, and the list of the files beside it.

The page is one file, the report as people look at it. Template, style and scripts lie in `web/`.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from analysis.acceptance.summary import MARGINS
from analysis.acceptance.verdict import Advice, advice_text, advise
from analysis.decoding.answers import accuracy, losses_on_answers
from analysis.decoding.metrics import Decoded
from analysis.decoding.predicted import draft_lengths
from analysis.decoding.speed import signs_of_load
from analysis.page import grid, screen, steps
from analysis.page.logged import log_advice
from analysis.report.measured import Results, Target
from analysis.report.published import PAPERS
from analysis.report.records import Section, Table
from analysis.report.render import PUBLISHED, anchor, caption, label_width, lines, names, spans
from analysis.report.sections.acceptance_figures import margin_text
from analysis.report.style import family, rule_colour
from analysis.rules import Additive, Multiplicative, Rule, StrictGreedy, Tree
from analysis.statistics.bootstrap import FEW_PROMPTS, Resampling
from pipeline.decoding.decoded import read_answered
from pipeline.plan.specs import LoggedDistributions
from pipeline.stages.report.setups import introduction, setup
from pipeline.stages.report.sources import Measured
from pipeline.store.artifacts import Artifact
from pipeline.store.durable import read_sealed, write_sealed
from pipeline.store.node import VERDICT

WEB = Path(__file__).parent / "web"
SCRIPTS = ("specs.js", "charts.js", "page.js", "explorer.js")
CURVES = (StrictGreedy(), Additive(0.1), Additive(0.3), Multiplicative(0.1), Tree(4))  # at first
MARGIN = 0.05  # where the study was not asked for another: the loss of accuracy that matters


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
    logged = isinstance(sources[0].distributions.node.spec, LoggedDistributions)
    if logged:
        advice = [log_advice(own, target) for own, target in zip(advice, targets, strict=True)]
    methods = [
        [screen.method_row(run, str(spec.drafter)) for run in own.drafters] for own in advice
    ]
    table = screen.method_table(results.targets, methods)
    text_of_verdict = advice_text(advice) + (f"\n{table}\n" if table else "")
    rules = steps.embedded(list(targets[0].certificates), len(targets))
    pairs = results if "acceptance" in results else None  # step by step, not of two logs
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["whole"] = whole
    css = (WEB / "page.css").read_text(encoding="utf-8")
    environment.globals |= {"lines": lines, "spans": spans, "as_published": PUBLISHED}
    environment.globals |= {"anchor": anchor, "caption": caption, "widest": label_width}
    environment.globals |= {"files_of": names, "few_prompts": FEW_PROMPTS}
    environment.globals |= {"study": spec.study, "note": spec.note, "css": css}
    opening = introduction(setups, spec)
    shown = {
        "drafter": None if pairs is None else pairs.drafter,
        "targets": results.targets,
        "advice": advice,
        "methods": methods,
        "facts": [
            screen.facts_of_target(target) if pairs is None else screen.facts_of_pair(pairs, target)
            for target in targets
        ],
        "confidence": 100 * spec.statistics.confidence,
        "longest": grid.LONGEST,
        "steps": [len(target.tokens) for target in targets],
        "prompts": [target.bootstrap.count for target in targets],
        "soundness": [
            source.acceptance.artifact.record.facts for source in sources if source.acceptance
        ],
        "timed": timed,
        "log": [source.distributions.artifact.record.facts["log"] for source in sources if logged],
        "sections": sections,
        "introduction": opening,
        "setups": setups,
        "settings": dict.fromkeys(name for facts in setups.values() for name in facts),
        "published": sections[-1].shown[0] if set(results.targets) & set(PAPERS) else None,
    }
    data = data_of(targets, pairs, rules)
    decoded = zip(measured.decoded, measured.speeds, strict=True)
    timings = {
        "speed": [screen.speed_rows(speeds, answers.drafter) for answers, speeds in decoded],
        "gamma": [screen.drafted_length(own) for own in advice],
    }
    text = environment.get_template("page.html").render(
        page=shown,
        data=deflated(data),
        timings=deflated(timings),
        bundle=deflated(bundle()),
        scripts="\n".join((WEB / name).read_text(encoding="utf-8") for name in SCRIPTS),
    )
    files = {"index.html": text, VERDICT: text_of_verdict}
    for place in ("", "timings/"):
        if placed := [section for section in sections if section.place == place]:
            shown_here = [item for section in placed for item in section.shown]
            tables = [item for item in shown_here if isinstance(item, Table)]
            files[f"{place}tables.html"] = environment.get_template("tables.html").render(
                sections=placed,
                introduction=opening,
                shared=shared_notes(tables),
                timed=timed,
                place=place,
            )
    return {name: content.encode() for name, content in files.items()}


def shared_notes(tables: Iterable[Table]) -> list[str]:
    """Return the notes that stand below more than one table, in the order of their appearance."""
    counts = Counter(note for table in tables for note in dict.fromkeys(table.notes))
    return [note for note, count in counts.items() if count > 1]


def bundle() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script, safe inside an element of HTML.

    vl-convert puts them together, which takes four seconds. They depend on its version only, so
    they are kept beside this module's compiled code.
    """
    file = Path(__file__).parent / "__pycache__" / f"vega-{version('vl-convert-python')}.json"
    with suppress(OSError, ValueError):  # a damaged file is made again
        return str(read_sealed(file)["script"])
    import vl_convert

    script = str(vl_convert.javascript_bundle(None))  # type: ignore[arg-type]
    script = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    with suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        write_sealed(file, {"script": script})
    return script


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
    losses = None
    if answers is not None:
        answered = read_answered(decoded.target, answers)
        table = accuracy(answered, *statistics, margin)
        losses = losses_on_answers(answered, table, margin, statistics.confidence)
    lengths, busy = draft_lengths(decoded, speeds), signs_of_load(speeds)
    return advise(
        decoded.target, decoded.drafter, speeds, lengths, answers=losses, busy=busy, command=command
    )


def deflated(data: Any) -> str:
    """Return data as the page holds it: JSON, deflated, in characters that are no markup."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def data_of(
    targets: Sequence[Target], pairs: Results | None, rules: Sequence[Rule]
) -> dict[str, Any]:
    """Return the data of the scripts; it does not depend on the clock."""
    return {
        "drafter": None if pairs is None else pairs.drafter,
        "levels": steps.LEVELS.tolist(),
        "rules": [
            {
                "label": rule.label,
                "title": rule.title,
                "family": family(rule.name)[0],
                "hue": rule_colour(rule.label),
                "ceiling": steps.digits(rule.ceiling, 6),
                "line": steps.line(rule),
            }
            for rule in rules
        ],
        "shown_curves": [rule.label for rule in rules if rule in CURVES or rule.own]
        or [rule.label for rule in rules[:5]],
        "units": {"share": grid.SHARES, "tokens": grid.TOKENS},
        "targets": [steps.about(target) | grid.grid(target, rules) for target in targets],
        "solved": [grid.solved(target) for target in targets],
        "margins": [grid.margin_rows(target, rules) for target in targets],
        "bins": [
            [margin_text({"low": low, "high": high}), low >= 0]
            for low, high in itertools.pairwise(MARGINS)
        ],
        "curves": [steps.curves(target, rules) for target in targets],
        "answers": [steps.answers(target, rules) for target in targets],
        "pairs": [None if pairs is None else screen.rule_rows(pairs, x.label) for x in targets],
        "hues": dict(
            family(rule.name)
            for rule in steps.in_order([*rules, *([] if pairs is None else pairs.rules.values())])
        ),
    }
