"""The paper's bounds: against 50 digits and certificates, tight where said to be; tables."""

import math

import mpmath
import numpy as np
import pandas as pd
import pytest

from analysis.certificates import bounds
from analysis.certificates.certify import certify
from analysis.certificates.closed_forms import closed_forms, compared_steps, rejected_levels
from analysis.report.bounds_table import bounds_table
from analysis.rules import Additive, Mars, Multiplicative, StrictGreedy, TopMAdditive, Tree, Typical
from analysis.topk import TopK
from tests.analysis.cases import (
    THRESHOLD_RULES,
    certificate,
    confident_example,
    dirichlet,
    kl,
    multiplicative_example,
    tree_example,
    two_point_example,
)

M = (1, 2, 3, 5, 8, 20)


def exact_g(x):
    return ((1 + x) * mpmath.log(1 + x) + (1 - x) * mpmath.log(1 - x)) / 2


def exact_b(x, m):
    """B_m(x) of Theorem 5.2."""
    root = mpmath.sqrt(x**2 * (m - 1) ** 2 + 4 * (1 - x**2))
    tau = (x * (m - 1) + root) / (2 * (1 - x))
    return (1 + x) * mpmath.log(tau) - mpmath.log((tau**2 + (m - 1) * tau + 1) / (m + 1))


@pytest.mark.parametrize("d", [1e-9, 1e-4, 0.1, 0.5, 0.9, 1 - 1e-12])
def test_functions_at_50_digits(d):
    with mpmath.workdps(50):
        x = mpmath.mpf(d)
        assert float(abs(bounds.g(d) / exact_g(x) - 1)) < 2e-15
        inverse = mpmath.mpf(float(bounds.g_inverse(float(exact_g(x)))))
        assert abs(inverse - x) < 2e-15 * x + 1e-13
        phi = (1 + x) * mpmath.log(1 + x) - x
        assert float(abs(bounds.phi(d) - phi) / phi) < 4e-15
        for m in M:
            assert float(abs(bounds.tree_lower(d, m) / exact_b(x, m) - 1)) < 1e-13


@pytest.mark.parametrize("eps", [1e-12, 1e-6, 0.01, 0.05, 0.3, 0.69])
def test_inverses_at_50_digits(eps):
    """mpmath finds the roots of g(d) = eps and B_m(gamma) = eps, in their definitions."""
    with mpmath.workdps(50):

        def root(of, near):  # by the secant method
            return mpmath.findroot(lambda x: of(x) - eps, (near * 0.9, near), solver="secant")

        found = mpmath.mpf(float(bounds.g_inverse(eps)))
        assert abs(found / root(exact_g, found) - 1) < 1e-13
        for m in M:
            found = mpmath.mpf(float(bounds.tree_inverse(eps, m)))
            assert abs(found / root(lambda x, m=m: exact_b(x, m), found) - 1) < 1e-13
            if eps < 0.1 and m != 5:  # the first term is sufficient for m < 5 only
                assert (math.sqrt(4 * eps / (m + 1)) > found) == (m < 5)


def test_ends_and_outside():
    assert bounds.g([0, 1]).tolist() == [0, math.log(2)]
    assert bounds.g_inverse([0, math.log(2)]) == pytest.approx([0, 1])
    assert bounds.tree_lower([0.0, 1.0], 4) == pytest.approx([0, math.log(5)])
    assert bounds.tree_inverse([0, math.log(5)], 4) == pytest.approx([0, 1])
    outside = [bounds.g(1.1), bounds.g(-0.1), bounds.g_inverse(0.7), bounds.phi(-1.1)]
    outside += [bounds.multiplicative_lower(0.5, 1.1), bounds.ceiling(1), bounds.tree_lower(0.1, 0)]
    outside += [bounds.tree_inverse(math.log(5) + 1e-9, 4), bounds.tree_inverse(-1e-9, 4)]
    assert np.isnan(outside).all()


