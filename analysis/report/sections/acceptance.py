"""The section on a drafter: what is accepted of it, what was certified, what it gains and costs.

It reads the frames `acceptance` (target, rule, statistic, value, optimistic, ...), `breakdown` (the
same by divergence and by depth), `levels` (what a KL certifies), `frontier` and `listing` (group,
name, parameter, setting, rule: what each rule is there for); of two engines' logs only `logged`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd

from ...acceptance.engine_laws import LAW
from ...acceptance.frontier import COSTS
from ...acceptance.sampling import ARGMAX, SAMPLED, SPECULATIVE
from ...acceptance.summary import UNION
from ...rules import Additive, Mars, Multiplicative, Rule, StrictGreedy, TopMAdditive, Tree, Typical
from ...statistics.run_lengths import censored_ends, with_censored
from ...statistics.trajectories import CENSORED
from ...trees.several import DRAFTS
from ..notes import coverage_notes, few_notes, infinite_notes
from ..records import Column, Part, Results, Row, Table, across, by_rule, select, worded
from ..text import length_text, number_text, range_text, share_text
from .acceptance_figures import (
    COSTS_SHOWN,
    divergence_figure,
    frontier_figure,
    own_rules,
    rules_figure,
)

# rules of figures and of the table by depth, as far as the study has them
SHOWN: tuple[Rule, ...] = (
    Additive(0.1),
    StrictGreedy(),
    Multiplicative(0.5),
    TopMAdditive(4, 0.1),
    Typical(0.1, 0.09),
    Mars(0.9),
    Tree(4),
)
LENGTH = "realised_per_call"
ACCEPTED: Mapping[str, tuple[str, Callable[[float], str]]] = {  # heading and print of a statistic
    "acceptance": ("accepted", share_text),
    "certified": ("certified", share_text),
    "coverage": ("coverage", share_text),
    "slack_median": ("R − KL", number_text),
    "calibration_error": ("ECE", number_text),
}
DIVERGENCES = {
    "kl": "KL",
    "tv": "TV",
    "hellinger": "Hellinger",
    "reverse_kl": "reverse KL",
    UNION: "union",
}
KINDS = ("uniform", "budget", "realised")  # of what a mean KL certifies
CERTIFIED = {"step": "each KL", "uniform": "bound", "budget": "mean", "measured": "measured"}
TOKENS = "tokens"  # kind of a row that has the length under a law
LAWS = {
    SPECULATIVE: "Speculative sampling",
    ARGMAX: "Argmax drafted, speculative sampling",
    "exponential races": "Exponential races",
    "exponential races, lower bound": "Exponential races, lower bound",
}
LOGGED = {
    "acceptance": "accepted",
    "certified_tv": "certified by TV",
    "certified_kl": "certified by KL",
}
RATE = partial(number_text, digits=3)


def acceptance_part(results: Results, says: Sequence[str] = ()) -> Part:
    """Return the part on a drafter; `says` are paragraphs below the heading."""
    title = f"Will {results.drafter} be accepted?"
    if "logged" in results:
        return Part(title, [logged_table(results)], says)
    shown = shown_rules(results)
    return Part(
        title,
        [
            rules_figure(results),
            acceptance_table(results),
            divergence_table(results),
            divergence_figure(results, shown, DIVERGENCES),
            budget_table(results),
            frontier_table(results),
            frontier_figure(results),
            sampling_table(results),
            laws_table(results),
            depth_table(results, shown),
        ],
        says,
    )


def shown_rules(results: Results) -> list[str]:
    """Return the labels of the rules of figures, and of the table by depth."""
    measured = [rule for rule in results["breakdown"]["rule"].unique() if rule]
    own = [rule for rule in results.rules.values() if rule.own]
    known = dict.fromkeys(rule.label for rule in (*own, *SHOWN) if rule.label in measured)
    return list(known or measured)[: len(SHOWN)]


def acceptance_table(results: Results) -> Table:
    """Certified beside accepted, rule by rule."""
    rules = own_rules(results)
    frame = results.select("acceptance", rule=rules, statistic=[*ACCEPTED, "empty", "inexact"])
    columns = [
        Column(heading, partial(_ends, text), "", {"statistic": name})
        for name, (heading, text) in ACCEPTED.items()
    ]
    empty, inexact = (select(frame, statistic=name)["value"] for name in ("empty", "inexact"))
    return Table(
        **worded("acceptance", drafter=results.drafter),
        **by_rule(results, columns),
        data=with_censored(frame),
        order=rules,
        notes=[
            *coverage_notes(empty, inexact, "empty_accepted"),
            *infinite_notes(results, {"kl": "KL"}),
            *few_notes(frame["prompts"]),
        ],
    )


def _ends(text: Callable[[float], str], row: Row) -> str:
    """Return a statistic as printed: a range where certificates are intervals."""
    return length_text(text(row["value"]), text(row["optimistic"]), censored_ends(row))


def _range(text: Callable[[float], str], row: Row) -> str:
    return range_text(text(row["value"]), text(row["optimistic"]))


def divergence_table(results: Results) -> Table:
    """Coverage of accepted steps by each divergence and by their union, rule by rule."""
    frame = results.select("breakdown", depth=0).drop(columns="depth")
    names = {name: DIVERGENCES[name] for name in frame["divergence"].unique()}
    rules = [rule for rule in own_rules(results) if rule in set(frame["rule"])]
    columns = [
        Column(text, partial(_range, share_text), "", {"divergence": x, "statistic": "coverage"})
        for x, text in names.items()
    ]
    return Table(
        **worded("divergences", drafter=results.drafter),
        **by_rule(results, columns),
        data=select(frame, rule=[*rules, ""]),
        order=rules,
        notes=[*infinite_notes(results, names), *few_notes(frame["prompts"])],
    )


def budget_table(results: Results) -> Table:
    """Steps and tokens that are certain at the drafter's mean KL, beside what it gets."""
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
    return Table(
        **worded("budgets", drafter=results.drafter, means=_means(results, frame)),
        **by_rule(results, columns),
        data=select(frame, rule=rules),
        order=rules,
        notes=[*infinite_notes(results, {"kl": "KL"}), *few_notes(frame["prompts"])],
    )


