"""Tables of a drafter's acceptance: accepted and certified, gained, dialled, needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from analysis.layout import Cell, Section, Table
from analysis.measured import Pairs
from analysis.printing import UNDEFINED, number_text, share_text, symbol

Rows = Sequence[tuple[str, str]]  # printed name and label of each rule
GREEDY = "greedy"  # the label of strict greedy, which every gain is measured against
LENGTH = "realised_per_call"
PER_CALL = "Lengths are tokens per verification call, drafts of unlimited length (per_call)."


def _gain(value: float) -> str:
    return UNDEFINED if math.isnan(value) else f"{100 * value:+.0f} %"


# heading and print of each statistic
COLUMNS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "acceptance": ("accepted", share_text),
    "certified": ("certified", share_text),
    "coverage": ("coverage", share_text),
    "slack_median": ("R − KL", number_text),
    "rank_correlation": ("rank corr.", number_text),
    "ordered": ("ordered", number_text),
    LENGTH: ("length", number_text),
    "gain": ("gain", _gain),
    "certified_per_call": ("certified", number_text),
    "departure": ("departs", share_text),
    "given_up": ("given up", share_text),
}


def acceptance_tables(pairs: Pairs) -> list[Table]:
    """Return every table of the pairs, in order."""
    tables = [accepted(pairs), gain(pairs), stochastic(pairs), needed(pairs)]
    if (pairs.listing["group"] == "dial").any():
        tables += [dials(pairs), reached(pairs)]
    return tables


def accepted(pairs: Pairs) -> Table:
    """Certified beside accepted, rule by rule."""
    return _table(
        pairs,
        "acceptance",
        f"What each rule accepts of {pairs.drafter}, teacher-forced on the "
        "target's own trajectories, and what its certificates promised. Certified: KL(p‖q) below "
        "the certificate R; coverage: certified among accepted; R − KL: its median in nats; rank "
        "corr.: Spearman's, over steps, of R − KL and acceptance; ordered: how often an accepted "
        "step has a larger R − KL than a rejected one.",
        {"": _named(pairs, pairs.rules("baseline", "criteria"))},
        ("acceptance", "certified", "coverage", "slack_median", "rank_correlation", "ordered"),
    )


def gain(pairs: Pairs) -> Table:
    """What the drafter would gain under each rule and preset, over strict greedy."""
    listing = pairs.listing[pairs.listing["group"] == "preset"]
    presets = [
        (f"{pairs.names[rule]}, {name}", rule)
        for name, rule in zip(listing["name"], listing["rule"], strict=True)
    ]
    rules = pairs.rules("criteria")
    trees = [rule for rule in rules if rule.startswith("tree ")]
    sections = {
        "": _named(pairs, [GREEDY]),
        "Engine presets": presets,
        "Rules of the study": _named(pairs, [r for r in rules if r not in (GREEDY, *trees)]),
        "Trees (no departure: only the argmax is emitted)": _named(pairs, trees),
    }
    return _table(
        pairs,
        "gain",
        f"What {pairs.drafter} would gain: acceptance length in fact and as "
        f"certified, and what it costs. {PER_CALL} Gain: over strict greedy; departs: steps at "
        "which a token other than the target's argmax is emitted; given up: target probability "
        "this gives up, mean over all steps.",
        sections,
        (LENGTH, "gain", "certified_per_call", "departure", "given_up"),
    )


def stochastic(pairs: Pairs) -> Table:
    """Expected acceptance of speculative sampling and of exponential races."""
    rules = [rule for rule in pairs.statistics["rule"].unique() if rule not in pairs.names]
    return _table(
        pairs,
        "stochastic",
        f"Expected acceptance of {pairs.drafter} under verification that "
        "keeps the target's distribution: speculative sampling accepts one draft with "
        "probability 1 − TV(p, q), exponential races by the formula of arXiv 2504.15475, not "
        f"below its Lemma C.1. {PER_CALL}",
        {"": [(rule.capitalize(), rule) for rule in rules]},
        ("acceptance", LENGTH),
    )


def needed(pairs: Pairs) -> Table:
    """The KL at which a fraction of the steps is certified."""
    frame = pairs.needed
    fractions = sorted(frame["fraction"].unique())
    look = frame.set_index(["target", "rule", "fraction"])["kl"].to_dict()
    rules = pairs.rules("baseline", "criteria")
    rows = [
        (
            pairs.names[rule],
            [
                Cell(_nats(look[target, rule, fraction]))
                for target in pairs.targets
                for fraction in fractions
            ],
        )
        for rule in rules
    ]
    return Table.side_by_side(
        "kl_needed",
        "The largest KL(p‖q), in nats, at which the given share of steps is "
        "certified. A drafter whose KL stays at or below it is sure to be accepted on that share, "
        "whatever it drafts. ∞: the rejection region is empty.",
        "Rule",
        pairs.targets,
        [share_text(fraction) for fraction in fractions],
        [Section("", rows)],
        frame[frame["rule"].isin(rules)],
    )


def dials(pairs: Pairs) -> Table:
    """What each setting of a dial accepts, gains and gives up."""
    listing = pairs.listing[pairs.listing["group"] == "dial"]
    sections = {
        f"{name}, {symbol(part['parameter'].iloc[0])}": [
            (f"{setting:g}", str(rule))
            for setting, rule in zip(part["setting"], part["rule"], strict=True)
        ]
        for name, part in listing.groupby("name", sort=False)
    }
    return _table(
        pairs,
        "dial",
        f"Turning one parameter from strict to relaxed. {PER_CALL} Trees: accepted "
        "is the share of steps whose target argmax is among the drafter's top m.",
        sections,
        ("acceptance", LENGTH, "certified_per_call", "departure", "given_up"),
    )


def reached(pairs: Pairs) -> Table:
    """The smallest relaxation that reaches a wanted length."""
    frame = pairs.reached
    rows = []
    for (dial, parameter), part in frame.groupby(["dial", "parameter"], sort=False):
        found = {(row["target"], row["kind"]): row for row in part.to_dict("records")}
        rows.append(
            (
                f"{dial}, {symbol(str(parameter))}",
                [
                    Cell(_reached(found[target, kind]))
                    for target in pairs.targets
                    for kind in ("realised", "certified")
                ],
            )
        )
    wanted = float(frame["wanted"].iloc[0])
    return Table.side_by_side(
        "reached",
        f"The smallest relaxation with an acceptance length of {wanted:g} tokens per "
        "call, in fact and as certified; in brackets, the most that the dial reaches.",
        "Dial",
        pairs.targets,
        ["in fact", "certified"],
        [Section("", rows)],
        frame,
    )


def _named(pairs: Pairs, rules: Iterable[str]) -> Rows:
    return [(pairs.names[rule], rule) for rule in rules]


def _table(
    pairs: Pairs, name: str, caption: str, sections: Mapping[str, Rows], statistics: Sequence[str]
) -> Table:
    """Lay out statistics of rules, keys of `COLUMNS`; sections without a rule are left out."""

    def cells(rule: str) -> Iterator[Cell]:
        for target in pairs.targets:
            for statistic in statistics:
                yield Cell(COLUMNS[statistic][1](_statistic(pairs, target, rule, statistic)))

    return Table.side_by_side(
        name,
        caption,
        "Rule",
        pairs.targets,
        [COLUMNS[statistic][0] for statistic in statistics],
        [
            Section(title, [(text, list(cells(rule))) for text, rule in rows])
            for title, rows in sections.items()
            if rows
        ],
        pairs.of([rule for rows in sections.values() for _, rule in rows], statistics),
    )


def _statistic(pairs: Pairs, target: str, rule: str, statistic: str) -> float:
    if statistic != "gain":
        return pairs.value(target, rule, statistic)
    return pairs.value(target, rule, LENGTH) / pairs.value(target, GREEDY, LENGTH) - 1


def _nats(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.2g}"


def _reached(row: Mapping[Any, Any]) -> str:
    if math.isnan(row["value"]):
        return f"{UNDEFINED} ({row['length']:.2f})"
    return f"{row['value']:.3g}"
