"""The section on a drafter's acceptance: accepted and certified steps, gain and cost of rules.

It reads the frames `acceptance` (target, rule, statistic, value, ...), `breakdown` (the same by
depth), `levels` (steps and tokens certified at a KL), `frontier` and
`listing` (group, name, parameter, setting, rule: the role of each rule).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from ...acceptance.budgets import KINDS
from ...acceptance.sampling import ARGMAX, DRAFTED, SAMPLED, SPECULATIVE
from ...rules import Additive, Mars, Multiplicative, Rule, StrictGreedy, TopMAdditive, Tree, Typical
from ...rules.readings import READINGS
from ...statistics.run_lengths import with_censored
from ...statistics.trajectories import CENSORED
from ..measured import Results
from ..records import Column, Section, Table, select, sentence
from ..text import number_text, share_text
from .acceptance_figures import frontier_figure, margin_figure, own_rules, rules_figure
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
LENGTH = "measured_per_call"
ACCEPTED = ("acceptance", "certified", "coverage", "slack_median", "calibration_error")
TOKENS = "tokens"  # kind of a row with a scheme's tokens a call
SCHEMES = {
    SPECULATIVE: "Speculative sampling",
    ARGMAX: "Argmax drafted, speculative sampling",
    "exponential races": "Exponential races",
    "exponential races, lower bound": "Exponential races, lower bound",
}


def acceptance_section(
    results: Results,
    paragraphs: Sequence[str] = (),
    margins: Mapping[str, pd.DataFrame] | None = None,
) -> Section:
    """Return the section on a drafter's acceptance, with `paragraphs` on top.

    `margins` are those of strict greedy, by printed name of the target.
    """
    title = f"Will {results.drafter} be accepted?"
    shown = shown_rules(results)
    return Section(
        title,
        [
            margin_figure(margins, StrictGreedy().title) if margins else None,
            rules_figure(results),
            acceptance_table(results),
            budget_table(results),
            frontier_table(results),
            frontier_figure(results),
            sampling_table(results),
            depth_table(results, shown),
        ],
        paragraphs,
    )


def shown_rules(results: Results) -> list[str]:
    """Return the labels of the rules in figures and in the table by depth."""
    measured = [rule for rule in results["breakdown"]["rule"].unique() if rule]
    own = [rule for rule in results.rules.values() if rule.own]
    labels = dict.fromkeys(rule.label for rule in (*own, *SHOWN) if rule.label in measured)
    return list(labels or measured)[: len(SHOWN)]


def acceptance_table(results: Results) -> Table:
    """Return the table of accepted and certified shares by rule."""
    rules = own_rules(results)
    frame = results.select("acceptance", rule=rules, statistic=[*ACCEPTED, "empty", "inexact"])
    empty, inexact = (select(frame, statistic=name)["value"] for name in ("empty", "inexact"))
    notes = [*coverage_notes(empty, inexact, "empty_accepted"), *infinite_notes(results)]
    return results.table("acceptance", with_censored(frame), notes=notes, order=rules)


def budget_table(results: Results) -> Table:
    """Return the table of steps and tokens certified at the drafter's mean KL, and measured."""
    frame = results.select("levels", kind=KINDS)
    frame = frame[frame["statistic"] != "probability"]
    rules = [rule for rule in own_rules(results) if rule in set(frame["rule"])]
    limited = [x for x in frame["statistic"].unique() if x not in ("acceptance", "tokens")]
    headings = {"acceptance": "", "tokens": "tokens, "}
    headings |= {name: f"γ={name.removeprefix('tokens_')}, " for name in limited}
    columns = [
        Column(
            heading + kind,
            share_text if name == "acceptance" else number_text,
            where={"statistic": name, "kind": kind},
        )
        for name, heading in headings.items()
        for kind in KINDS
    ]
    notes, means = infinite_notes(results), _means(results, frame)
    return results.table("budgets", select(frame, rule=rules), columns, notes, rules, means=means)


def _means(results: Results, levels: pd.DataFrame) -> str:
    """Return the printed mean divergence of each target's drafter."""
    means = levels.groupby("target", sort=False)["eps"].first()
    return " / ".join(number_text(means[target], 3) for target in results.targets)


def frontier_table(results: Results) -> Table:
    """Return the table of gain and cost of presets and rules, as shares of the best rule's gain."""
    frame, names, presets = results["frontier"], results.names, results.presets
    others = [rule for rule in dict.fromkeys(frame["rule"]) if rule and rule not in presets]
    order = {
        "Engine presets": {rule: f"{names[rule]}, {name}" for rule, name in presets.items()},
        "Rules": {rule: names[rule] for rule in others},
    }
    shown = frame.assign(cut_often=frame["cut"] > CENSORED)
    return results.table("frontier", frame, order=order, shown=shown)


def sampling_table(results: Results) -> Table | None:
    """Return certified and measured acceptance by verification scheme; None if none was sampled."""
    names = results.names
    frame = results.select("levels", statistic="probability")
    if frame.empty:
        return None
    frame = frame.rename(columns={"rule": "scheme"}).drop(columns="statistic")
    acceptance = results["acceptance"]
    others = acceptance[~acceptance["rule"].isin(names)].rename(columns={"rule": "scheme"})
    others = others.assign(
        kind=others["statistic"].map({"acceptance": "measured", LENGTH: TOKENS})
    ).dropna(subset=["kind"])
    extra = others[(others["kind"] == TOKENS) | ~others["scheme"].isin(frame["scheme"])]
    shown = pd.concat([frame, extra], ignore_index=True)
    drawn = {f"{SAMPLED}{rule}": names[rule] for rule in own_rules(results)}
    mars = {
        f"{DRAFTED}{rule}, {reading}": f"{names[rule]}, {text or 'rank 2 or sampled'}"
        for rule in own_rules(results)
        for reading, text in READINGS.items()
        if results.rules[rule].samples
    }
    return results.table(
        "sampling",
        shown[frame.columns],
        order={
            "": SCHEMES,
            "A sampled draft, kept if the rule accepts it": drawn,
            "Argmax drafted, kept by MARS": mars,
        },
        shown=with_censored(shown),
        temperature=results.facts["sampled"],
        means=_means(results, frame),
    )


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