def test_values_by_hand():
    log2 = math.log(2)
    assert bounds.ceiling([2, 4]) == pytest.approx([log2, log2 / 2], rel=1e-15)
    assert bounds.pinsker(0.4) == pytest.approx(0.08, rel=1e-15)
    assert bounds.pinsker_margin(0.02) == pytest.approx(0.2, rel=1e-15)
    assert bounds.single_upper(0.5) == pytest.approx(math.log(1.5), rel=1e-15)
    assert bounds.single_upper(0.5, 0.25) == pytest.approx(math.log(1.25) - 0.25 * log2, rel=1e-14)
    assert bounds.single_upper(0.3, 0.3) == 0
    # p0 / b overflows
    tiny = bounds.single_upper(1.0, [5e-324, 1e-310, 1e-300])
    assert tiny == pytest.approx(np.full(3, log2), rel=1e-15)
    assert bounds.g_lower([0.6, 1.0]) == pytest.approx([0.18 + 0.0108, 7 / 12], rel=1e-14)
    assert bounds.g_upper(0.6) == pytest.approx(0.36 / 1.28, rel=1e-14)
    # margin 0.4, s = 0.8: 0.16 / 1.6 + 0.0256 / (12 * 0.512)
    assert bounds.two_token_polynomial(0.6, 0.2) == pytest.approx(0.1 + 1 / 240, rel=1e-14)


def test_lemma_a1_and_expansions():
    d = np.linspace(0, 0.999, 500)
    assert (bounds.g_lower(d) <= bounds.g(d) * (1 + 1e-14)).all()
    assert (bounds.g(d) <= bounds.g_upper(d) * (1 + 1e-14)).all()
    eps = np.array([1e-3, 1e-4])  # the remainder falls as eps^2, relative
    error = np.abs(bounds.g_inverse_series(eps) / bounds.g_inverse(eps) - 1)
    assert error[0] / error[1] == pytest.approx(100, rel=0.05)
    gap = np.array([1e-2, 1e-3])
    error = np.abs(
        bounds.multiplicative_lower_series(0.7, 1 - gap) - bounds.multiplicative_lower(0.7, 1 - gap)
    )
    assert error[0] / error[1] == pytest.approx(1e4, rel=0.1)
    for m in M:
        error = np.abs(bounds.tree_lower_series(gap * 10, m) - bounds.tree_lower(gap * 10, m))
        assert error[0] / error[1] == pytest.approx(1e6, rel=0.3)


def test_bounds_hold_on_random_targets():
    p = -np.sort(-dirichlet(0, 300, 30, 0.03, 0.2, 1.0))
    dist, p0 = TopK.from_probabilities(p), p[:, 0]
    slack = 1 + 1e-12
    greedy = certify(dist, [StrictGreedy()]).lower[:, 0]
    margin = p0 - p[:, 1]
    assert (greedy * slack >= bounds.g(margin)).all()
    assert (bounds.g(margin) * slack >= bounds.pinsker(margin)).all()
    s = p0 + p[:, 1]  # R is s g(margin / s) for strict greedy
    assert (greedy <= s * bounds.g_upper(margin / s) * slack).all()
    for rule in THRESHOLD_RULES:
        found = certify(dist, [rule])
        rows = np.isfinite(found.lower[:, 0])
        value, a = found.lower[rows, 0], p0[rows]
        theta = rule.cut(dist).theta(dist)[rows]
        b = p[rows, found.accepted_count[rows, 0]]
        assert (value * slack >= bounds.two_token(a, b)).all()
        limit = np.maximum(theta, b)  # a limit on ranks may reject more than the threshold does
        assert (bounds.two_token(a, b) * slack >= bounds.two_token(a, limit)).all()
        assert (bounds.two_token(a, limit) * slack >= bounds.two_token_polynomial(a, limit)).all()
        assert (value <= bounds.ceiling(found.active_size[rows, 0]) * slack).all()
        assert (value <= bounds.single_upper(a, b) * slack).all()
        assert (bounds.single_upper(a, b) <= bounds.single_upper(a) * slack).all()
        if rule.name == "additive":
            assert (value * slack >= bounds.g(rule.t)).all()
        if rule.name == "multiplicative":
            assert (value * slack >= bounds.multiplicative_lower(a, rule.alpha)).all()
    for m in M:
        value = certify(dist, [Tree(m)]).lower[:, 0]
        assert (value * slack >= bounds.tree_lower(p0 - p[:, m], m)).all()
        assert (value <= bounds.tree_upper(p0, m) * slack).all()
        assert (bounds.tree_upper(p0, m) <= bounds.tree_ceiling(m) * slack).all()


