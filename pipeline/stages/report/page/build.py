"""Puts the page together: the verdict, its data and charts, and the list of the files beside it."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import jinja2
import pandas as pd

from analysis.acceptance.verdict import Advice, advise
from analysis.decoding.metrics import Decoded
from analysis.page import screen, steps
from analysis.page.charts import charts
from analysis.page.steps import TargetSteps
from analysis.report.notes import shared_notes
from analysis.report.records import Part, Results, Table
from analysis.report.render import html_table, notes
from analysis.rules import Additive, Multiplicative, Rule, StrictGreedy, Tree
from pipeline.formats.engine_settings import ENGINES, setting_values
from pipeline.stages.report.page.bundle import Bundle
from pipeline.store.artifacts import Artifact
from pipeline.store.decoded import verdict, verdict_lines
from pipeline.store.node import VERDICT, Node

WEB = Path(__file__).parent / "web"
SCRIPTS = ("counting.js", "charts.js", "page.js", "explorer.js")
CURVES = (StrictGreedy(), Additive(0.1), Additive(0.3), Multiplicative(0.1), Tree(4))  # at first
MARGIN = 0.05  # where the study was not asked for another: the loss of accuracy that matters


def page_files(
    node: Node,
    upstream: Mapping[str, list[Artifact]],
    targets: Sequence[TargetSteps],
    pairs: Results | None,
    timed: Sequence[tuple[Decoded, pd.DataFrame]],
    parts: Sequence[Part],
    told: Mapping[str, Any],
    bundle: Bundle,
) -> dict[str, bytes]:
    """Return the page, one file that needs no other and no network, and what stands beside it.

    That is the verdict as text, and plain pages of all tables and figures.

    Args:
        node: of the report.
        upstream: artifacts by stage.
        targets: the steps of each.
        pairs: what was measured of the drafter; None without one, or where both were only logged.
        timed: what was decoded and its speeds, target by target; empty where nothing was.
        parts: all tables and figures by part.
        told: `introduction`, paragraphs; `setups`, facts by part and target; `published`, the table
            beside the paper's numbers where it belongs on the page, else None.
        bundle: the script of the charts.
    """
    advice = verdicts_of(node, upstream, [target.label for target in targets], timed)
    rules = steps.embedded(list(targets[0].lower), sum(len(one.tokens) for one in targets))
    drafter = None if pairs is None else pairs.drafter
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["whole"] = whole
    css = (WEB / "page.css").read_text(encoding="utf-8")
    shown = {
        "study": node.config["study"],
        "drafter": drafter,
        "note": node.config.get("note"),
        "targets": [target.label for target in targets],
        "advice": advice,
        "facts": [
            screen.facts_of_target(target)
            if pairs is None
            else screen.facts_of_pair(pairs, target.label, one.run)
            for target, one in zip(targets, advice, strict=True)
        ],
        "steps": [len(target.tokens) for target in targets],
        "prompts": [target.bootstrap.count for target in targets],
        "judged": [sum(int(sure.sum()) for _, sure in one.judged.values()) for one in targets],
        "contradictions": [steps.contradictions(target) for target in targets],
        "timed": bool(timed),
        "parts": parts,
        **told,
    }
    data = data_of(targets, pairs, rules) | {"flags": flags(upstream, rules)}
    timings = {"speed": [screen.speed_rows(speeds, one.drafter) for one, speeds in timed]}
    text = environment.get_template("page.html").render(
        page=shown,
        published="" if told["published"] is None else html_table(told["published"]),
        css=css,
        data=packed(data),
        timings=packed(timings),
        bundle=packed(bundle.read()),
        scripts="\n".join((WEB / name).read_text(encoding="utf-8") for name in SCRIPTS),
    )
    beside = {
        f"{place}tables.html": environment.get_template("tables.html").render(
            study=node.config["study"], css=css, **tables_of(mine)
        )
        for place in ("", "timings/")
        if (mine := [part for part in parts if part.place == place])
    }
    found = {"index.html": text, VERDICT: verdict_lines(advice), **beside}
    return {name: content.encode() for name, content in found.items()}


def tables_of(parts: Sequence[Part]) -> dict[str, Any]:
    """Return what a page of all tables and figures of some parts shows."""
    tables = [item for part in parts for item in part.shown if isinstance(item, Table)]
    return {
        "parts": parts,
        "shared": shared_notes(tables),
        "tables": {table: html_table(table) for table in tables},
        "notes": {table: notes(table) for table in tables},
    }


def whole(text: str) -> str:
    """Return a text that is not broken within a setting or before a unit.

    >>> whole("t = 0.2, 95 %") == "t\u00a0=\u00a00.2, 95\u00a0%"
    True
    """
    return text.replace(" = ", "\u00a0=\u00a0").replace(" %", "\u00a0%")


def verdicts_of(
    node: Node,
    upstream: Mapping[str, list[Artifact]],
    labels: Sequence[str],
    timed: Sequence[tuple[Decoded, pd.DataFrame]],
) -> list[Advice]:
    """Return the verdict on every target."""
    config, logged = node.config, "log" in upstream["distributions"][0].record["config"]
    command = "" if logged else f"python -m pipeline study={node.label}"
    if not timed:
        return [advise(one, config.get("drafter") or "", None, command=command) for one in labels]
    statistics = config["resamples"], config["confidence"], config["statistics_seed"]
    answers: Sequence[Artifact | None] = upstream.get("accuracy") or [None] * len(labels)
    margin = config.get("margin", MARGIN)
    return [
        verdict(*one, found, statistics, margin, command)
        for one, found in zip(timed, answers, strict=True)
    ]


def packed(data: Any) -> str:
    """Return data as the page holds it: JSON, deflated, in characters that are no markup."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def data_of(
    targets: Sequence[TargetSteps], pairs: Results | None, rules: Sequence[Rule]
) -> dict[str, Any]:
    """Return what the scripts read; the clock decides nothing here."""
    return {
        "drafter": None if pairs is None else pairs.drafter,
        "levels": steps.LEVELS.tolist(),
        "rules": [
            {
                "label": rule.label,
                "title": rule.title,
                "family": steps.family(rule),
                "ceiling": steps.digits(rule.ceiling, 6),
            }
            for rule in rules
        ],
        "shown_curves": [rule.label for rule in rules if rule in CURVES or rule.own]
        or [rule.label for rule in rules[:5]],
        "steps": [steps.packed(target, rules) for target in targets],
        "resamples": steps.resamples(targets),
        "curves": [steps.curves(target, rules) for target in targets],
        "answers": [steps.answers(target, rules) for target in targets],
        "pairs": [None if pairs is None else screen.rule_rows(pairs, one.label) for one in targets],
        "charts": charts(),
    }


def flags(upstream: Mapping[str, list[Artifact]], rules: Sequence[Rule]) -> list[dict[str, str]]:
    """Return, rule by rule, the settings of the engines that run it; $length is left open."""
    drafts = upstream["drafts"][0].record["config"] if upstream.get("drafts") else {}
    fixed = {
        "target": "TARGET",
        "drafter": "DRAFTER",
        "head": "head" in drafts.get("drafter", {}),
        "temperature": upstream["certificates"][0].record["config"]["temperature"],
    }
    return [
        {
            name: Template(about["text"]).safe_substitute(setting_values(name, rule, **fixed))
            for name, about in ENGINES.items()
            if rule.name == ("greedy" if about["dial"] is None else about["dial"]["rule"])
        }
        for rule in rules
    ]
