"""What the paper says in words (arXiv 2606.30265v1, Figure 1's caption, Sections 6.3 and 6.4).

Each sentence becomes a number, computed in the same way from a study's tables and from the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..acceptance.target import Target
from ..rules import Additive, Multiplicative, Rule, StrictGreedy, TopMAdditive, Tree
from ..statistics.estimate import Estimate
from ..topk import Floats
from .paper_figures import VERY_CERTAIN
from .published import TABLE2
from .table import Table
from .text import UNDEFINED, at_least, estimate_text, number_text

LARGE_EPS = 0.5  # nats: here the paper's own cells are about 2 to 5 tokens for every such rule
TOKEN_RULES = [rule for rule in TABLE2 if rule.judges_tokens]
# looks up a cell of the paper's tables by rule and column: (2,) our value, the published one
Cells = Callable[[Rule, str | float], Floats]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and the number that it is about."""

    place: str  # where the paper says it
    sentence: str
    quantity: str
    number: Callable[[Cells], Floats]
    digits: int = 2
    is_run_length: bool = False  # which the ends of answers may cut


def _ratio(numerator: Rule, denominator: Rule, statistic: str) -> Callable[[Cells], Floats]:
    return lambda cells: cells(numerator, statistic) / cells(denominator, statistic)


def _gain(rule: Rule) -> Callable[[Cells], Floats]:
    return lambda cells: cells(rule, "p5") - cells(StrictGreedy(), "p5")


def _length(extreme: Callable[..., Floats]) -> Callable[[Cells], Floats]:
    return lambda cells: extreme([cells(rule, LARGE_EPS) for rule in TOKEN_RULES], axis=0)


CLAIMS = [
    Claim(
        "6.3",
        "Trees of m = 2 double the median",
        "median, m = 2 / greedy",
        _ratio(Tree(2), StrictGreedy(), "median"),
    ),
    Claim(
        "6.3",
        "t below 0.1 has a negligible effect",
        "p5, t = 0.05 − greedy, nats",
        _gain(Additive(0.05)),
        3,
    ),
    Claim(
        "6.3",
        "α above 0.5 has a negligible effect",
        "p5, α = 0.7 − greedy, nats",
        _gain(Multiplicative(0.7)),
        3,
    ),
    *(
        Claim(
            "6.3",
            f"m = 2 governs at t = {t:g}, larger m do not",
            "p5, m = 2 / m = 8",
            _ratio(TopMAdditive(2, t), TopMAdditive(8, t), "p5"),
        )
        for t in (0.1, 0.2)
    ),
    *(
        Claim(
            "6.4",
            "2 to 5 tokens at realistic ε",
            f"tokens, ε = {LARGE_EPS:g}, {name} of a rule",
            _length(extreme),
            is_run_length=True,
        )
        for name, extreme in (("fewest", np.min), ("most", np.max))
    ),
]


def claims_table(compared: pd.DataFrame, targets: Sequence[Target]) -> Table | None:
    """Return the paper's sentences with a study's number and the one that its own tables give.

    Args:
        compared: a study's cells beside the paper's, from `published_table.compare_with_paper`.
        targets: the steps of the targets, for the claims about single steps.
    """
    rows = []
    for label, cells in compared.groupby("target", sort=False):
        for target in targets:
            if target.label == label:
                rows += _step_claims(target)
        rows += _table_claims(str(label), cells)
    if not rows:
        return None
    data = pd.DataFrame(rows)
    texts = {"ours": data.pop("ours"), "by its tables": data.pop("by_tables")}
    names = {"place": "in", "sentence": "the paper says", "quantity": "number"}
    shown = data[["target", *names]].rename(columns=names)
    return Table(
        "published_claims",
        "What the paper says in words",
        "Each sentence as a number: in this study, and by the same arithmetic on the cells that "
        f"the paper prints ({UNDEFINED}: it prints none).",
        data,
        shown.assign(**texts).set_index(list(shown.columns)),
    )


def _step_claims(target: Target) -> list[dict[str, object]]:
    """Return the rows on the share of very certain steps, and on the number of steps."""
    certain = target.top[1] > VERY_CERTAIN
    share = target.bootstrap.ratio_interval(certain)
    return [
        {
            "target": target.label,
            "place": "Figure 1",
            "sentence": "p₀ is close to 1 at over 40 % of the steps",
            "quantity": f"steps with p₀ > {VERY_CERTAIN:g}",
            **share.columns(),
            "ours": estimate_text(share, percent=True),
            "by_tables": UNDEFINED,
        },
        {
            "target": target.label,
            "place": "6.4",
            "sentence": "Over 63,000 steps",
            "quantity": "steps",
            **Estimate(len(certain)).columns(),
            "ours": f"{len(certain):,}",
            "by_tables": UNDEFINED,
        },
    ]


def _table_claims(target: str, compared: pd.DataFrame) -> list[dict[str, object]]:
    """Return the rows of the `CLAIMS` whose cells of the paper's tables the study has, too."""
    numbers = {
        (row["row"], row["statistic"]): np.array([row["value"], row["published"]])
        for row in compared.to_dict("records")
    }
    is_cut = bool((compared["censored"] & compared["statistic"].eq(LARGE_EPS)).any())
    rows: list[dict[str, object]] = []
    for claim in CLAIMS:
        try:
            ours, published = claim.number(lambda rule, column: numbers[rule.label, column])
        except KeyError:  # the study lacks a rule
            continue
        censored = is_cut and claim.is_run_length
        rows.append(
            {
                "target": target,
                "place": claim.place,
                "sentence": claim.sentence,
                "quantity": claim.quantity,
                **Estimate(ours).columns(),
                "published": published,
                "censored": censored,
                "ours": at_least(number_text(ours, claim.digits), censored),
                "by_tables": number_text(published, claim.digits),
            }
        )
    return rows
