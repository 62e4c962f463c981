"""Statistics of a target's steps: certificates by rule, top probabilities, parts of the answers.

All are tidy frames: target, rule (its label) or k, statistic, value, and its interval over prompts,
ci_low and ci_high. Where a certificate is an interval, its lower end counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from ..rules import Additive, Mars, Multiplicative, Rule, StrictGreedy, TopMAdditive, Tree, Typical
from ..statistics.bootstrap import Flags, summarise
from ..statistics.estimate import Estimate
from ..topk import Floats
from .target import Target

GAP_EDGES = (0.5, 1.0, 2.0, 4.0)  # nats, of log p0 - log p1
REPRESENTATIVE: tuple[Rule, ...] = (  # for tables with several rows for each rule
    StrictGreedy(),
    Additive(0.1),
    Multiplicative(0.5),
    TopMAdditive(4, 0.1),
    Typical(0.1, 0.09),
    Mars(0.9),
    Tree(4),
)
Row = dict[str, Any]


def certificate_statistics(target: Target) -> pd.DataFrame:
    """Return mean, median, p5 and p25 of the certificates of every rule, in nats.

    Columns: target, rule, statistic, value, ci_low, ci_high, prompts; `empty` and `inexact`, the
    shares of steps whose certificate is infinite (nothing can be rejected) and an interval;
    `undefined`, the number of steps at which the rule's test is undefined (MARS: z1 <= 0), NaN for
    rules whose test is always defined; steps.
    """
    rows: list[Row] = []
    for rule, (lower, upper) in target.certificates.items():
        shares = {
            "empty": float(np.mean(np.isinf(lower))),
            "inexact": float(np.mean(lower < upper)),
            "undefined": target.undefined.get(rule.label, math.nan),
            "steps": len(lower),
        }
        summary = _summary_rows(target, {"rule": rule.label}, lower, rule.ceiling)
        rows += [row | shares for row in summary]
    return pd.DataFrame(rows)


def top_statistics(target: Target) -> pd.DataFrame:
    """Return mean, median, p5 and p25 of the probability of the k most probable tokens.

    Columns: target, k, statistic, value, ci_low, ci_high, prompts.
    """
    rows: list[Row] = []
    for k, probability in target.top.items():
        rows += _summary_rows(target, {"k": k}, probability, math.inf)
    return pd.DataFrame(rows)


def _summary_rows(target: Target, key: Row, values: Floats, ceiling: float) -> Iterator[Row]:
    for statistic, estimate in summarise(values, ceiling, target.bootstrap).items():
        yield {
            "target": target.label,
            **key,
            "statistic": statistic,
            **estimate.columns(),
            "prompts": target.bootstrap.count,
        }


def part_statistics(target: Target) -> pd.DataFrame:
    """Return statistics of each part of a target's steps, for the `representative_rules`.

    Returns:
        One row for each part, rule and statistic: target, by, part, rule, statistic, value, ci_low,
        ci_high, steps, prompts. Without a rule: `share`, of all steps that lie in the part. With a
        drafter, of each rule: `acceptance` and `certified`, shares of the part's steps. Without
        one: `median`, the rule's median certificate, in nats and without an interval.
    """
    rows: list[Row] = []
    rules = representative_rules(list(target.certificates))
    for by, part, steps in parts(target):
        estimates = {("", "share"): target.bootstrap.ratio_interval(steps)}
        if steps.any():
            for rule in rules:
                estimates |= _part_estimates(target, rule, steps)
        for (label, statistic), estimate in estimates.items():
            rows.append(
                {
                    "target": target.label,
                    "by": by,
                    "part": part,
                    "rule": label,
                    "statistic": statistic,
                    **Estimate(*map(float, estimate)).columns(),
                    "steps": steps.sum(),
                }
            )
    return pd.DataFrame(rows).assign(prompts=target.bootstrap.count)


def _part_estimates(target: Target, rule: Rule, steps: Flags) -> dict[tuple[str, str], Estimate]:
    if not target.judged:
        values = np.minimum(target.certificates[rule][0][steps], rule.ceiling)
        median = np.quantile(values, 0.5, method="inverted_cdf")
        return {(rule.label, "median"): Estimate(median)}
    judged = target.judged[rule.label]
    share = target.bootstrap.ratio_interval
    return {
        (rule.label, "acceptance"): share(judged.accepted & steps, steps),
        (rule.label, "certified"): share(judged.certified & steps, steps),
    }


def parts(target: Target) -> Iterator[tuple[str, str, Flags]]:
    """Yield groups of a target's N steps: the grouping, the group, (N,) whether a step is in it.

    Steps are grouped by the gap log p0 - log p1, and by the half of the answer that they are in.
    """
    gap_bin = np.digitize(target.logit_gap, GAP_EDGES)
    edges = [f"{edge:g}" for edge in (0, *GAP_EDGES)]
    names = [f"{low} to {high}" for low, high in pairwise(edges)]
    for index, name in enumerate([*names, f"above {edges[-1]}"]):
        yield "margin", name, gap_bin == index  # the logit gap, by its name in 1.0's tables
    answers = target.trajectories
    position = np.arange(len(target.logit_gap)) - answers.starts[answers.answer_index]
    late = 2 * position >= target.bootstrap.answer_steps[answers.answer_index]
    yield "position", "first", ~late
    yield "position", "second", late


def representative_rules(rules: Sequence[Rule]) -> list[Rule]:
    """Return the user's own rules, and the `REPRESENTATIVE` ones among `rules`.

    If there are neither, return the first of `rules`; never more than `REPRESENTATIVE` has.
    """
    custom = [rule for rule in rules if rule.is_custom]
    known = [rule for rule in REPRESENTATIVE if rule in rules]
    return (custom + known or list(rules))[: len(REPRESENTATIVE)]
