"""The tables on certificates, and the figure of q*: known cases."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.certificates import bounds
from analysis.report.measured import Certified
from analysis.report.sections.certificates_bounds import Compared
from analysis.report.sections.certificates_extremal import EXAMPLE, EXAMPLE_RULES, extremal_figure
from analysis.report.sections.certificates_margin import margins_table
from analysis.report.sections.certificates_tables import bounds_table, determined_table, median
from analysis.rules import Additive, Multiplicative, Rule, StrictGreedy, TopMAdditive, Tree, Typical
from tests.analysis.cases import kl, multiplicative_example, tree_example, two_point_example


def one_step(rule: Rule, p: np.ndarray, q: np.ndarray, theta: float) -> Compared:
    """A step whose certificate is KL(p || q), with every token active."""
    columns = ([kl(p, q)], [float(len(p))], [p[0]], [p[-1]], [theta])
    return Compared(rule, 4, *map(np.array, columns))


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
    for name, step in tight.items():
        rows = data[data["rule"] == step.rule.label].set_index("bound")
        assert rows.loc[name, "ratio"] == pytest.approx(1)
        assert (rows.loc[rows["kind"] != "asymptotic", "ratio"] > 1 - 1e-9).all()
        assert rows.loc[name, "compared"] == 0.25
    assert [len(cells) for _, cells in table.sections[0].rows] == [len(table.columns)] * len(tight)
    assert (data.loc[data["bound"] == "lemma 4.5", "ratio"].sub(1).abs() < 1e-9).all()
    # theta is b here, so that the threshold form is as tight; the upper half of Lemma A.1 is not
    forms = data.set_index("bound")["ratio"]
    assert forms["lemma 4.5 threshold form"] == pytest.approx(1)
    assert 1 < forms["lemma A.1"] < 1.1


@pytest.mark.parametrize(("b", "theta"), [(0.3, 0.1), (0.1, 0.3)])
def test_the_bound_of_top_m_takes_the_larger_of_threshold_and_gate(b: float, theta: float) -> None:
    p = np.array([0.6, b, 1 - 0.6 - b])
    step = Compared(TopMAdditive(2, 0.3), 1, *(np.array([x]) for x in (1.0, 2.0, 0.6, b, theta)))
    table = bounds_table({"target": [step]})
    assert table is not None
    found = table.data.set_index("bound")["median"]
    assert found["corollary 4.14"] == pytest.approx(float(bounds.two_token(p[0], 0.3)))
    assert found["corollary 4.14 polynomial"] < found["corollary 4.14"]


def test_margins_of_targets_with_two_tokens() -> None:
    """There Theorem 4.9 (i) is tight: the margin says all, and Pinsker's says less."""
    levels = [0.05, 0.1, 0.69, 0.7]
    p = np.linspace(0.5, 1, 101)
    sizes = np.full(len(p), 2.0)
    certificates = bounds.g(2 * p - 1)
    greedy = Compared(
        StrictGreedy(), len(p), certificates, sizes, p, 1 - p, np.full(len(p), math.nan)
    )
    table = margins_table({"target": [one_step(Tree(2), *tree_example(0.4, 2), 0), greedy]}, levels)
    assert table is not None
    found = table.data.set_index(["eps", "by"])
    assert {eps for eps, _ in found.index} == {0.05, 0.1, 0.69}  # up to log 2
    for eps in (0.05, 0.1, 0.69):
        assert found.loc[(eps, "theorem 4.9 (i)"), "share"] == np.mean(certificates > eps)
        assert (found.loc[eps, "certified"] == np.mean(certificates > eps)).all()
        order = ["theorem 4.9 (ii)", "theorem 4.9 (i)", "proposition 4.8"]
        assert found.loc[eps].loc[order, "margin"].is_monotonic_increasing
    assert found.loc[(0.69, "proposition 4.8"), "share"] == 0
    texts = [[cell.text for cell in cells] for _, cells in table.sections[0].rows]
    # sqrt(0.1) = 0.31623 and g^-1(0.05) = 0.31358 are rounded up, sqrt(0.1 / 1.1) = 0.30151 down
    assert texts[0][:4] == ["0.317", "0.314", "0.314", "0.301"]
    assert margins_table({"target": [one_step(Tree(2), *tree_example(0.4, 2), 0)]}, [0.1]) is None


def test_a_rule_without_steps_and_a_study_without_bounds() -> None:
    table = bounds_table({"target": [Compared(Additive(0.1), 5, *(np.empty(0) for _ in range(5)))]})
    assert table is not None
    assert {cell.text for _, cells in table.sections[0].rows for cell in cells} == {"–"}
    assert (table.data["compared"] == 0).all()
    assert bounds_table({"target": []}) is None
    assert median(np.array([4.0, 1.0, 2.0, 3.0])) == 2.0


def test_what_is_determined() -> None:
    lower = np.array([0.1, 0.2, 0.3, 0.4, math.inf])
    upper = np.array([0.1, 0.25, math.inf, 0.4, math.inf])
    table = determined_table({"target": [Certified(Additive(0.1), lower, upper)]})
    ((_, cells),) = table.sections[0].rows
    assert [cell.text for cell in cells] == ["60 %", "20 %", "0.05", "20 %"]


def test_the_example_shows_three_different_active_sets() -> None:
    assert sum(EXAMPLE) == pytest.approx(1)
    titles = [axis.get_title(loc="left") for axis in extremal_figure().drawing.axes]
    active, kls = [], []
    for rule, title in zip(EXAMPLE_RULES, titles, strict=True):
        axis = extremal_figure().drawing.axes[titles.index(title)]
        p, q = ([bar.get_height() for bar in bars] for bars in axis.containers)
        kls.append(kl(p, q))
        assert f"= {kls[-1]:.4f} nats" in title, rule
        active.append([at for at in range(len(p)) if abs(p[at] - q[at]) > 1e-9])
    assert active == [[0, 1], [0, 1, 2], [0, 2, 3]]
    assert kls == sorted(kls)
