"""The paper's Tables 1 to 6 for any targets and rules, and a table of the rules beyond them.

Every function takes what was measured and returns a `Table`, or None where the study has none
of its rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import pandas as pd

from ...rules import Additive, Multiplicative, Rule, TopMAdditive
from ...statistics.run_lengths import censored_ends, with_censored
from .. import published
from ..notes import AT_LEAST, coverage_notes, few_notes, undefined_notes
from ..records import Column, Results, Row, Table, across, records_of
from ..text import MARK, certificate_text, interval_text, run_text, symbol

STATISTICS = {"mean": "Mean", "median": "Med", "p5": "p5", "p25": "p25"}
FAMILIES: Mapping[type[Rule], tuple[str, str]] = {  # of Table 3: title and parameter
    Additive: ("Additive certificate", "t"),
    Multiplicative: ("Multiplicative certificate", "alpha"),
}
FIRST_EXTRA = 8  # the table of a third target, after those of the paper and Table 7
COMPARED_AT = 0.1  # nats: the estimators are compared at the level nearest to it
CEILINGS = (
    "Where something can be rejected, a single-token certificate stays below log 2 = 0.693 "
    "(Theorem 4.6), a tree's below log(m+1) (Theorem 5.3); both are reached only in the limit."
)
TOP_M = (
    "Top-m keeps the tokens of rank at most m; read literally, the paper's gate keeps m-1, "
    "and m = 2 would be strict greedy."
)
EMPTY = (
    f"Means take the ceiling for it, quantiles rank it at the top; {MARK} marks a ceiling "
    "printed for it."
)
EVERY_EPS = "Such a step is certified at every ε."
PER_CALL = (
    "Tokens per verification call (accepted ones and the corrected or bonus token) for "
    "drafts of unlimited length, a position being accepted if its certificate exceeds ε: "
    "all steps over uncertified steps plus trajectories that end certified. The paper "
    "does not state this estimator; its printed cells decode consistently as it. "
    f"{AT_LEAST}"
)
ESTIMATORS = (
    "per_call: all steps over uncertified steps plus trajectories that end certified. "
    "mean_run: certified steps over maximal certified runs; its range is the least and the most "
    "that certificates known as intervals allow. long_run: all steps over uncertified steps, "
    "which no end cuts; without one, a one-sided bound. residual: mean certified run from a "
    f"start, capped at the window, over the starts with a whole window left. {AT_LEAST}"
)


def table1(results: Results) -> Table:
    """Cumulative probability of the k most probable tokens."""
    printed = [
        published.printed_top_probability(row["target"], row["k"], row["statistic"])
        for row in records_of(results["top"])
    ]
    data = results["top"].assign(published=printed)
    columns = [
        Column(heading, "{:.3f}".format, where={"statistic": name}, published=_printed)
        for name, heading in STATISTICS.items()
    ]
    return Table(
        "table1",
        "Table 1: probability of the k most probable tokens",
        "How sure is the target of its next token?",
        "Probability of the k most probable target tokens over decoding steps.",
        data,
        "k",
        across(results.targets, columns),
        "k",
        notes=few_notes(data["prompts"]),
    )


def table2(results: Results) -> Table | None:
    """Certificates under the criteria of the paper's Table 2."""
    return _certificate_table(
        results,
        [rule for rule in results.certified if rule in published.TABLE2],
        "table2",
        "Table 2: certificates, rule by rule",
        "How much drafter error does each criterion tolerate?",
        "Exact KL certificates over decoding steps in nats: the least KL(p‖q) at which "
        f"the criterion can reject. Higher tolerates more drafter error. {CEILINGS}",
    )


def table7(results: Results) -> Table | None:
    """Certificates under the rules that no table of the paper shows."""
    rules = [
        rule
        for rule in results.certified
        if rule not in published.TABLE2 and type(rule) not in FAMILIES and not _in_table4(rule)
    ]
    return _certificate_table(
        results,
        rules,
        "table7",
        "Table 7: certificates of rules beyond the paper's tables",
        "How much drafter error do the other criteria tolerate?",
        "KL certificates in nats under criteria beyond the paper's tables. "
        f"{CEILINGS} {TOP_M} MARS tests the ratio of the two largest raw logits; where the "
        "largest is not positive only the argmax is accepted.",
        undefined_notes(results, rules),
    )


