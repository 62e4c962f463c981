"""The paper's Tables 1 to 6 for any targets and rules, and a table of the rules beyond them.

A user's own rule stands beside the paper's in Tables 2 to 6: in Table 3 below the parameters, in
Table 4 where it has a limit m on ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from ..rules import Additive, Multiplicative, Rule, TopMAdditive
from ..statistics.bootstrap import FEW_PROMPTS
from ..statistics.run_lengths import RANDOM, RANDOM_CAP, with_censored
from .published import TABLE2, printed
from .results import Results
from .table import Table, cells_to_grid
from .text import number_text, percent_text, run_text, small_text, symbol

HEADS = {"mean": "Mean", "median": "Med", "p5": "p5", "p25": "p25"}  # of the statistics
DIGITS = {"mean": 3, "median": 3, "p5": 4, "p25": 4}  # of certificates, in every study
FAMILIES = {  # of Table 3: heading and parameter
    Additive: ("Additive certificate", "t"),
    Multiplicative: ("Multiplicative certificate", "alpha"),
}
OWN = "Own rule"
# estimators of Tables 5 and 6: the one that the paper's cells follow, that of its text, and that of
# its captions
WORDINGS = {
    "per_call": "Tokens per call",
    "mean_run": "Mean certified run",
    RANDOM: f"From a random position, at most {RANDOM_CAP}",
}
SHARES = {  # heads of Tables 2 and 7 that LaTeX leaves out: what they are
    "exact": "Exact: the share of certificates that are known exactly. ",
    "empty": "Empty: the share of steps at which nothing can be rejected; the ceiling counts. ",
}
TOP_M = (
    "Top-m keeps the ranks up to m; read literally, the paper's gate keeps m − 1, and m = 2 would "
    "be strict greedy. "
)


def table1(results: Results) -> Table:
    """Table 1: cumulative probability of the k most probable tokens."""
    data = results["top"]
    rows = zip(data["target"], data["k"], data["statistic"], strict=True)
    cells = [number_text(value, 3) for value in data["value"]]
    grid = cells_to_grid(data, "k", ["target", "statistic"], cells)
    return Table(
        "table1",
        "Table 1: probability of the k most probable tokens",
        "Distribution of the cumulative probability of the target's k most probable tokens, from "
        f"p₀ on, over decoding steps. {_few_note(data)}".strip(),
        data.assign(published=[printed(*row) for row in rows]),
        grid.rename(columns=HEADS, level="statistic"),
    )


def table2(results: Results, intervals: bool = False) -> Table:
    """Table 2: certificates under the paper's criteria, and the user's own.

    `intervals`: in LaTeX each row has its intervals below it.
    """
    return _statistics_table(
        results,
        "table2",
        "Table 2: certificates, rule by rule",
        "Empirical distribution of exact KL certificates over decoding steps, in nats. Higher "
        "certificates tolerate more drafter error; those of single tokens stay below log 2 "
        "(Theorem 4.6), those of trees below log(m+1) (Theorem 5.3). ",
        _table2_rules(results),
        intervals,
    )


def table3(results: Results) -> Table | None:
    """Table 3: p5 of the additive and multiplicative certificates over t and alpha."""
    rules = _table3_rules(results)
    if all(rule.is_custom for rule in rules):
        return None
    data = _certificates(results, rules, ["p5"])
    families: dict[str, str] = {}
    settings: dict[str, str] = {}
    for rule in rules:
        family, parameter = FAMILIES.get(type(rule), (OWN, ""))
        families[rule.label] = family
        settings[rule.label] = rule.title
        if parameter:
            settings[rule.label] = f"{symbol(parameter)} = {rule.parameters[parameter]:g}"
    keyed = data.assign(family=data["rule"].map(families))
    grid = cells_to_grid(keyed, ["family", "rule"], "target", _cell_texts(results, data))
    return Table(
        "table3",
        "Table 3: sensitivity to t and α, 5th percentile",
        "Sensitivity of additive and multiplicative certificates to the threshold parameters: 5th "
        f"percentile over decoding steps, in nats. {_notes(results, data)}".strip(),
        data,
        grid.rename(index=settings, level="rule").rename_axis(index=["", "Parameter"]),
    )


def table4(results: Results) -> Table | None:
    """Table 4: p5 of the top-m + additive certificate over t and m."""
    rules = _table4_rules(results)
    if all(rule.is_custom for rule in rules):
        return None
    data = _certificates(results, rules, ["p5"])
    m = [results.rules[label].parameters["m"] for label in data["rule"]]
    t = [_without_m(results.rules[label]) for label in data["rule"]]
    keyed = data.assign(t=t, m=m, cell=_cell_texts(results, data)).sort_values("m", kind="stable")
    keyed = pd.concat([keyed[keyed["target"] == target] for target in results.targets])
    keyed["m"] = [f"m = {m}" for m in keyed["m"]]
    return Table(
        "table4",
        "Table 4: Top-m additive, 5th percentile",
        "Top-m additive relaxed acceptance: 5th percentile of the certificate over decoding "
        f"steps, in nats. {TOP_M}{_notes(results, data)}".strip(),
        data,
        cells_to_grid(keyed, "t", ["target", "m"], keyed["cell"]),
    )


def run_length_table(results: Results, index: int) -> Table:
    """Tables 5 and 6, then 8 and up: certifiable run lengths of target number `index`, from 0."""
    target = results.targets[index]
    number = index + (5 if index < 2 else 6)
    means = results.select("certificates", target=target, statistic="mean").set_index("rule")
    data = with_censored(results.select("run_lengths", target=target))
    data = data.join(means[["empty", "inexact"]], on="rule")
    published = []
    for label, eps, estimator in zip(data["rule"], data["eps"], data["estimator"], strict=True):
        value = printed(target, results.rules[label], eps)
        is_printed = estimator == "per_call" and not math.isnan(value)
        published.append(run_text(value) if is_printed else "")
    printed_rows = data[data["rule"].isin([rule.label for rule in _table2_rules(results)])]
    printed_rows = pd.concat(
        [printed_rows[printed_rows["estimator"] == estimator] for estimator in WORDINGS]
    )
    keyed = printed_rows.assign(
        wording=printed_rows["estimator"].map(WORDINGS),
        above="ε",
        at=[f"{eps:g}" for eps in printed_rows["eps"]],
    )
    cells = map(run_text, printed_rows["value"], printed_rows["censored"])
    grid = cells_to_grid(keyed, ["wording", "rule"], ["above", "at"], cells)
    return Table(
        f"table{number}",
        f"Table {number}: certifiable acceptance length, {target}",
        f"Mean certifiable acceptance length for {target}, as a function of the bound ε on the KL "
        "in nats. The paper defines this length in three ways, all shown; its printed values "
        "match the first, in which each answer's first token counts. ≥: a lower bound, as answers "
        "end (from a random position at most (n + 1)/2 of n ≤ 100 tokens); >100: above the paper's "
        "cap.",
        data.assign(published=published),
        grid.rename(index=results.titles, level="rule").rename_axis(index=["", "Criterion"]),
    )


def table7(results: Results, intervals: bool = False) -> Table | None:
    """Table 7: certificates of the rules that are in no table of the paper; None without one.

    `intervals` are as in Table 2.
    """
    above = {*_table2_rules(results), *_table3_rules(results), *_table4_rules(results)}
    rules = [rule for rule in results.certified_rules if rule not in above]
    if not rules:
        return None
    return _statistics_table(
        results,
        "table7",
        "Table 7: certificates of rules beyond the paper's tables",
        f"KL certificates of further criteria over decoding steps, in nats. {TOP_M}",
        rules,
        intervals,
    )


def _table2_rules(results: Results) -> list[Rule]:
    """Return the rules of Tables 2, 5 and 6: the paper's, and the user's own.

    If the study has none of the paper's settings of a family, its own settings are shown.
    """
    rules = results.certified_rules
    in_paper = {type(rule) for rule in rules if rule in TABLE2}
    families = {type(rule) for rule in (TABLE2 if in_paper else rules)}
    missing = families - in_paper
    return [rule for rule in rules if rule in TABLE2 or rule.is_custom or type(rule) in missing]


def _table3_rules(results: Results) -> list[Rule]:
    by_family = [
        rule for family in FAMILIES for rule in results.certified_rules if type(rule) is family
    ]
    return by_family + [rule for rule in results.certified_rules if rule.is_custom]


def _table4_rules(results: Results) -> list[Rule]:
    return [
        rule
        for rule in results.certified_rules
        if type(rule) is TopMAdditive
        or (rule.is_custom and isinstance(rule.parameters.get("m"), int))
    ]


def _without_m(rule: Rule) -> str:
    """Return the name of a rule's row in Table 4, in which each m has a column."""
    if type(rule) is TopMAdditive:
        return f"{rule.t:g}"
    return " ".join(word for word in rule.label.split() if not word.startswith("m="))