@pytest.mark.parametrize("d", [0.01, 0.3, 0.8])
def test_two_point_construction_is_tight(d):
    """Theorems 4.9 and 4.11, and 4.9 (ii): the necessary margin is rejected within eps."""
    p, q = two_point_example(d)
    assert kl(p, q) == pytest.approx(float(bounds.g(d)), rel=1e-12)
    assert certificate(p, StrictGreedy()) == pytest.approx(kl(p, q), rel=1e-12)
    assert certificate(p, Additive(d * (1 - 1e-12))) == pytest.approx(kl(p, q), rel=1e-9)
    p, q = multiplicative_example(d)
    bound = float(bounds.multiplicative_lower(p[0], d))
    assert kl(p, q) == pytest.approx(bound, rel=1e-12)
    assert certificate(p, Multiplicative(d * (1 + 1e-12))) == pytest.approx(bound)
    p, q = two_point_example(d)
    eps = float(bounds.g_upper(d))
    assert float(bounds.greedy_necessary_margin(eps)) == pytest.approx(d)
    assert kl(p, q) <= eps


@pytest.mark.parametrize("m", M)
def test_the_tree_constructions_are_tight(m):
    for gamma in (0.01, 0.4, 0.9):
        p, q = tree_example(gamma, m)
        assert p[0] - p[-1] == pytest.approx(gamma, rel=1e-9)
        assert kl(p, q) == pytest.approx(float(bounds.tree_lower(gamma, m)), rel=1e-9)
        assert certificate(p, Tree(m)) == pytest.approx(kl(p, q), rel=1e-9)
    p, q = confident_example(1e-9, m)
    assert certificate(p, Tree(m)) == pytest.approx(kl(p, q))
    assert kl(p, q) == pytest.approx(math.log(m + 1), rel=1e-6)


NAMES = ["certificate", "active_size", "p0", "b", "theta"]


def one_step(rule, p, q, theta):
    """Four steps, of which one is compared: its certificate is KL(p || q), every token active."""
    rows = [[kl(p, q), len(p), p[0], p[-1], theta], *[[math.nan] * 5] * 3]
    return rule, pd.DataFrame(rows, columns=NAMES)


def test_ratios_are_one_where_a_theorem_is_tight():
    two, half = two_point_example(0.3), multiplicative_example(0.5)
    tight = {
        "theorem 4.9": one_step(StrictGreedy(), *two, math.nan),
        "theorem 4.11": one_step(Additive(0.3), *two, two[0][1]),
        "theorem 4.13": one_step(Multiplicative(0.5), *half, half[0][1]),
        "corollary 4.14": one_step(TopMAdditive(2, 0.1), *two, two[0][1]),
        "corollary 4.15": one_step(Typical(0.1, 0.09), *half, half[0][1]),
        "theorem 5.2": one_step(Tree(4), *tree_example(0.4, 4), math.nan),
    }
    table = bounds_table({"target": list(tight.values())}, 0.04)
    data = table.data
    for name, (rule, _) in tight.items():
        rows = data[data["rule"] == rule.label].set_index("bound")
        rows = rows[rows["median"].notna()]
        assert rows.loc[name, "ratio"] == pytest.approx(1)
        assert (rows.loc[rows["kind"] != "asymptotic", "ratio"] > 1 - 1e-9).all()
        assert rows.loc[name, "compared"] == 0.25
    assert (data.loc[data["bound"] == "lemma 4.5", "ratio"].sub(1).abs() < 1e-9).all()
    # theta is b here, so that the threshold form is as tight; the upper half of Lemma A.1 is not
    threshold_form = data.loc[data["bound"] == "lemma 4.5 threshold form", "ratio"]
    assert threshold_form.to_numpy() == pytest.approx(1)
    assert 1 < data.loc[data["bound"] == "lemma A.1", "ratio"].iloc[0] < 1.1


