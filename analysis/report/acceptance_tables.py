"""Tables of a drafter's acceptance: accepted and certified, gained, needed.

Those of dials are in `analysis.report.acceptance_dials`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..rules import StrictGreedy
from ..statistics.run_lengths import censored_ends, with_censored
from .notes import AT_LEAST, few_notes, share_notes
from .pairs import Pairs
from .table import Cell, Section, Table
from .text import UNDEFINED, floor_text, length_text, number_text, range_text, share_text

Rows = Sequence[tuple[str, str]]  # printed name and label of each rule
GREEDY = StrictGreedy().label  # every gain is measured against it
LENGTH, LONG_RUN = "realised_per_call", "realised_long_run"
PER_CALL = (
    "Lengths are tokens per verification call, drafts of unlimited length (per_call). " + AT_LEAST
)

EMPTY = "Such a step is certified whatever the KL, and R − KL is +∞ there."


def _gain(value: float) -> str:
    return UNDEFINED if math.isnan(value) else f"{100 * value:+z.0f} %"


# heading and print of each statistic
COLUMNS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "acceptance": ("accepted", share_text),
    "certified": ("certified", share_text),
    "coverage": ("coverage", share_text),
    "slack_median": ("R − KL", number_text),
    "rank_correlation": ("rank corr.", number_text),
    "ordered": ("ordered", number_text),
    LENGTH: ("length", number_text),
    LONG_RUN: ("long run", number_text),
    "gain": ("gain", _gain),
    "certified_per_call": ("certified", number_text),
    "departure": ("departs", share_text),
    "given_up": ("given up", share_text),
}


def accepted(pairs: Pairs) -> Table:
    """Certified beside accepted, rule by rule."""
    return pair_table(
        pairs,
        "acceptance",
        "What is accepted, and what was certified",
        f"What each rule accepts of {pairs.drafter}, teacher-forced on the "
        "target's own trajectories, and what its certificates promised. Certified: KL(p‖q) below "
        "the certificate R; coverage: certified among accepted; R − KL: its median in nats; rank "
        "corr.: Spearman's, over steps, of R − KL and acceptance; ordered: how often an accepted "
        "step has a larger R − KL than a rejected one; these two range over the least and the most "
        "that certificates known as intervals allow.",
        {"": _named(pairs, pairs.labels("baseline", "criteria"))},
        ("acceptance", "certified", "coverage", "slack_median", "rank_correlation", "ordered"),
        _infinite_notes(pairs),
    )


def gain(pairs: Pairs) -> Table:
    """What the drafter would gain under each rule and preset, over strict greedy."""
    listing = pairs.listing[pairs.listing["group"] == "preset"]
    presets = [
        (f"{pairs.names[rule]}, {name}", rule)
        for name, rule in zip(listing["name"], listing["rule"], strict=True)
    ]
    rules = pairs.labels("criteria")
    trees = [rule for rule in rules if not pairs.rules[rule].judges_tokens]
    sections = {
        "": _named(pairs, [GREEDY]),
        "Engine presets": presets,
        "Rules of the study": _named(pairs, [r for r in rules if r not in (GREEDY, *trees)]),
        "Trees (no departure: only the argmax is emitted)": _named(pairs, trees),
    }
    return pair_table(
        pairs,
        "gain",
        "What the drafter would gain",
        f"What {pairs.drafter} would gain: acceptance length in fact and as "
        f"certified, and what it costs. {PER_CALL} Long run: steps over rejections (long_run), ∞ "
        "without one; gain: of that over strict greedy, at least its lower limit (≥) where it is "
        "∞; departs: steps at which a token other than the target's argmax is emitted; "
        "given up: target probability this gives up, mean over all steps.",
        sections,
        (LENGTH, LONG_RUN, "gain", "certified_per_call", "departure", "given_up"),
    )


def stochastic(pairs: Pairs) -> Table | None:
    """Expected acceptance of speculative sampling and of exponential races; None of greedy text."""
    if pairs.sampled is None:
        return None
    rules = [rule for rule in pairs.statistics["rule"].unique() if rule not in pairs.names]
    return pair_table(
        pairs,
        "stochastic",
        "Stochastic verification",
        f"Expected acceptance of {pairs.drafter} under verification that keeps the target's "
        f"distribution, at temperature {pairs.sampled:g}, at which these answers were sampled: "
        "speculative sampling accepts a draft drawn from q with probability 1 − TV(p, q), and the "
        "argmax of q, which engines draft by default, with its probability under p; exponential "
        "races accept by the formula of arXiv 2504.15475, not below its Lemma C.1. "
        f"{PER_CALL}",
        {"": [(rule.capitalize(), rule) for rule in rules]},
        ("acceptance", LENGTH),
    )


def needed(pairs: Pairs) -> Table:
    """The KL below which a drafter is certified on a fraction of the steps."""
    frame = pairs.needed
    fractions = sorted(frame["fraction"].unique())
    found = frame.set_index(["target", "rule", "fraction"])[["value", "optimistic"]]
    ends = dict(zip(found.index, found.itertuples(index=False, name=None), strict=True))
    rules = pairs.labels("baseline", "criteria")
    rows = [
        (
            pairs.names[rule],
            [
                Cell(range_text(*map(floor_text, ends[target, rule, fraction])))
                for target in pairs.targets
                for fraction in fractions
            ],
        )
        for rule in rules
    ]
    return Table.side_by_side(
        "kl_needed",
        "KL that certifies a wanted share of steps",
        "A drafter whose KL(p‖q) stays below this value at every step, in nats, is certified, and "
        "so sure to be accepted, on at least the given share of these steps, whatever it drafts; "
        "no larger value has this property. At the value itself nothing is promised. Of N "
        "certificates it is the n-th largest, n the share of N rounded up. Printed rounded down.",
        "Rule",
        pairs.targets,
        [f"{100 * fraction:g} %" for fraction in fractions],
        [Section("", rows)],
        frame[frame["rule"].isin(rules)],
        [
            *share_notes(
                pairs.value,
                _names(pairs, rules),
                pairs.targets,
                "Such a step is certified whatever the KL; ∞: so many steps are.",
            ),
            *few_notes(frame["prompts"]),
        ],
    )


def _names(pairs: Pairs, rules: Iterable[str]) -> dict[str, str]:
    return {rule: pairs.names[rule] for rule in rules if rule in pairs.names}


def _named(pairs: Pairs, rules: Iterable[str]) -> Rows:
    return [(pairs.names[rule], rule) for rule in rules]


def pair_table(
    pairs: Pairs,
    name: str,
    title: str,
    caption: str,
    sections: Mapping[str, Rows],
    statistics: Sequence[str],
    notes: Sequence[str] = (),
) -> Table:
    """Lay out statistics of rules, keys of `COLUMNS`; sections without a rule are left out."""
    shown = [rule for rows in sections.values() for _, rule in rows]
    names = _names(pairs, shown)

    def cells(rule: str) -> Iterator[Cell]:
        for target in pairs.targets:
            for statistic in statistics:
                yield Cell(_text(pairs.row(target, rule, statistic), COLUMNS[statistic][1]))

    return Table.side_by_side(
        name,
        title,
        caption,
        "Rule",
        pairs.targets,
        [COLUMNS[statistic][0] for statistic in statistics],
        [
            Section(heading, [(text, list(cells(rule))) for text, rule in rows])
            for heading, rows in sections.items()
            if rows
        ],
        with_censored(pairs.of(shown, [*statistics, "empty", "inexact"])),
        [
            *(share_notes(pairs.value, names, pairs.targets, EMPTY)),
            *notes,
            *few_notes(pairs.statistics["prompts"]),
        ],
    )


def _infinite_notes(pairs: Pairs) -> list[str]:
    """Say what an infinite KL means, where a head that drafts some tokens only has one."""
    depths = pairs.depths
    if depths.empty:
        return []
    finite = depths[(depths["depth"] == 1) & (depths["statistic"] == "finite")]["value"]
    if (finite == 1).all():
        return []
    shares = " / ".join(map(share_text, finite))
    return [
        f"Steps with a finite KL(p‖q): {shares}. At the others the target gives probability to "
        "tokens that the drafter can't draft: R − KL is -∞ there, where R is finite, and nothing "
        "is certified."
    ]


def _text(row: Mapping[Any, Any], text: Callable[[float], str]) -> str:
    if text is _gain and math.isinf(row["value"]):  # no rejection: at least its lower limit
        return f"≥ {_gain(row['ci_low'])}"
    return length_text(text(row["value"]), text(row["optimistic"]), censored_ends(row))