def _certificate_table(
    results: Results,
    rules: Sequence[Rule],
    name: str,
    title: str,
    question: str,
    caption: str,
    notes: Sequence[str] = (),
) -> Table | None:
    """Lay out every statistic of the certificates, a row for each rule."""
    if not rules:
        return None
    return Table(
        name,
        title,
        question,
        caption,
        _data(results, rules, list(STATISTICS)),
        "rule",
        across(results.targets, [_column(results, name) for name in STATISTICS]),
        "Criterion",
        names=results.names,
        notes=[*_notes(results, rules), *notes],
    )


def table3(results: Results) -> Table | None:
    """The p5 of the additive and multiplicative certificates over t and alpha."""
    shown = {
        title: {
            rule.label: f"{symbol(parameter)} = {rule.parameters[parameter]:g}"
            for rule in results.certified
            if type(rule) is family
        }
        for family, (title, parameter) in FAMILIES.items()
    }
    rules = [rule for family in FAMILIES for rule in results.certified if type(rule) is family]
    if not rules:
        return None
    return Table(
        "table3",
        "Table 3: small certificates over t and α",
        "How do the smallest certificates grow with the relaxation?",
        "Sensitivity of the additive and multiplicative certificates to their "
        "parameters: 5th percentile over decoding steps, in nats.",
        _data(results, rules, ["p5"]),
        "rule",
        across(results.targets, [_column(results, "p5")]),
        "Parameter",
        order=shown,
        notes=_notes(results, rules),
    )


def table4(results: Results) -> Table | None:
    """The p5 of the top-m + additive certificate over t and m."""
    rules = [rule for rule in results.certified if _in_table4(rule)]
    if not rules:
        return None
    data = _data(results, rules, ["p5"])
    ms = sorted({rule.parameters["m"] for rule in rules})
    text = partial(_certificate, results.rules)
    of = ("rule", "value", "optimistic")
    columns = [Column(f"m = {m}", text, of, {"m": m}, published=_printed) for m in ms]
    return Table(
        "table4",
        "Table 4: small certificates of Top-m rules",
        "Does a limit on ranks change the smallest certificates?",
        "Top-m additive relaxed acceptance: 5th percentile of the certificate over "
        f"decoding steps, in nats. {TOP_M}",
        data,
        "t",
        across(results.targets, columns),
        "t",
        order=sorted({rule.parameters["t"] for rule in rules}),
        notes=_notes(results, rules),
        shown=data.assign(
            **{
                key: [results.rules[rule].parameters[key] for rule in data["rule"]]
                for key in ("m", "t")
            }
        ),
    )


def run_length_table(results: Results, at: int) -> Table:
    """Certifiable run lengths of the target number `at`: Tables 5, 6, then 8 and on."""
    target = results.targets[at]
    rules = _shown(results)
    data = results["runs"][results["runs"]["target"] == target]
    data = _with_shares(results, data).assign(
        published=[_published_run(row, results.rules[row["rule"]]) for row in records_of(data)]
    )
    number = at + 5 if at < 2 else at - 2 + FIRST_EXTRA
    columns = [
        Column(f"{eps:.2f}", _run, (), {"estimator": "per_call", "eps": eps}, "ε", str)
        for eps in dict.fromkeys(data["eps"])
    ]
    return Table(
        f"table{number}",
        f"Table {number}: certified tokens a call, {target}",
        "How many tokens a call are certified if the drafter's KL stays below ε?",
        f"Mean certifiable acceptance length of {target}, by the bound ε on the KL in nats. "
        f"{PER_CALL}",
        data,
        "rule",
        columns,
        "Criterion",
        order=[rule.label for rule in rules],
        names=results.names,
        notes=[*coverage_notes(results, rules, [target], EVERY_EPS), *few_notes(data["prompts"])],
    )


