"""The section on a drafter's acceptance: accepted and certified steps.

It reads the frames `acceptance` (target, rule, statistic, value, ...) and `breakdown` (the same by
depth).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ...acceptance.summary import SPECULATIVE
from ...rules import Additive, Mars, Multiplicative, Rule, StrictGreedy, TopMAdditive, Tree, Typical
from ...statistics.run_lengths import with_censored
from ..measured import Results
from ..records import Column, Section, Table, select, sentence
from ..text import number_text, share_text
from .acceptance_figures import judged_rules, margin_figure, rules_figure
from .certificates import coverage_notes

# rules of figures and of the table by depth, if the study has them
SHOWN: tuple[Rule, ...] = (
    StrictGreedy(),
    Additive(0.1),
    Multiplicative(0.5),
    TopMAdditive(4, 0.1),
    Typical(0.1, 0.09),
    Mars(0.9),
    Tree(4),
)
ACCEPTED = ("acceptance", "certified", "coverage", "slack_median")


def acceptance_section(
    results: Results,
    paragraphs: Sequence[str] = (),
    margins: Mapping[str, pd.DataFrame] | None = None,
) -> Section:
    """Return the section on a drafter's acceptance, with `paragraphs` on top.

    `margins` are those of strict greedy, by printed name of the target.
    """
    title = f"Will {results.drafter} be accepted?"
    shown = shjudged_rules(results)
    return Section(
        title,
        [
            margin_figure(margins, StrictGreedy().title) if margins else None,
            rules_figure(results),
            acceptance_table(results),
            depth_table(results, shown),
        ],
        paragraphs,
    )


def shjudged_rules(results: Results) -> list[str]:
    """Return the labels of the rules in figures and in the table by depth."""
    measured = [rule for rule in results["breakdown"]["rule"].unique() if rule]
    own = [rule for rule in results.rules.values() if rule.own]
    labels = dict.fromkeys(rule.label for rule in (*own, *SHOWN) if rule.label in measured)
    return list(labels or measured)[: len(SHOWN)]


def acceptance_table(results: Results) -> Table:
    """Return the table of accepted and certified shares by rule; of sampled text with 1 - TV."""
    rules = judged_rules(results)
    frame = results.select(
        "acceptance", rule=[*rules, SPECULATIVE], statistic=[*ACCEPTED, "empty", "inexact"]
    )
    empty, inexact = (select(frame, statistic=name)["value"] for name in ("empty", "inexact"))
    notes = [*coverage_notes(empty, inexact, "empty_accepted"), *infinite_notes(results)]
    order: dict[str, Any] = {"": rules}
    if results.facts["sampled"] is not None:
        drawn = f"A draft that is drawn, at temperature {results.facts['sampled']:g}"
        order[drawn] = {SPECULATIVE: "Speculative sampling, 1 − TV(p, q)"}
    return results.table("acceptance", with_censored(frame), notes=notes, order=order)


def depth_table(results: Results, rules: Sequence[str]) -> Table | None:
    """Return KL, acceptance and certified shares by depth; None if the drafter is not a head."""
    frame = results.select("breakdown", rule=["", *rules])
    frame = frame[frame["depth"] > 0]
    if frame.empty:
        return None

    def text(statistic: str, value: float) -> str:
        return number_text(value) if statistic == "kl_median" else share_text(value)

    depths = sorted(frame["depth"].unique())
    columns = [
        Column(f"depth {depth}", text, ("statistic", "value"), {"depth": depth}) for depth in depths
    ]
    order = {
        "": {("", "kl_median"): "KL(p‖q), median, nats", ("", "finite"): "finite KL(p‖q)"},
        "Accepted": {(rule, "acceptance"): results.names[rule] for rule in rules},
        "Certified": {(rule, "certified"): results.names[rule] for rule in rules},
    }
    keys = pd.Series([*zip(frame["rule"], frame["statistic"], strict=True)], frame.index)
    first = ["target", "depth", "rule"]
    data = frame[[*first, *(name for name in frame if name not in first)]]
    return results.table("depths", data, columns, order=order, shown=frame.assign(key=keys))


def infinite_notes(results: Results) -> list[str]:
    """Return a note on a KL that is infinite at some steps (reduced vocabularies)."""
    finite = select(results["breakdown"], depth=0, rule="", statistic="finite")["value"]
    if not (finite < 1).any():
        return []
    why = sentence("completed" if results.facts.get("completed") else "infinite")
    return [f"Steps with a finite KL: {' / '.join(map(share_text, finite))}. {why}"]
