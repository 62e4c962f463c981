"""Puts the page together: the verdict, its data and charts, and the list of the files beside it.

The page is one file, the report as people look at it. Template, style and scripts lie in `web/`.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any

import jinja2
import pandas as pd

from analysis.acceptance.verdict import Advice, advice_text, advise
from analysis.decoding.answers import accuracy, losses_on_answers
from analysis.decoding.metrics import Decoded
from analysis.decoding.predicted import draft_lengths
from analysis.decoding.speed import signs_of_load
from analysis.page import grid, screen, steps
from analysis.report.measured import Results, Target
from analysis.report.published import PAPERS
from analysis.report.records import Section, Table
from analysis.report.render import PUBLISHED, lines, names, spans
from analysis.report.style import family, rule_colour
from analysis.rules import Additive, Multiplicative, Rule, StrictGreedy, Tree
from analysis.statistics.bootstrap import FEW_PROMPTS, Resampling
from pipeline.decoding.decoded import read_answered
from pipeline.engines.settings import ENGINES, setting_values
from pipeline.plan.specs import LoggedDistributions
from pipeline.stages.report.setups import introduction, setup
from pipeline.stages.report.sources import Measured, Sources
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
    setups = {one.label: setup(one, of) for one, of in zip(targets, sources, strict=True)}
    advice = verdicts_of(measured, study)
    in_engine = [] if measured.engine is None else measured.engine.advice
    text_of_verdict = advice_text([*advice, *in_engine])
    if in_engine:
        advice = [
            replace(one, beside=[engine.sentence, *engine.beside, *one.beside])
            for one, engine in zip(advice, in_engine, strict=True)
        ]
    rules = steps.embedded(list(targets[0].certificates), len(targets))
    pairs = results if "acceptance" in results else None  # step by step, not of two logs
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["whole"] = whole
    css = (WEB / "page.css").read_text(encoding="utf-8")
    environment.globals |= {"lines": lines, "spans": spans, "as_published": PUBLISHED}
    environment.globals |= {"files_of": names, "few_prompts": FEW_PROMPTS}
    environment.globals |= {"study": spec.study, "note": spec.note, "css": css}
    shown = {
        "drafter": None if pairs is None else pairs.drafter,
        "targets": results.targets,
        "advice": advice,
        "facts": [
            screen.facts_of_target(target)
            if pairs is None
            else screen.facts_of_pair(pairs, target.label, one.run)
            for target, one in zip(targets, advice, strict=True)
        ],
        "longest": grid.LONGEST,
        "steps": [len(target.tokens) for target in targets],
        "prompts": [target.bootstrap.count for target in targets],
        "judged": [sum(int(sure.sum()) for _, sure in one.judged.values()) for one in targets],
        "contradictions": [steps.contradictions(target) for target in targets],
        "timed": timed,
        "sections": sections,
        "introduction": introduction(setups, spec),
        "setups": setups,
        "settings": dict.fromkeys(name for facts in setups.values() for name in facts),
        "published": sections[-1].shown[0] if set(results.targets) & set(PAPERS) else None,
    }
    data = data_of(targets, pairs, rules) | {"flags": flags(sources[0], rules)}
    decoded = zip(measured.decoded, measured.speeds, strict=True)
    timings = {"speed": [screen.speed_rows(speeds, one.drafter) for one, speeds in decoded]}
    text = environment.get_template("page.html").render(
        page=shown,
        data=deflated(data),
        timings=deflated(timings),
        bundle=deflated(bundle()),
        scripts="\n".join((WEB / name).read_text(encoding="utf-8") for name in SCRIPTS),
    )
    found = {"index.html": text, VERDICT: text_of_verdict}
    for place in ("", "timings/"):
        if mine := [section for section in sections if section.place == place]:
            shown_here = [item for section in mine for item in section.shown]
            tables = [item for item in shown_here if isinstance(item, Table)]
            found[f"{place}tables.html"] = environment.get_template("tables.html").render(
                sections=mine, shared=shared_notes(tables), timed=timed, place=place
            )
    return {name: content.encode() for name, content in found.items()}


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
    """Return a text that is not broken within a setting or before a unit.

    >>> whole("t = 0.2, 95 %") == "t\u00a0=\u00a00.2, 95\u00a0%"
    True
    """
    return text.replace(" = ", "\u00a0=\u00a0").replace(" %", "\u00a0%")


def verdicts_of(measured: Measured, study: str) -> list[Advice]:
    """Return the verdict on every target of a study, given by its name on the command line."""
    spec, sources = measured.spec, measured.sources
    logged = isinstance(sources[0].distributions.node.spec, LoggedDistributions)
    command = "" if logged else f"python -m pipeline study={study}"
    if not measured.decoded:
        return [advise(one.label, spec.drafter or "", None, command=command) for one in sources]
    margin = MARGIN if spec.margin is None else spec.margin
    return [
        verdict(
            decoded,
            speeds,
            answers=None if one.accuracy is None else one.accuracy.artifact,
            statistics=spec.statistics,
            margin=margin,
            command=command,
        )
        for decoded, speeds, one in zip(measured.decoded, measured.speeds, sources, strict=True)
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
            }
            for rule in rules
        ],
        "shown_curves": [rule.label for rule in rules if rule in CURVES or rule.own]
        or [rule.label for rule in rules[:5]],
        "units": {"share": grid.SHARES, "tokens": grid.TOKENS},
        "targets": [steps.about(target, rules) | grid.grid(target, rules) for target in targets],
        "curves": [steps.curves(target, rules) for target in targets],
        "answers": [steps.answers(target, rules) for target in targets],
        "pairs": [None if pairs is None else screen.rule_rows(pairs, one.label) for one in targets],
        "hues": dict(
            family(rule.name)
            for rule in steps.in_order([*rules, *([] if pairs is None else pairs.rules.values())])
        ),
    }


def flags(sources: Sources, rules: Sequence[Rule]) -> list[dict[str, str]]:
    """Return, rule by rule, the settings of the engines that run it; $length is left open."""
    drafter = None if sources.drafts is None else sources.drafts.node.spec.drafter
    values = partial(
        setting_values,
        target="TARGET",
        drafter="DRAFTER",
        head=drafter is not None and drafter.head is not None,
        temperature=sources.temperature,
        draft_length=None,
    )
    return [
        {
            name: Template(about["text"]).safe_substitute(values(name, rule))
            for name, about in ENGINES.items()
            if rule.name == (about["rule"] or "greedy")
        }
        for rule in rules
    ]
