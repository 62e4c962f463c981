"""The tables on closed forms and on what is determined: known cases."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from analysis.certificates import bounds
from analysis.report.render import lines
from analysis.report.sections.bounds import RuleSteps, bounds_table, determined_table, median
from analysis.rules import Additive, Multiplicative, Rule, StrictGreedy, TopMAdditive, Tree, Typical
from tests.analysis.cases import kl, multiplicative_example, tree_example, two_point_example

NAMES = ["certificate", "active_size", "p0", "b", "theta"]


def one_step(rule: Rule, p: np.ndarray, q: np.ndarray, theta: float) -> RuleSteps:
    """Four steps, of which one is compared: its certificate is KL(p || q), every token active."""
    rows = [[kl(p, q), len(p), p[0], p[-1], theta], *[[math.nan] * 5] * 3]
    return rule, pd.DataFrame(rows, columns=NAMES)


def test_ratios_are_one_where_a_theorem_is_tight() -> None:
    two, half = two_point_example(0.3), multiplicative_example(0.5)
    tight = {
        "theorem 4.9": one_step(StrictGreedy(), *two, math.nan),
        "theorem 4.11": one_step(Additive(0.3), *two, two[0][1]),
        "theorem 4.13": one_step(Multiplicative(0.5), *half, half[0][1]),
        "corollary 4.14": one_step(TopMAdditive(2, 0.1), *two, two[0][1]),
        "corollary 4.15": one_step(Typical(0.1, 0.09), *half, half[0][1]),
        "theorem 5.2": one_step(Tree(4), *tree_example(0.4, 4), math.nan),
    }
    table = bounds_table({"target": list(tight.values())})
    assert table is not None
    data = table.data
    for name, (rule, _) in tight.items():
        rows = data[data["rule"] == rule.label].set_index("bound")
        assert rows.loc[name, "ratio"] == pytest.approx(1)
        assert (rows.loc[rows["kind"] != "asymptotic", "ratio"] > 1 - 1e-9).all()
        assert rows.loc[name, "compared"] == 0.25
    printed = {name: cells for _, rows in lines(table) for name, cells, _ in rows}
    assert [cells[4] for cells in printed.values()] == ["1.000"] * len(tight)
    assert printed["Tree (m = 4)"][1] == printed["Tree (m = 4)"][6] == "–"
    assert (data.loc[data["bound"] == "lemma 4.5", "ratio"].sub(1).abs() < 1e-9).all()
    # theta is b here, so that the threshold form is as tight; the upper half of Lemma A.1 is not
    forms = data.set_index("bound")["ratio"]
    assert forms["lemma 4.5 threshold form"] == pytest.approx(1)
    assert 1 < forms["lemma A.1"] < 1.1


@pytest.mark.parametrize(("b", "theta"), [(0.3, 0.1), (0.1, 0.3)])
def test_the_bound_of_top_m_takes_the_larger_of_threshold_and_gate(b: float, theta: float) -> None:
    p = np.array([0.6, b, 1 - 0.6 - b])
    steps = pd.DataFrame([[1.0, 2.0, 0.6, b, theta]], columns=NAMES)
    table = bounds_table({"target": [(TopMAdditive(2, 0.3), steps)]})
    assert table is not None
    found = table.data.set_index("bound")["median"]
    assert found["corollary 4.14"] == pytest.approx(float(bounds.two_token(p[0], 0.3)))
    assert found["corollary 4.14 polynomial"] < found["corollary 4.14"]


def test_a_rule_without_steps_and_a_study_without_bounds() -> None:
    steps = pd.DataFrame(np.full((5, 5), math.nan), columns=NAMES)
    table = bounds_table({"target": [(Additive(0.1), steps)]})
    assert table is not None
    assert {cell for _, cells, _ in lines(table)[0][1] for cell in cells} == {"–"}
    assert (table.data["compared"] == 0).all()
    assert bounds_table({"target": []}) is None
    assert median(np.array([4.0, 1.0, 2.0, 3.0])) == 2.0


def test_what_is_determined() -> None:
    lower = np.array([0.1, 0.2, 0.3, 0.4, math.inf])
    upper = np.array([0.1, 0.25, math.inf, 0.4, math.inf])
    table = determined_table({"target": {Additive(0.1): (lower, upper)}})
    ((_, cells, _),) = lines(table)[0][1]
    assert cells == ["60 %", "20 %", "0.05", "20 %"]
