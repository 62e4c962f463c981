"""How far certificates are determined by what is stored, and how near the closed forms come."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..certificates import bounds
from ..rules import Rule
from ..topk import Floats
from .measured import Certified, Panels
from .table import Cell, Section, Table
from .text import UNDEFINED, number_text, rule_text, share_text

BOUNDED = (  # rules with a closed form
    "greedy",
    "additive",
    "multiplicative",
    "topm_additive",
    "topm_multiplicative",
    "typical",
    "tree",
)
COLUMNS = ("R", "G", "Form", "R/G", "R/Form", "Upper", "(2/k) log 2", "Ceiling")


@dataclass(frozen=True)
class Compared:
    """Steps of one target at which one rule's certificate is exact and finite.

    Attributes:
        rule: one of `BOUNDED`.
        total: number of all steps of the target.
        certificate: (N,) nats.
        active_size: (N,) |A|.
        p0: (N,) probability of the argmax.
        b: (N,) probability of the first rejected token; of rank m + 1 for a tree.
        theta: (N,) the rule's threshold on probabilities, NaN for strict greedy and trees.
    """

    rule: Rule
    total: int
    certificate: Floats
    active_size: Floats
    p0: Floats
    b: Floats
    theta: Floats


class Bound(NamedTuple):
    """A closed form over steps; `kind` is lower, upper or asymptotic (then it bounds nothing)."""

    name: str
    kind: str
    values: Floats


def closed_forms(steps: Compared) -> Iterator[Bound]:
    """Yield every closed form of `bounds` that applies to the rule, (N,) each.

    The first bound from below is the value form of Lemma 4.5 (a tree has none), the next one the
    rule's own theorem or corollary; the first ones from above are those that the table prints.
    """
    rule, p0, b = steps.rule, steps.p0, steps.b
    if rule.name == "tree":
        m = rule.parameters["m"]
        yield Bound("theorem 5.2", "lower", bounds.tree_lower(p0 - b, m))
        yield Bound("theorem 5.2 series", "asymptotic", bounds.tree_lower_series(p0 - b, m))
        yield Bound("log(1 + m p0)", "upper", bounds.tree_upper(p0, m))
        yield Bound("theorem 5.3", "upper", np.full_like(p0, bounds.tree_ceiling(m)))
        return
    yield Bound("lemma 4.5", "lower", bounds.two_token(p0, b))
    yield from _own_forms(steps)
    yield Bound("lemma 4.5 polynomial", "lower", bounds.two_token_polynomial(p0, b))
    yield Bound("log(1 + p0 - b) - b log(p0/b)", "upper", bounds.single_upper(p0, b))
    yield Bound("theorem 4.6", "upper", bounds.ceiling(steps.active_size))
    yield Bound("log 2", "upper", np.full_like(p0, rule.ceiling))
    if rule.name == "greedy":  # R is G(p0, p1) but for ties, and Lemma A.1 bounds its g
        s = p0 + b
        yield Bound("lemma A.1", "upper", s * bounds.g_upper((p0 - b) / s))


def _own_forms(steps: Compared) -> Iterator[Bound]:
    """Yield what the paper says of this rule of one token in particular."""
    rule, p0, b = steps.rule, steps.p0, steps.b
    if rule.name == "greedy":
        yield Bound("theorem 4.9", "lower", bounds.greedy_lower(p0 - b))
        yield Bound("proposition 4.8", "lower", bounds.pinsker(p0 - b))
    elif rule.name == "additive":
        t = np.full_like(p0, rule.parameters["t"])
        yield Bound("theorem 4.11", "lower", bounds.additive_lower(t))
        yield Bound("theorem 4.11 polynomial", "lower", bounds.additive_lower_polynomial(t))
        threshold_form = bounds.two_token(p0, np.minimum(steps.theta, p0))
        yield Bound("lemma 4.5 threshold form", "lower", threshold_form)
    elif rule.name == "multiplicative":
        alpha = rule.parameters["alpha"]
        yield Bound("theorem 4.13", "lower", bounds.multiplicative_lower(p0, alpha))
        series = bounds.multiplicative_lower_series(p0, alpha)
        yield Bound("theorem 4.13 series", "asymptotic", series)
    else:
        name = "corollary 4.15" if rule.name == "typical" else "corollary 4.14"
        # above p0 the argmax is kept, and nothing is promised; a limit on ranks may reject a
        # token above the threshold, whose level is b then
        theta = np.minimum(np.maximum(steps.theta, b), p0)
        yield Bound(name, "lower", bounds.two_token(p0, theta))
        yield Bound(f"{name} polynomial", "lower", bounds.two_token_polynomial(p0, theta))


def bounds_table(targets: Mapping[str, Sequence[Compared]]) -> Table | None:
    """Compare exact certificates with the closed forms; None where no rule has one.

    Args:
        targets: what is compared, by printed name of the target and in the order of the rules.
    """
    frames, sections = [], []
    for target, items in targets.items():
        frames += [_bound_rows(item).assign(target=target, rule=item.rule.label) for item in items]
        rows = [
            (rule_text(item.rule), _bound_cells(item, frame))
            for item, frame in zip(items, frames[len(frames) - len(items) :], strict=True)
        ]
        sections.append(Section(target, rows))
    if not frames:
        return None
    data = pd.concat(frames, ignore_index=True)
    first = ["target", "rule"]
    return Table(
        "bounds",
        "Exact certificates R beside closed forms: medians in nats over the steps whose "
        "certificate is exact and finite and whose first rejected token is stored. From below: "
        "G, the value form of Lemma 4.5 (p₀ and the first rejected probability b), and the "
        "rule's own closed form: Theorems 4.9, 4.11, 4.13, Corollaries 4.14, 4.15, Theorem 5.2. "
        "R/G and R/Form are the least ratios over these steps; 1 is tight, and none is below. "
        "From above: log(1+p₀-b) - b log(p₀/b), for trees log(1+m p₀); (2/k) log 2 for k active "
        "tokens (Theorem 4.6); the ceiling log 2 or log(m+1), which is asymptotic: approached as "
        "p₀ goes to 1, never reached.",
        "Criterion",
        [("", 1), ("from below", 2), ("least ratio", 2), ("from above", 3)],
        COLUMNS,
        sections,
        data[[*first, *(name for name in data if name not in first)]],
        [
            "The CSV file has further bounds: the polynomials of the closed forms, Proposition "
            "4.8, the threshold form of Lemma 4.5, the upper half of Lemma A.1 for strict greedy. "
            "It has the share of steps compared, and the expansions of Theorem 4.13 for α near 1 "
            "and of Theorem 5.2 for small margins. These are asymptotic, no bounds: for m > 5 the "
            "first term of the latter exceeds the bound. The column ratio is the least of "
            "R/value, or of value/R for kind upper, over steps where both are above 0."
        ],
    )


def _bound_rows(steps: Compared) -> pd.DataFrame:
    r = steps.certificate
    rows = []
    for bound in closed_forms(steps):
        above, below = (bound.values, r) if bound.kind == "upper" else (r, bound.values)
        usable = (below > 0) & (above > 0)
        rows.append(
            {
                "bound": bound.name,
                "kind": bound.kind,
                "median": median(bound.values),
                "certificate": median(r),
                "ratio": float(np.min(above[usable] / below[usable])) if any(usable) else math.nan,
                "compared": len(r) / steps.total,
                "steps": steps.total,
            }
        )
    return pd.DataFrame(rows)


def _bound_cells(steps: Compared, frame: pd.DataFrame) -> list[Cell]:
    lower, upper = (frame[frame["kind"] == kind].to_dict("records") for kind in ("lower", "upper"))
    none: dict[Hashable, Any] = {"median": math.nan, "ratio": math.nan}
    if steps.rule.name == "tree":
        lower, upper = [none, *lower], [upper[0], none, *upper[1:]]
    shown = [
        frame["certificate"].iloc[0],
        *(row[column] for column in ("median", "ratio") for row in lower[:2]),
        *(row["median"] for row in upper[:3]),
    ]
    return [Cell(number_text(value, 3)) for value in shown]


def median(values: Floats) -> float:
    """Return the smallest value that half of the (N,) values do not exceed; NaN of none.

    >>> median(np.array([3.0, 1.0, 2.0, 9.0]))
    2.0
    """
    return float(np.quantile(values, 0.5, method="inverted_cdf")) if len(values) else math.nan


def determined_table(panels: Panels) -> Table:
    """Say, per rule and target, how far the stored tokens determine the certificates."""
    rows, cells = [], {}
    for target, items in panels.items():
        for item in items:
            row = _determined(item)
            rows.append({"target": target, "rule": item.rule.label, **row})
            cells[target, item.rule] = [
                Cell(share_text(row["determined"])),
                Cell(share_text(row["empty"])),
                Cell(f"{row['widest']:.2g}" if row["widest"] > 0 else UNDEFINED),
                Cell(share_text(row["unbounded"]) if row["unbounded"] > 0 else UNDEFINED),
            ]
    rules = [item.rule for item in next(iter(panels.values()))]
    body = [(rule_text(r), [cell for name in panels for cell in cells[name, r]]) for r in rules]
    return Table.side_by_side(
        "determined",
        "How far the stored tokens determine the certificates. Determined: share of steps whose "
        "certificate is exact. Empty: share at which nothing is rejected for certain, R = +∞. "
        "Widest: of the intervals with two finite ends, the widest, in nats. Open: share of steps "
        "whose upper end is +∞ and whose lower end is not, as everything may be accepted there.",
        "Criterion",
        list(panels),
        ["Determined", "Empty", "Widest", "Open"],
        [Section("", body)],
        pd.DataFrame(rows),
        [f"{UNDEFINED}: there is no such interval."],
    )


def _determined(item: Certified) -> dict[str, float]:
    exact, bounded = item.lo == item.hi, np.isfinite(item.hi)
    return {
        "determined": float(np.mean(exact)),
        "empty": float(np.mean(np.isinf(item.lo))),
        "widest": float(np.max(item.hi[bounded] - item.lo[bounded], initial=0.0)),
        "unbounded": float(np.mean(~exact & ~bounded)),
        "steps": len(item.lo),
    }
