"""Tables of a drafter's acceptance: accepted and certified, gained, dialled, needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..statistics.run_lengths import censored_ends, with_censored
from .measured import Pairs
from .notes import AT_LEAST, few_notes, share_notes
from .table import Cell, Section, Table
from .text import UNDEFINED, floor_text, length_text, number_text, range_text, share_text, symbol

Rows = Sequence[tuple[str, str]]  # printed name and label of each rule
GREEDY = "greedy"  # the label of strict greedy, which every gain is measured against
LENGTH, LONG_RUN = "realised_per_call", "realised_long_run"
KINDS = {"realised": "in fact", "certified": "certified"}  # of lengths
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


def acceptance_tables(pairs: Pairs) -> list[Table]:
    """Return every table of the pairs, in order."""
    tables = [accepted(pairs), gain(pairs), needed(pairs)]
    if pairs.sampled is not None:
        tables.insert(2, stochastic(pairs))
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
        "step has a larger R − KL than a rejected one; these two range over the least and the most "
        "that certificates known as intervals allow.",
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
        f"certified, and what it costs. {PER_CALL} Long run: steps over rejections (long_run), ∞ "
        "without one; gain: of that over strict greedy, at least its lower limit (≥) where it is "
        "∞; departs: steps at which a token other than the target's argmax is emitted; "
        "given up: target probability this gives up, mean over all steps.",
        sections,
        (LENGTH, LONG_RUN, "gain", "certified_per_call", "departure", "given_up"),
    )


def stochastic(pairs: Pairs) -> Table:
    """Expected acceptance of speculative sampling and of exponential races."""
    rules = [rule for rule in pairs.statistics["rule"].unique() if rule not in pairs.names]
    return _table(
        pairs,
        "stochastic",
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
    rules = pairs.rules("baseline", "criteria")
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
                [Cell(_reached(found[target, kind])) for target in pairs.targets for kind in KINDS],
            )
        )
    wanted = float(frame["wanted"].iloc[0])
    return Table.side_by_side(
        "reached",
        f"The smallest relaxation with an acceptance length of {wanted:g} tokens per call "
        "(long_run), in fact and as certified; in brackets, the most that the dial reaches. Two "
        "values: from the lower and from the upper ends of certificates known as intervals.",
        "Dial",
        pairs.targets,
        list(KINDS.values()),
        [Section("", rows)],
        frame,
        _reached_notes(pairs),
    )


def _reached_notes(pairs: Pairs) -> list[str]:
    """Say at which share of steps the settings found reject nothing."""
    empty = pairs.reached.set_index(["dial", "kind", "target"])["empty"]
    parts = []
    for dial in pairs.reached["dial"].unique():
        for kind, name in KINDS.items():
            shares = [float(empty[dial, kind, target]) for target in pairs.targets]
            if any(shares):
                parts.append(f"{dial}, {name} " + " / ".join(map(share_text, shares)))
    if not parts:
        return ["No rejection region is empty at these settings."]
    return [
        "Steps with an empty rejection region at the setting found, or at the most relaxed one "
        f"where none reaches: {', '.join(parts)}"
        + (f" ({' / '.join(pairs.targets)})." if len(pairs.targets) > 1 else ".")
    ]


def _names(pairs: Pairs, rules: Iterable[str]) -> dict[str, str]:
    return {rule: pairs.names[rule] for rule in rules if rule in pairs.names}


def _named(pairs: Pairs, rules: Iterable[str]) -> Rows:
    return [(pairs.names[rule], rule) for rule in rules]


def _table(
    pairs: Pairs, name: str, caption: str, sections: Mapping[str, Rows], statistics: Sequence[str]
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
        caption,
        "Rule",
        pairs.targets,
        [COLUMNS[statistic][0] for statistic in statistics],
        [
            Section(title, [(text, list(cells(rule))) for text, rule in rows])
            for title, rows in sections.items()
            if rows
        ],
        with_censored(pairs.of(shown, [*statistics, "empty", "inexact"])),
        [
            *(share_notes(pairs.value, names, pairs.targets, EMPTY) if names else []),
            *few_notes(pairs.statistics["prompts"]),
        ],
    )


def _text(row: Mapping[Any, Any], text: Callable[[float], str]) -> str:
    if text is _gain and math.isinf(row["value"]):  # no rejection: at least its lower limit
        return f"≥ {_gain(row['low'])}"
    return length_text(text(row["value"]), text(row["optimistic"]), censored_ends(row))


def _reached(row: Mapping[Any, Any]) -> str:
    def end(value: float, length: float) -> str:
        return f"{UNDEFINED} ({length:.2f})" if math.isnan(value) else f"{value:.3g}"

    texts = [end(row["value"], row["length"]), end(row["optimistic"], row["optimistic_length"])]
    return " to ".join(dict.fromkeys(texts))