@pytest.mark.parametrize(("p0", "b"), [(0.6, 0.3), (0.2, 0.15), (0.5, 0.5)])
def test_lemma_a1_bounds_strict_greedy_from_above_as_by_hand(p0, b):
    """R = s g((p0 - b) / s) with s = p0 + b, and g(d) <= d^2 / (2 (1 - d^2))."""
    steps = pd.DataFrame([[math.nan, 2, p0, b, math.nan]], columns=NAMES)
    forms = {name: values for name, _, values in closed_forms(StrictGreedy(), steps, 0.05)[0]}
    s, d = p0 + b, (p0 - b) / (p0 + b)
    assert forms["lemma A.1"][0] == pytest.approx(s * d**2 / (2 * (1 - d**2)))
    p = np.array([p0, b, *[(1 - s) / 10] * 10])
    assert certificate(p, StrictGreedy()) <= forms["lemma A.1"][0]


def test_each_closed_form_turned_round_certifies_the_steps_that_it_bounds_above_eps():
    """A condition holds exactly where the theorem's own value exceeds eps; and R does there."""
    p = -np.sort(-dirichlet(4, 400, 30, 0.03, 0.2, 1.0))
    rules = [StrictGreedy(), Additive(0.2), Multiplicative(0.3), TopMAdditive(2, 0.3)]
    rules += [Typical(0.3, 0.1), Mars(0.9), Tree(2), Tree(8)]
    dist = TopK.from_logits(np.log(np.maximum(p, 1e-30)) + 40)
    found = certify(dist, rules)
    for eps in (0.0, 0.01, 0.05, 0.3, 0.7):
        # Theorem 4.11: whatever the step; from log 2 on t = 1, where every p > 0 is accepted
        every = Additive(min(float(np.fmin(bounds.g_inverse(eps), 1)) + 1e-9, 1.0))
        assert (certify(dist, every).lower > eps).all()
        example = one_step(every, *two_point_example(0.3), 0.0)[1]
        asked = closed_forms(every, example, eps)[1][0]
        assert asked.met == 1
        assert (asked.asks == "t = 1") == (eps > np.log(2))
        for at, rule in enumerate(rules):
            lower, upper, active_size, accepted_count = (column[:, at] for column in found)
            levels = rejected_levels(dist, rule, accepted_count)
            steps = compared_steps((lower, upper), active_size, dist.top_probability, *levels)
            steps = steps.dropna(subset=["certificate", "b"])
            found_forms, conditions = closed_forms(rule, steps, eps)
            forms = {name: values for name, _, values in found_forms}
            for asked in conditions:
                met = np.broadcast_to(asked.quantity > asked.level, len(steps))
                if asked.kind == "sufficient":
                    assert (steps["certificate"][met] > eps * (1 - 1e-12)).all()
                if asked.name in forms and asked.kind == "sufficient":
                    np.testing.assert_array_equal(met, forms[asked.name] > eps, asked.name)
                if asked.kind == "necessary":  # nothing below it is certified by the margin alone
                    certified = steps[forms["theorem 4.9"] > eps]
                    assert (certified["p0"] - certified["b"] > asked.level).all()


@pytest.mark.parametrize(("b", "theta"), [(0.3, 0.1), (0.1, 0.3)])
def test_the_bound_of_top_m_takes_the_larger_of_threshold_and_gate(b, theta):
    steps = pd.DataFrame([[1.0, 2.0, 0.6, b, theta]], columns=NAMES)
    table = bounds_table({"target": [(TopMAdditive(2, 0.3), steps)]}, 0.1)
    found = table.data.query("kind == 'lower'").set_index("bound")["median"]
    assert found["corollary 4.14"] == pytest.approx(float(bounds.two_token(0.6, 0.3)))
    assert found["corollary 4.14 polynomial"] < found["corollary 4.14"]