def _means(results: Results, levels: pd.DataFrame) -> str:
    """Return the mean divergence of each target's drafter as printed."""
    means = levels.groupby("target", sort=False)["eps"].first()
    return " / ".join(RATE(means[target]) for target in results.targets)


def frontier_table(results: Results) -> Table:
    """Gain and cost of presets and rules, each as a share of the best at its cost."""
    frame, names = results["frontier"], results.names
    listing = results.select("listing", group="preset")
    presets = dict(zip(listing["rule"], listing["name"], strict=True))

    def tokens(row: Row) -> str:
        return ("≥ " if row["cut"] > CENSORED else "") + number_text(row["tokens"])

    columns = [Column("tokens", tokens, "", {"cost": COSTS[0]})]
    for cost, (heading, _) in COSTS_SHOWN.items():
        columns.append(Column(heading, RATE, where={"cost": cost}))
        columns.append(Column("of the best", share_text, "share", {"cost": cost}))
    others = [rule for rule in dict.fromkeys(frame["rule"]) if rule and rule not in presets]
    return Table(
        **worded("frontier", drafter=results.drafter),
        **by_rule(results, columns),
        data=frame,
        order={
            "Engine presets": {rule: f"{names[rule]}, {name}" for rule, name in presets.items()},
            "Rules": {rule: names[rule] for rule in others},
        },
        notes=few_notes(frame["prompts"]),
    )