def _certificates(
    results: Results, rules: Sequence[Rule], statistics: Iterable[str]
) -> pd.DataFrame:
    """Return the certificate statistics of the rules, with the paper's numbers beside them."""
    keys = [(t, rule.label, x) for t in results.targets for rule in rules for x in statistics]
    frame = results["certificates"].set_index(["target", "rule", "statistic"])
    data = frame.loc[keys].reset_index()
    if not any(rule.undefined_means for rule in rules):
        data = data.drop(columns="undefined")
    return data.assign(published=[printed(t, results.rules[label], x) for t, label, x in keys])


def _cell_texts(results: Results, data: pd.DataFrame) -> list[str]:
    """Return the certificates as text; an infinite one is the ceiling with a "*"."""
    cells = []
    for label, statistic, value in zip(data["rule"], data["statistic"], data["value"], strict=True):
        finite = min(value, results.rules[label].ceiling)
        mark = "*" if value == math.inf else ""
        cells.append(small_text(finite, DIGITS[statistic]) + mark)
    return cells


def _interval_texts(results: Results, data: pd.DataFrame) -> list[str]:
    """Return the intervals of certificates as text."""
    ends = zip(data["ci_low"], data["ci_high"], strict=True)
    rows = zip(data["rule"], data["statistic"], ends, strict=True)
    cells = []
    for label, statistic, pair in rows:
        ceiling = results.rules[label].ceiling
        low, high = (small_text(min(end, ceiling), DIGITS[statistic]) for end in pair)
        cells.append(f"[{low}, {high}]")
    return cells


