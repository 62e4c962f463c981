"""Puts the page together: the answers, the data, the charts, the tables and figures."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from analysis.decoding.metrics import Decoded
from analysis.decoding.speed import signs_of_load
from analysis.page import explorer, rows, steps
from analysis.page.answer import Answer, of_pair, of_target
from analysis.page.charts import charts
from analysis.page.packing import LEVELS
from analysis.page.steps import TargetSteps
from analysis.report.notes import shared_notes
from analysis.report.records import Part, Results, Table
from analysis.report.render import html_table, names, notes
from analysis.report.sections.acceptance_figures import own_rules
from analysis.rules import Additive, Multiplicative, Rule, StrictGreedy, Tree
from pipeline.stages.report.page.bundle import Bundle
from pipeline.stages.report.page.methods import METHODS

WEB = Path(__file__).parent / "web"
SCRIPTS = ("counting.js", "charts.js", "calculator.js", "explorer.js", "page.js")
CURVES = (StrictGreedy(), Additive(0.1), Additive(0.3), Multiplicative(0.1), Tree(4))  # at first
MOST = 6_000_000  # bytes of the page; pictures that find no room are read from beside it
WORDS = 500_000  # of these, what the text, its tables, the scripts and the style may take
PAPER_STATISTICS = ("mean", "median", "p5", "p25")


@dataclass(frozen=True)
class Found:
    """What the report's parts found, as the page shows it.

    Attributes:
        study: its name.
        measured: the statistics of all certificates.
        targets: the steps of each target.
        pairs: what was measured of the drafter; None without one.
        sound: facts of the stage acceptance, target by target; empty without a drafter.
        decoded, speeds: what was decoded, target by target; empty where nothing was.
        compared: our numbers beside the paper's.
        verdict: the table that sums them up.
        introduction: what a reader of any table must know, as paragraphs.
        setups: what a reader must know of how the numbers were made, by part and target.
        parts: all tables and figures by part.
        files: content of their files.
    """

    study: str
    measured: Results
    targets: Sequence[TargetSteps]
    pairs: Results | None
    sound: Sequence[Mapping[str, Any]]
    decoded: Sequence[Decoded]
    speeds: Sequence[pd.DataFrame]
    compared: pd.DataFrame
    verdict: Table
    introduction: Sequence[str]
    setups: Sequence[Mapping[str, Mapping[str, Any]]]
    parts: Sequence[Part]
    files: Mapping[str, bytes]


def build(found: Found, bundle: Bundle) -> bytes:
    """Return the page: one file of HTML that needs no other and no network."""
    answers = answers_of(found)
    rules = steps.embedded(found.measured.certified, sum(len(one.tokens) for one in found.targets))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB), autoescape=True, undefined=jinja2.StrictUndefined
    )
    timings, script = timings_of(found), bundle.read()
    data = plain_json(data_of(found, answers, rules))
    room = MOST - WORDS - len(data.encode()) - len(script.encode())
    text = environment.get_template("page.html").render(
        page=page_of(found, answers, timings, room),
        css=(WEB / "page.css").read_text(encoding="utf-8"),
        data=data,
        timings=plain_json(timings),
        bundle=script,
        scripts="\n".join((WEB / name).read_text(encoding="utf-8") for name in SCRIPTS),
    )
    return text.encode()


def plain_json(data: Any) -> str:
    """Return JSON that can stand in a script element, whatever text it holds."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def answers_of(found: Found) -> list[Answer]:
    """Return the first screen of every target."""
    answers = []
    for at, target in enumerate(found.targets):
        if found.pairs is None:
            one = of_target(found.measured, target.certificates, target.bootstrap, target.label)
        else:
            speeds = found.speeds[at] if found.speeds else None
            one = of_pair(found.pairs, target.label, found.sound[at], speeds)
        answers.append(one)
    return answers


def data_of(found: Found, answers: Sequence[Answer], rules: Sequence[Rule]) -> dict[str, Any]:
    """Return what the scripts read; the clock decides nothing here."""
    pairs, targets = found.pairs, found.targets
    return {
        "drafter": None if pairs is None else pairs.drafter,
        "levels": LEVELS.tolist(),
        "rules": steps.rule_rows(rules),
        "first_rule": answers[0].rule or rules[0].label,
        "shown_curves": [rule.label for rule in rules if rule in CURVES or rule.own]
        or [rule.label for rule in rules[:5]],
        "steps": [steps.packed(target, rules) for target in targets],
        "resamples": steps.resamples(targets),
        "curves": [steps.curves(target, rules) for target in targets],
        "top": [steps.top_histogram(target) for target in targets],
        "answers": [explorer.answers(target, rules) for target in targets],
        "pairs": [
            pair_of(found, target, answer) for target, answer in zip(targets, answers, strict=True)
        ],
        "published": [rows.published_rows(found.compared, target.label) for target in targets],
        "charts": charts(),
    }


