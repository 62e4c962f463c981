"""The table of settings that certify a share of the steps, and of what strict greedy guarantees."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from ..acceptance.guarantees import (
    StrictestSetting,
    expected_per_call,
    greedy_guarantees,
    strictest_settings,
    usual_acceptance,
)
from ..acceptance.target import Target
from ..acceptance.usual_drafter import LAWS
from ..rules import StrictGreedy
from .results import Results
from .table import Table, cells_to_grid
from .text import UNDEFINED, estimate_text, number_text, percent_text, symbol

EPSILONS = (0.05, 0.1)  # nats: the KL of the drafters that settings certify
SHARE = 0.9  # of the steps, to be certified
USUAL = ("usual_drafter", "usual_laplace", "usual_uniform")  # columns, in the order of `LAWS`
PER_CALL = "Strict greedy guarantees, tokens per call"
FAMILY_TITLES = {
    "additive": "Additive",
    "multiplicative": "Multiplicative",
    "absolute": "Absolute threshold",
    "typical": "Typical (Medusa)",
    "mars": "MARS",
    "tree": "Tree",
}
Row = dict[str, Any]


def settings_table(results: Results, targets: Sequence[Target]) -> Table | None:
    """Return what strict greedy certifies, and the strictest settings that certify `SHARE`.

    None if the study has neither strict greedy nor a family whose setting can be searched.
    """
    rows = [row for target in targets for row in _target_rows(target, results)]
    if not rows:
        return None
    data = pd.DataFrame(rows)
    index = ["target", "quantity"]
    worst = cells_to_grid(data, index, "eps", data["text"])
    usual = cells_to_grid(data, index, "eps", data["usual_text"])
    columns = {}
    for eps in EPSILONS:
        columns[f"any drafter within {eps:g} nats"] = worst[eps]
        columns[f"usual drafter at {eps:g} nats"] = usual[eps]
    grid = pd.DataFrame(columns).rename_axis(index=["target", "Guarantee"])
    caption = (
        "What holds for every drafter whose KL stays within the bound above each column, and the "
        f"strictest settings that certify {100 * SHARE:g} % of the steps (–: none does). Tokens "
        "per call: drafts of any length, without each answer's first token, which Table 5 counts. "
        "Usual drafter: the first choices accepted, under strict greedy or at the setting, of one "
        "that is off in a random direction at this KL, and its expected tokens per call. That is "
        "a model and guarantees nothing; in parentheses, which are no interval: with heavier "
        "tails (Laplace) and with lighter ones (uniform)."
    )
    if results.drafter:
        drafter = f"{results.drafter}, which is not within that KL at every step"
        caption += f" The guarantee does not apply to {drafter}."
    return Table(
        "settings",
        f"Which setting certifies {100 * SHARE:g} % of the steps?",
        caption,
        data.drop(columns=["text", "usual_text", "rule"]),
        grid if len(targets) > 1 else grid.droplevel("target"),
    )


def _target_rows(target: Target, results: Results) -> list[Row]:
    rows = [
        {"target": target.label, "eps": eps} | row
        for eps in EPSILONS
        for row in (
            *_greedy_rows(target, eps, results),
            *map(_setting_row, strictest_settings(target, eps, SHARE)),
        )
    ]
    return _with_usual(rows, target)


def _with_usual(rows: Sequence[Row], target: Target) -> list[Row]:
    """Return the rows with the predicted acceptance of a usual drafter, if they have a rule."""
    asked = [(row["rule"], row["eps"]) for row in rows]
    columns = list(dict.fromkeys(column for column in asked if column[0] is not None))
    by_row: list[list[float]] = [[] for _ in rows]  # a value for each law
    for _, place, share in usual_acceptance(target, columns):
        for row, column, values in zip(rows, asked, by_row, strict=True):
            if column == columns[place]:
                is_per_call = row["quantity"] == PER_CALL
                values.append(
                    expected_per_call(share, target.trajectories)
                    if is_per_call
                    else float(share.mean())
                )
    return [
        row
        | dict(zip(USUAL, values or [math.nan] * len(LAWS), strict=True))
        | {"usual_text": _usual_text(row["quantity"], values)}
        for row, values in zip(rows, by_row, strict=True)
    ]


def _usual_text(quantity: str, values: Sequence[float]) -> str:
    """Return the cell of a usual drafter, as in "81.2% (79.0, 82.3)"."""
    if not values:
        return UNDEFINED
    if quantity == PER_CALL:
        usual, *tails = map(number_text, values)
    else:
        usual = percent_text(values[0])
        tails = [number_text(100 * value, 1) for value in values[1:]]
    return f"{usual} ({', '.join(tails)})"


def _greedy_rows(target: Target, eps: float, results: Results) -> Iterator[Row]:
    """Yield what strict greedy guarantees, and what was measured of the drafter."""
    guarantees = greedy_guarantees(target, eps)
    forms: dict[str, tuple[str, Callable[[float], str]]] = {  # statistic: printed name and format
        "certified": ("Strict greedy certifies, of the steps", percent_text),
        "per_call": (PER_CALL, number_text),
        "drafter_within": (f"{results.drafter} is within that KL, of the steps", percent_text),
        "drafter_per_call": (f"{results.drafter} reaches, tokens per call", number_text),
    }
    if "drafter_within" in guarantees:
        measured = results.acceptance[target.label, StrictGreedy().label, "measured_per_call"]
        guarantees["drafter_per_call"] = measured.value
    for statistic, value in guarantees.items():
        quantity, form = forms[statistic]
        rule = None if statistic.startswith("drafter") else StrictGreedy()
        yield {"quantity": quantity, "value": value, "text": form(value), "rule": rule}


def _setting_row(setting: StrictestSetting) -> Row:
    family, parameter, is_least, estimate, any_setting, rule = setting
    is_whole = isinstance(family.parameters[parameter], int)
    text = "any" if any_setting else estimate_text(estimate, digits=0 if is_whole else 4)
    fixed = [
        f", {symbol(name)} = {value:g}"
        for name, value in family.parameters.items()
        if name != parameter
    ]
    end = "least" if is_least else "most"
    title = f"{FAMILY_TITLES[family.name]}{''.join(fixed)}"
    return {
        "quantity": f"{title}: {symbol(parameter)} at {end}",
        "text": text,
        **estimate.columns(),
        "rule": rule,
    }