def estimator_table(results: Results) -> Table:
    """Compare the estimators of the run length at one level, with their intervals."""
    rules = _shown(results)
    labels = [rule.label for rule in rules]
    levels = sorted(results["runs"]["eps"].unique())
    eps = min(levels, key=lambda level: abs(level - COMPARED_AT))
    data = results["runs"][(results["runs"]["eps"] == eps) & results["runs"]["rule"].isin(labels)]
    names = list(dict.fromkeys(data["estimator"]))
    columns = [Column(name, _run_interval, (), {"estimator": name}) for name in names]
    of = ("failing_prompts", "prompts")
    columns.append(Column("failing", "{}/{}".format, of, {"estimator": names[0]}))
    notes = coverage_notes(results, rules, results.targets, EVERY_EPS)
    return Table(
        "estimators",
        "Four estimators of the certified length",
        "Does the certified length depend on how it is estimated?",
        f"Four estimators of the certifiable run length at ε = {eps:g}, in tokens, "
        "with bootstrap intervals over prompts, and the prompts with at least one uncertified "
        f"step. {ESTIMATORS}",
        _with_shares(results, data),
        "rule",
        across(results.targets, columns),
        "Criterion",
        order=labels,
        names=results.names,
        notes=[*notes, *few_notes(data["prompts"])],
    )


def _column(results: Results, statistic: str) -> Column:
    """Return the column of a statistic of certificates, in nats."""
    text = partial(_certificate, results.rules)
    of = ("rule", "value", "optimistic")
    return Column(STATISTICS[statistic], text, of, {"statistic": statistic}, published=_printed)


def _certificate(rules: Mapping[str, Rule], rule: str, value: float, optimistic: float) -> str:
    return certificate_text(value, optimistic, rules[rule].ceiling)


def _run(row: Row) -> str:
    return run_text(row["value"], row["optimistic"], censored_ends(row))


def _run_interval(row: Row) -> str:
    low, high = row["ci_low"], row["ci_high"]
    return interval_text(row["value"], row["optimistic"], low, high, censored_ends(row))


def _in_table4(rule: Rule) -> bool:
    return type(rule) is TopMAdditive and rule.convention == "rank"


def _data(results: Results, rules: Sequence[Rule], statistics: Sequence[str]) -> pd.DataFrame:
    """Return the tidy certificates of some rules beside the published ones."""
    rows = [
        results.row(target, rule.label, statistic)
        | {"published": published.printed_certificate(target, rule, statistic)}
        for target in results.targets
        for rule in rules
        for statistic in statistics
    ]
    data = pd.DataFrame(rows)
    counted = any(rule.undefined_means for rule in rules)
    return data if counted else data.drop(columns="undefined")


def _notes(results: Results, rules: Sequence[Rule]) -> list[str]:
    prompts = results["certificates"]["prompts"]
    return [*coverage_notes(results, rules, results.targets, EMPTY), *few_notes(prompts)]


def _printed(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _shown(results: Results) -> list[Rule]:
    """Return the rules of the paper's tables and a user's own; all where the paper has none."""
    paper = {rule for rule in results.certified if rule in published.TABLE2}
    return [rule for rule in results.certified if not paper or rule in paper or rule.own]


def _published_run(row: Row, rule: Rule) -> str:
    """Return what the paper prints for a row of frame `runs`; it has one estimator only."""
    value = published.printed_run_length(row["target"], rule, row["eps"])
    return "" if row["estimator"] != "per_call" or math.isnan(value) else run_text(value, value)


def _with_shares(results: Results, runs: pd.DataFrame) -> pd.DataFrame:
    """Add the share of steps with an empty region and with an interval to rows of `runs`."""
    found = [results.row(row["target"], row["rule"], "mean") for row in records_of(runs)]
    shares = {name: [row[name] for row in found] for name in ("empty", "inexact")}
    return with_censored(runs).assign(**shares)
