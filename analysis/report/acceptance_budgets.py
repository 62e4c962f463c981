"""Table and figure of what a mean KL certifies: uniform bound, budget, realised."""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd

from .notes import few_notes
from .pairs import Pairs
from .table import Cell, Section, Table
from .text import number_text, share_text

KINDS = ("uniform", "budget", "realised")
STYLES = {"uniform": ":", "budget": "-"}
DRAWN = 4  # rules; of more, curves cross too often to be told apart


def budget_table(pairs: Pairs) -> Table:
    """What each rule is sure to accept at the drafter's mean KL, beside what it accepts."""
    frame = pairs.budgets[pairs.budgets["at"] == "drafter"]
    found = frame.set_index(["target", "rule", "kind", "statistic"])["value"].to_dict()
    rules = [rule for rule in pairs.labels("baseline", "criteria") if rule in set(frame["rule"])]
    texts: dict[str, Callable[[float], str]] = {"acceptance": share_text, "tokens": number_text}
    limited = [name for name in frame["statistic"].unique() if name not in texts]
    lengths = {name: str(name).removeprefix("tokens_") for name in limited}
    texts |= dict.fromkeys(limited, number_text)
    rows = [
        (
            pairs.names[rule],
            [
                Cell(text(found[target, rule, kind, name]))
                for target in pairs.targets
                for name, text in texts.items()
                for kind in KINDS
            ],
        )
        for rule in rules
    ]
    means = " / ".join(number_text(mean, 3) for mean in _means(pairs, frame).values())
    return Table.side_by_side(
        "budgets",
        "What a mean KL certifies",
        f"Of {pairs.drafter}, whose mean KL(p‖q) is {means} nats: the share of steps that are "
        "accepted, then the tokens a call with drafts of any length, and of at most γ tokens. "
        "Uniform: sure if the KL is at most this at every step. Budget: sure if its mean is, as "
        "training reports it; the worst drafter spends it where certificates are smallest. "
        "Realised: of this drafter.",
        "Rule",
        pairs.targets,
        [
            *KINDS,
            *(f"tokens, {kind}" for kind in KINDS),
            *(f"γ={length}, {kind}" for length in lengths.values() for kind in KINDS),
        ],
        [Section("", rows)],
        frame[frame["rule"].isin(rules)],
        [*_infinite(pairs, frame), *few_notes(frame["prompts"])],
    )


def _means(pairs: Pairs, frame: pd.DataFrame) -> dict[str, float]:
    by_target = frame.groupby("target", sort=False)["eps"].first()
    return {target: float(by_target[target]) for target in pairs.targets}


def _infinite(pairs: Pairs, frame: pd.DataFrame) -> list[str]:
    """Say what an infinite mean KL leaves."""
    endless = [name for name, mean in _means(pairs, frame).items() if math.isinf(mean)]
    if not endless:
        return []
    return [
        f"The mean KL is infinite ({', '.join(endless)}): the target gives probability to tokens "
        "that the drafter can't draft. Sure are only steps at which nothing can be rejected."
    ]