def sampling_table(results: Results) -> Table | None:
    """Certified and measured acceptance of each law; None where no answers were sampled."""
    names = results.names
    frame = results.select("levels", statistic="probability")
    if frame.empty:
        return None
    frame = frame.rename(columns={"rule": "law"}).drop(columns="statistic")
    known = results["acceptance"]
    others = known[~known["rule"].isin(names)].rename(columns={"rule": "law"})  # no rule's
    others = others.assign(
        kind=others["statistic"].map({"acceptance": "measured", LENGTH: TOKENS})
    ).dropna(subset=["kind"])
    extra = others[(others["kind"] == TOKENS) | ~others["law"].isin(frame["law"])]
    shown = pd.concat([frame, extra], ignore_index=True)
    drawn = {f"{SAMPLED}{rule}": names[rule] for rule in own_rules(results)}
    columns = [Column(text, share_text, where={"kind": kind}) for kind, text in CERTIFIED.items()]
    columns.append(Column("tokens a call", partial(_ends, number_text), "", {"kind": TOKENS}))
    return Table(
        **worded(
            "sampling",
            drafter=results.drafter,
            temperature=results.facts["sampled"],
            means=_means(results, frame),
        ),
        data=shown[frame.columns],
        row="law",
        columns=across(results.targets, columns),
        stub="Law",
        order={"": LAWS, "A sampled draft, kept if the rule accepts it": drawn},
        notes=few_notes(frame["prompts"]),
        shown=shown,
    )


def laws_table(results: Results) -> Table | None:
    """Engines' lossy tests and several drafts beside the best; None where none were sampled."""
    frame = results.select("levels", kind=[LAW, DRAFTS]).rename(columns={"rule": "law"})
    if frame.empty:
        return None
    headings = {LAW: "One draft, output changed", DRAFTS: "Several drafts, exact"}
    columns = [
        Column("accepted", share_text, where={"statistic": "acceptance"}),
        Column("KL", RATE, "eps", {"statistic": "acceptance"}),
        Column("best", share_text, where={"statistic": "best"}),
        Column("of the best", share_text, where={"statistic": "share"}),
    ]
    return Table(
        **worded("laws", drafter=results.drafter, temperature=results.facts["sampled"]),
        data=frame,
        row="law",
        columns=across(results.targets, columns),
        stub="Law",
        order={
            heading: {law: law for law in select(frame, kind=kind)["law"].unique()}
            for kind, heading in headings.items()
        },
        notes=few_notes(frame["prompts"]),
    )


def depth_table(results: Results, rules: Sequence[str]) -> Table | None:
    """KL, acceptance and certification over depth; None for a drafter that is no head."""
    frame = results.select("breakdown", rule=["", *rules])
    frame = frame[frame["depth"] > 0]
    if frame.empty:
        return None

    def text(row: Row) -> str:
        return _range(number_text if row["statistic"] == "kl_median" else share_text, row)

    depths = sorted(frame["depth"].unique())
    columns = [Column(f"depth {depth}", text, "", {"depth": depth}) for depth in depths]
    order = {
        "": {("", "kl_median"): "KL(p‖q), median, nats", ("", "finite"): "finite KL(p‖q)"},
        "Accepted": {(rule, "acceptance"): results.names[rule] for rule in rules},
        "Certified": {(rule, "certified"): results.names[rule] for rule in rules},
    }
    keys = pd.Series([*zip(frame["rule"], frame["statistic"], strict=True)], frame.index)
    data = frame.drop(columns="divergence")
    first = ["target", "depth", "rule"]
    return Table(
        **worded("depths", drafter=results.drafter),
        data=data[[*first, *(name for name in data if name not in first)]],
        row="key",
        columns=across(results.targets, columns),
        order=order,
        notes=few_notes(frame["prompts"]),
        shown=frame.assign(key=keys),
    )


def logged_table(results: Results) -> Table:
    """Accepted beside certified of two engines' logs; every cell is a range of what is known."""
    rows = results.rows("logged", "target", "rule", "statistic")
    notes = []
    for target in results.targets:
        kl, tv, accepted = (rows[target, "", name] for name in ("kl", "tv", "acceptance"))
        notes.append(
            f"{target}: mean KL(p‖q) {_range(RATE, kl)} nats, mean total variation "
            f"{_range(RATE, tv)}; speculative sampling of a drafted draw accepts "
            f"{_range(share_text, accepted)} of the tokens, at temperature 1."
        )
    return Table(
        **worded("acceptance_logged", drafter=results.drafter),
        data=results["logged"],
        row="rule",
        columns=[
            Column(heading, partial(_range, share_text), "", {"statistic": name})
            for name, heading in LOGGED.items()
        ],
        stub="Criterion",
        section="target",
        order=list(results.rules),
        names=results.names,
        notes=notes,
    )
