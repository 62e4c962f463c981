"""Tables of a drafter's acceptance: accepted and certified, gained, dialled, needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from analysis.layout import Cell, Section, Table
from analysis.printing import UNDEFINED, share_text

Rows = Sequence[tuple[str, Sequence[tuple[str, str]]]]  # heading; printed name and label
Columns = Mapping[str, tuple[str, Callable[[float], str]]]  # statistic; heading and format
GREEDY = "greedy"  # the label of strict greedy, which every gain is measured against
PER_CALL = "Lengths are tokens per verification call, drafts of unlimited length (per_call)."


@dataclass(frozen=True)
class Pairs:
    """A drafter beside each target of a study; the frames are those of the stage acceptance.

    Attributes:
        drafter: its printed name.
        targets: printed names, in order.
        names: printed name of every rule, by label.
        listing: group, name, parameter, setting, rule; the same for all targets.
        statistics: target, rule, statistic, value, optimistic, low, high.
        needed: target, rule, fraction, kl, low, high.
        reached: target, dial, parameter, kind, wanted, value, length.
    """

    drafter: str
    targets: Sequence[str]
    names: Mapping[str, str]
    listing: pd.DataFrame
    statistics: pd.DataFrame
    needed: pd.DataFrame
    reached: pd.DataFrame

    @cached_property
    def _values(self) -> dict[tuple[str, str, str], float]:
        columns = (self.statistics[name] for name in ("target", "rule", "statistic"))
        return dict(zip(zip(*columns, strict=True), self.statistics["value"], strict=True))

    def value(self, target: str, rule: str, statistic: str) -> float:
        """Return a statistic of a rule; NaN where it does not exist."""
        return self._values.get((target, rule, statistic), math.nan)

    def rules(self, group: str) -> list[str]:
        """Return the labels of a group of the listing."""
        return list(self.listing.loc[self.listing["group"] == group, "rule"])

    def of(self, rules: Sequence[str], statistics: Sequence[str]) -> pd.DataFrame:
        """Return the tidy rows of some rules and statistics."""
        table = self.statistics
        return table[table["rule"].isin(rules) & table["statistic"].isin(statistics)]


def acceptance_tables(pairs: Pairs) -> list[Table]:
    """Return every table of the pairs, in order."""
    tables = [accepted(pairs), gain(pairs), stochastic(pairs), needed(pairs)]
    if (pairs.listing["group"] == "dial").any():
        tables += [dials(pairs), reached(pairs)]
    return tables


def accepted(pairs: Pairs) -> Table:
    """Certified beside accepted, rule by rule."""
    columns: Columns = {
        "acceptance": ("accepted", _share),
        "certified": ("certified", _share),
        "coverage": ("coverage", _share),
        "slack_median": ("R − KL", _number),
        "rank_correlation": ("rank corr.", _number),
        "ordered": ("ordered", _number),
    }
    rules = list(dict.fromkeys([*pairs.rules("baseline"), *pairs.rules("criteria")]))
    return _table(
        pairs,
        "acceptance",
        f"What each rule accepts of {pairs.drafter}, teacher-forced on the "
        "target's own trajectories, and what its certificates promised. Certified: KL(p‖q) below "
        "the certificate R; coverage: certified among accepted; R − KL: its median in nats; rank "
        "corr.: Spearman's, over steps, of R − KL and acceptance; ordered: how often an accepted "
        "step has a larger R − KL than a rejected one.",
        [("", [(pairs.names[rule], rule) for rule in rules])],
        columns,
    )


def gain(pairs: Pairs) -> Table:
    """What the drafter would gain under each rule and preset, over strict greedy."""
    listing = pairs.listing[pairs.listing["group"] == "preset"]
    presets = [
        (f"{pairs.names[rule]}, {name}", rule)
        for name, rule in zip(listing["name"], listing["rule"], strict=True)
    ]
    columns: Columns = {
        "realised_per_call": ("length", _length),
        "gain": ("gain", _gain),
        "certified_per_call": ("certified", _length),
        "departure": ("departs", _share),
        "given_up": ("given up", _share),
    }
    trees = {rule for rule in pairs.names if rule.startswith("tree ")}
    sections = [
        ("", [(pairs.names[GREEDY], GREEDY)]),
        ("Engine presets", presets),
        (
            "Rules of the study",
            [
                (pairs.names[rule], rule)
                for rule in pairs.rules("criteria")
                if rule != GREEDY and rule not in trees
            ],
        ),
        (
            "Trees (no departure: only the argmax is emitted)",
            [(pairs.names[rule], rule) for rule in pairs.rules("criteria") if rule in trees],
        ),
    ]
    return _table(
        pairs,
        "gain",
        f"What {pairs.drafter} would gain: acceptance length in fact and as "
        f"certified, and what it costs. {PER_CALL} Gain: over strict greedy; departs: steps at "
        "which a token other than the target's argmax is emitted; given up: target probability "
        "this gives up, mean over all steps.",
        sections,
        columns,
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
        [("", [(rule.capitalize(), rule) for rule in rules])],
        {"acceptance": ("accepted", _share), "realised_per_call": ("length", _length)},
    )


def needed(pairs: Pairs) -> Table:
    """The KL at which a fraction of the steps is certified."""
    frame = pairs.needed
    fractions = sorted(frame["fraction"].unique())
    look = frame.set_index(["target", "rule", "fraction"])["kl"].to_dict()
    rules = list(dict.fromkeys([*pairs.rules("baseline"), *pairs.rules("criteria")]))
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
    return Table(
        "kl_needed",
        "The largest KL(p‖q), in nats, at which the given share of steps is "
        "certified. A drafter whose KL stays at or below it is sure to be accepted on that share, "
        "whatever it drafts. ∞: the rejection region is empty.",
        "Rule",
        [(target, len(fractions)) for target in pairs.targets],
        [share_text(fraction) for fraction in fractions] * len(pairs.targets),
        [Section("", rows)],
        [],
        frame[frame["rule"].isin(rules)],
    )


def dials(pairs: Pairs) -> Table:
    """What each setting of a dial accepts, gains and gives up."""
    columns: Columns = {
        "acceptance": ("accepted", _share),
        "realised_per_call": ("length", _length),
        "certified_per_call": ("certified", _length),
        "departure": ("departs", _share),
        "given_up": ("given up", _share),
    }
    listing = pairs.listing[pairs.listing["group"] == "dial"]
    sections = [
        (
            f"{name}, {_symbol(part['parameter'].iloc[0])}",
            [
                (f"{setting:g}", str(rule))
                for setting, rule in zip(part["setting"], part["rule"], strict=True)
            ],
        )
        for name, part in listing.groupby("name", sort=False)
    ]
    return _table(
        pairs,
        "dial",
        f"Turning one parameter from strict to relaxed. {PER_CALL} Trees: accepted "
        "is the share of steps whose target argmax is among the drafter's top m.",
        sections,
        columns,
    )


def reached(pairs: Pairs) -> Table:
    """The smallest relaxation that reaches a wanted length."""
    frame = pairs.reached
    rows = []
    for (dial, parameter), part in frame.groupby(["dial", "parameter"], sort=False):
        found = {(row["target"], row["kind"]): row for row in part.to_dict("records")}
        rows.append(
            (
                f"{dial}, {_symbol(str(parameter))}",
                [
                    Cell(_reached(found[target, kind]))
                    for target in pairs.targets
                    for kind in ("realised", "certified")
                ],
            )
        )
    wanted = float(frame["wanted"].iloc[0])
    return Table(
        "reached",
        f"The smallest relaxation with an acceptance length of {wanted:g} tokens per "
        "call, in fact and as certified; in brackets, the most that the dial reaches.",
        "Dial",
        [(target, 2) for target in pairs.targets],
        ["in fact", "certified"] * len(pairs.targets),
        [Section("", rows)],
        [],
        frame,
    )


def _table(pairs: Pairs, name: str, caption: str, sections: Rows, columns: Columns) -> Table:
    """Lay out statistics of rules."""

    def cells(rule: str) -> Iterator[Cell]:
        for target in pairs.targets:
            for statistic, (_, text) in columns.items():
                yield Cell(text(_statistic(pairs, target, rule, statistic)))

    filled = [
        Section(title, [(text, list(cells(rule))) for text, rule in rows])
        for title, rows in sections
        if rows
    ]
    rules = [rule for _, rows in sections for _, rule in rows]
    return Table(
        name,
        caption,
        "Rule",
        [(target, len(columns)) for target in pairs.targets],
        [heading for heading, _ in columns.values()] * len(pairs.targets),
        filled,
        [],
        pairs.of(rules, list(columns)),
    )


def _statistic(pairs: Pairs, target: str, rule: str, statistic: str) -> float:
    if statistic != "gain":
        return pairs.value(target, rule, statistic)
    length = "realised_per_call"
    return pairs.value(target, rule, length) / pairs.value(target, GREEDY, length) - 1


def _symbol(parameter: str) -> str:
    return {"alpha": "α", "theta": "θ"}.get(parameter, parameter)


def _share(value: float) -> str:
    return UNDEFINED if math.isnan(value) else share_text(value)


def _number(value: float) -> str:
    return UNDEFINED if math.isnan(value) else "∞" if math.isinf(value) else f"{value:.2f}"


def _length(value: float) -> str:
    return UNDEFINED if math.isnan(value) else f"{value:.2f}"


def _gain(value: float) -> str:
    return UNDEFINED if math.isnan(value) else f"{100 * value:+.0f} %"


def _nats(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.2g}"


def _reached(row: Mapping[Any, Any]) -> str:
    if math.isnan(row["value"]):
        return f"– ({row['length']:.2f})"
    return f"{row['value']:.3g}"