def pair_of(found: Found, target: TargetSteps, answer: Answer) -> dict[str, Any] | None:
    """Return what the charts of a drafter draw; None without one."""
    pairs = found.pairs
    if pairs is None:
        return None
    known = [label for label, _ in profile_rules(pairs)]
    return {
        "rules": rows.rule_rows(pairs, target.label, answer.rule),
        "dial": rows.dial_rows(pairs, target.label),
        "profile": rows.profile_rows(pairs["profile"], target.label, known),
        "distance": steps.distances(target),
    }


def profile_rules(pairs: Results) -> list[tuple[str, str]]:
    """Return label and printed name of the rules whose profile can be chosen."""
    rules = [pairs.rules[label] for label in own_rules(pairs)]
    return [(rule.label, rule.title) for rule in steps.in_order(rules)]


def timings_of(found: Found) -> dict[str, Any]:
    """Return all that depends on the clock."""
    each = list(zip(found.decoded, found.speeds, strict=True))
    return {
        "speed": [rows.speed_rows(speeds) for _, speeds in each],
        "costs": [rows.costs(decoded, speeds) for decoded, speeds in each],
    }


def page_of(
    found: Found, answers: Sequence[Answer], timings: Mapping[str, Any], room: int
) -> dict[str, Any]:
    """Return what the template shows; `room` is what its pictures may take, in bytes."""
    pairs = found.pairs
    warnings = [
        f"The machine was busy while this was measured ({decoded.target}, {sign}): do not use "
        "these speeds; run it again on an idle machine."
        for decoded, speeds in zip(found.decoded, found.speeds, strict=True)
        for sign in signs_of_load(speeds)
    ]
    sections = [
        ("calculator", "Calculator", True),
        ("drafter", "The drafter", pairs is not None),
        ("certificates", "Certificates", True),
        ("tokens", "Token by token", True),
        ("decoding", "Speed", bool(found.decoded)),
        ("published", "Beside the published", True),
        ("appendix", "All tables and figures", True),
        ("method", "How it was made", True),
    ]
    return {
        "study": found.study,
        "title": "is the drafter accepted?" if pairs is not None else "certificates",
        "targets": [target.label for target in found.targets],
        "drafter": None if pairs is None else pairs.drafter,
        "drafter_steps": pairs is not None,
        "answers": answers,
        "sections": [(name, title) for name, title, there in sections if there],
        "costs": any(timings["costs"]),
        "speeds": bool(found.decoded),
        "speed_warnings": warnings,
        "dials": [] if pairs is None else list(dict.fromkeys(dial_names(pairs))),
        "measures": list(rows.MEASURES.values()),
        "profile_rules": [] if pairs is None else profile_rules(pairs),
        "verdict": found.verdict,
        "verdict_table": html_table(found.verdict),
        "papers": list(dict.fromkeys(found.compared["paper"])),
        "statistics": PAPER_STATISTICS,
        "introduction": found.introduction,
        "notes": shared_notes(
            item for part in found.parts for item in part.shown if isinstance(item, Table)
        ),
        "appendix": [*appendices(found, room)],
        "setups": found.setups,
        "methods": METHODS,
    }


def dial_names(pairs: Results) -> list[str]:
    """Return the names of the dials in their order."""
    listing = pairs["listing"]
    return [str(name) for name in listing.loc[listing["group"] == "dial", "name"]]


def appendices(found: Found, room: int) -> Iterator[dict[str, Any]]:
    """Yield the parts, their tables and figures with the links to their files beside the page."""
    for part in found.parts:
        items = []
        for item in part.shown:
            links = [(path, f"{part.place}{path}") for path in names(item) if ".png" not in path]
            drawn = f"{part.place}figures/{item.name}.png"
            content = None if isinstance(item, Table) else found.files.get(drawn)
            image = None if content is None else picture(content)
            if image is not None:
                room -= len(image)
            items.append(
                {
                    "shown": item,
                    "table": html_table(item) if isinstance(item, Table) else "",
                    "notes": notes(item) if isinstance(item, Table) else [],
                    "question": item.question,
                    "image": drawn if room < 0 and image is not None else image,
                    "links": [
                        (path.rpartition(".")[2].upper(), name)
                        for path, name in links
                        if name in found.files
                    ],
                }
            )
        yield {"title": part.title, "says": part.says, "items": items}


def picture(image: bytes) -> str:
    """Return a PNG file as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"