def _notes(results: Results, data: pd.DataFrame) -> str:
    """Return the sentences that a caption needs for the certificates shown."""
    notes = []
    if data["value"].eq(math.inf).any():
        notes.append("*: the ceiling, as nothing can be rejected there. ")
    if data["inexact"].any():
        notes.append("Of a certificate known as an interval the lower end counts. ")
    rules = [results.rules[label] for label in data["rule"].unique()]
    meanings = dict.fromkeys(rule.undefined_means for rule in rules if rule.undefined_means)
    for means in meanings:
        titles = ", ".join(rule.title for rule in rules if rule.undefined_means == means)
        notes.append(
            f"The CSV file's column undefined counts steps for {titles}: {means.rstrip('.')}. "
        )
    return "".join([*notes, _few_note(data)])


def _few_note(data: pd.DataFrame) -> str:
    """Return a warning about the intervals of quantiles if there are few prompts."""
    if data["prompts"].min() >= FEW_PROMPTS:
        return ""
    return (
        f"Fewer than {FEW_PROMPTS} prompts: the CSV file's intervals of quantiles are too narrow. "
    )


def _statistics_table(
    results: Results, name: str, title: str, caption: str, rules: Sequence[Rule], intervals: bool
) -> Table:
    """Return a table of the certificates' statistics.

    Columns with the shares of exact and of empty certificates are added unless all certificates are
    exact, or none is empty. LaTeX has the statistics alone, with their `intervals` on request.
    """
    data = _certificates(results, rules, HEADS)

    def grid_of(cells: Iterable[str]) -> pd.DataFrame:
        return cells_to_grid(data, "rule", ["target", "statistic"], cells)

    def headed(grid: pd.DataFrame) -> pd.DataFrame:
        named = grid.rename(index=results.titles).rename(columns=HEADS, level="statistic")
        return named.rename_axis(index="Criterion")

    numbers = grid_of(_cell_texts(results, data))
    printed_rows = headed(numbers)
    if intervals:
        ends = grid_of(_interval_texts(results, data)).rename(index=lambda _: "")
        printed_rows = _alternating(printed_rows, headed(ends))
    means = data[data["statistic"] == "mean"]
    statistics = list(HEADS)
    grid = numbers
    meanings = ""
    for head, shares, usual in (("exact", 1 - means["inexact"], 1), ("empty", means["empty"], 0)):
        if (shares != usual).any():
            meanings += SHARES[head]
            of_head = means.assign(statistic=head)
            cells = map(percent_text, shares)
            grid = grid.join(cells_to_grid(of_head, "rule", ["target", "statistic"], cells))
            statistics.append(head)
    order = pd.MultiIndex.from_product([results.targets, statistics], names=grid.columns.names)
    text = f"{caption}{_notes(results, data)}{meanings}".strip()
    return Table(name, title, text, data, headed(grid[order]), printed_rows)


def _alternating(rows: pd.DataFrame, below: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of two tables in turn."""
    order = np.arange(2 * len(rows)).reshape(2, -1).T.ravel()
    return pd.concat([rows, below]).iloc[order]
