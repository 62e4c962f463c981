"""The table of a drafter's acceptance: accepted and certified, rule by rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..rules import StrictGreedy
from ..statistics.run_lengths import censored_ends, with_censored
from .notes import AT_LEAST, few_notes, share_notes
from .pairs import Pairs
from .table import Cell, Section, Table
from .text import length_text, number_text, share_text

Rows = Sequence[tuple[str, str]]  # printed name and label of each rule
GREEDY = StrictGreedy().label  # every gain is measured against it
LENGTH = "realised_per_call"
PER_CALL = (
    "Lengths are tokens per verification call, drafts of unlimited length (per_call). " + AT_LEAST
)

EMPTY = "Such a step is certified whatever the KL, and R − KL is +∞ there."


# heading and print of each statistic
COLUMNS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "acceptance": ("accepted", share_text),
    "certified": ("certified", share_text),
    "coverage": ("coverage", share_text),
    "slack_median": ("R − KL", number_text),
    "rank_correlation": ("rank corr.", number_text),
    "ordered": ("ordered", number_text),
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
    return length_text(text(row["value"]), text(row["optimistic"]), censored_ends(row))
