"""Certificates in other divergences: 40 digits, the drafts that attain them, their relations."""

import math

import mpmath
import numpy as np
import pytest

from analysis.certificates.certify import certify
from analysis.certificates.divergences import Divergence
from analysis.certificates.reference import extremal_draft
from analysis.rules import (
    AbsoluteThreshold,
    Additive,
    FirstRanks,
    Mars,
    Multiplicative,
    Rule,
    StrictGreedy,
    Tree,
)
from analysis.topk import Floats, TopK
from tests.analysis.cases import THRESHOLD_RULES, certificate, dirichlet, distance

NAMES = ["kl", "tv", "hellinger", "reverse_kl", "renyi:0.3", "renyi:2", "renyi:4.5"]


def extremal(name: str, p: Floats, active: list[int]) -> Floats:
    """Level on the active tokens, the others in proportion."""
    a = Divergence.named(name).order
    if name in ("kl", "tv"):
        a = 1.0
    mean = float(np.exp(np.log(p[active]).mean()) if a == 0 else (p[active] ** a).mean() ** (1 / a))
    q = p.copy()
    q[active] = mean
    return q / q.sum()


@pytest.mark.parametrize("name", NAMES)
def test_every_certificate_is_attained(name: str) -> None:
    """By a draft that is rejected; of which tokens are active, only the count is taken."""
    p = -np.sort(-dirichlet(11, 60, 9, 0.4, 3.0), axis=1)
    rules = [StrictGreedy(), Additive(0.2), Multiplicative(0.3), FirstRanks(5), Tree(3)]
    found = certify(TopK.from_probabilities(p), rules, divergence=name)
    for (row, column), value in np.ndenumerate(found.lower):
        if np.isinf(value):
            continue
        size, n = found.active_size[row, column], found.accepted_count[row, column]
        tree = isinstance(rules[column], Tree)
        active = [0, *range(5 - size, 4)] if tree else [*range(size - 1), n]
        q = extremal(name, p[row], active)
        slack = 1 + 1e-12
        if tree:
            assert (q[1:] * slack >= q[0]).sum() >= 3
        else:
            assert q[n] * slack >= q.max()
        assert distance(name, p[row], q) == pytest.approx(value, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("rule", [*THRESHOLD_RULES, StrictGreedy(), Tree(2), Tree(5)], ids=str)
def test_the_extremal_draft_is_rejected_at_the_certificate(rule: Rule) -> None:
    """At ties the worst case; levels tie within 1e-13."""

    def rejected(p: Floats, q: Floats) -> bool:
        order, tie = np.argsort(-p, kind="stable"), 1 - 1e-13
        if isinstance(rule, Tree):
            return bool(np.sum(q >= q[order[0]] * tie) - 1 >= rule.m)
        n = int(rule.accepted_count(TopK.from_probabilities(p[None]))[0])
        return bool(np.isin(np.flatnonzero(q >= q.max() * tie), order[n:]).any())

    for p in dirichlet(0, 3, 12, 0.1, 0.5, 2.0) + 1e-9:
        p = p / p.sum()
        if np.isinf(found := certificate(p, rule)):
            continue
        q, least = extremal_draft(p, rule)
        assert q.sum() == pytest.approx(1, abs=1e-14)
        assert rejected(p, q)
        assert not rejected(p, 0.999 * q + 0.001 * p)  # towards p it is accepted
        assert least == pytest.approx(found, rel=1e-12)
        assert distance("kl", p, q) == pytest.approx(found, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(
    ("rule", "message"),
    [(Additive(0.7), "rejects nothing"), (Tree(2), "rejects nothing"), (Mars(0.9), "raw logits")],
)
def test_nothing_to_show(rule: Rule, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extremal_draft([0.5, 0.5], rule)


def test_it_is_shown_for_one_step() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 2\): give the \(V,\)"):
        extremal_draft([[0.5, 0.5], [0.7, 0.3]], StrictGreedy())


@pytest.mark.parametrize("name", NAMES)
def test_accuracy_at_every_gap(name: str) -> None:
    order = Divergence.named(name).order
    rng = np.random.default_rng(3)
    for gap in (1e-6, 1e-4, 1e-2, 0.3, 3.0):
        z = -np.sort(-rng.normal(size=7) * rng.choice([gap, 1.0], 7)).astype(np.float32)
        z[0] = z[1] + np.float32(gap)
        value = certify(TopK.from_logits(z), FirstRanks(1), divergence=name).lower[0, 0]
        with mpmath.workdps(40):
            w = [mpmath.exp(mpmath.mpf(float(x))) for x in z]
            p = [x / mpmath.fsum(w) for x in w][:2]
            a = mpmath.mpf(order)
            if name in ("kl", "tv"):
                m = (p[0] + p[1]) / 2
                truth = m - p[1] if name == "tv" else sum(x * mpmath.log(x / m) for x in p)
            else:
                m = mpmath.sqrt(p[0] * p[1]) if a == 0 else ((p[0] ** a + p[1] ** a) / 2) ** (1 / a)
                truth = -mpmath.log(1 - sum(p) + 2 * m) * ((a or 1) / (1 - a))
                truth = 1 - mpmath.exp(-truth / 2) if name == "hellinger" else truth
            assert abs(value - truth) <= 1e-13 * truth


def test_relations_between_divergences() -> None:
    dist = TopK.from_probabilities(dirichlet(2, 200, 10, 0.2, 1.0))
    rules = [StrictGreedy(), FirstRanks(4), Tree(3)]
    value = {name: certify(dist, rules, divergence=name).lower for name in [*NAMES, "renyi:0.5"]}
    np.testing.assert_allclose(value["hellinger"], -np.expm1(-value["renyi:0.5"] / 2), rtol=1e-12)
    assert (value["renyi:0.3"] <= value["kl"] * (1 + 1e-12)).all()
    assert (value["kl"] <= value["renyi:2"] * (1 + 1e-12)).all()
    assert (2 * value["tv"] ** 2 <= value["kl"] * (1 + 1e-12)).all()  # Pinsker
    np.testing.assert_array_equal(certify(dist, rules, divergence="renyi:1").lower, value["kl"])
    for name, values in value.items():
        for column, width in enumerate((1, 1, 3)):
            assert (values[:, column] <= Divergence.named(name).ceiling(width)).all()
    certain = TopK.from_probabilities([1.0, 0.0, 0.0, 0.0])
    for name in NAMES:
        if name != "reverse_kl":
            found = certify(certain, [StrictGreedy(), Tree(3)], divergence=name).lower[0]
            ceilings = [Divergence.named(name).ceiling(m) for m in (1, 3)]
            assert found == pytest.approx(ceilings, rel=1e-12)


def test_zeros_ties_and_wide_rules() -> None:
    p = TopK.from_probabilities([[0.4, 0.4, 0.2, 0.0]])
    rules = [StrictGreedy(), AbsoluteThreshold(0.2), AbsoluteThreshold(0.1), Tree(1), Tree(4)]
    for name in NAMES:
        found = certify(p, rules, divergence=name).lower[0]
        assert found[[0, 3]].tolist() == [0.0, 0.0]
        assert found[4] == math.inf
        assert 0 < found[1] < math.inf  # p = theta is rejected
        assert (found[2] == math.inf) == (name == "reverse_kl")  # a zero of p cannot be a mode


def cut_cases() -> list[tuple[list[float], int, float]]:
    """Logits, how many are stored, and a threshold that all of those exceed."""
    rng = np.random.default_rng(0)
    cases = [
        ([12.0, 10.5, -18.0, -20.5, -21.5, -22.0], 4, 2e-15),
        ([0.0, -0.323516, -0.324478, -300.0, -300.0], 2, 0.2954),  # an unseen token is active
        ([0.0, -33.0, -743.0, -757.0], 2, 1e-200),  # a tail next to nothing
        ([0.0, -0.7, -900.0], 2, 1e-200),  # and one that underflows
    ]
    for _ in range(20):
        k, unseen = int(rng.integers(2, 5)), int(rng.integers(0, 3))
        z = -np.sort(rng.uniform(0, 3, k + unseen))
        rejected = z[-1] - rng.choice([5, 30, 100, 600, 720]) - rng.uniform(0, 3, 2)
        z = np.concatenate([z, -np.sort(-rejected)])
        p = np.exp(z) / np.exp(z).sum()
        cases.append((z.tolist(), k, float(np.sqrt(p[k + unseen] * p[k + unseen - 1]))))
    return cases


@pytest.mark.parametrize(
    ("name", "order"),
    [(f"renyi:{a:g}", a) for a in (0.01, 0.02, 0.05, 0.2, 0.3, 0.45)] + [("reverse_kl", 0.0)],
)
def test_truncated_certificates_of_small_orders_contain_the_value_of_50_digits(
    name: str, order: float
) -> None:
    """They rise steeply where p is next to 0: upper was 2.8e-10 too low, and 220 of 258 nats."""
    for z, k, theta in cut_cases():
        found = certify(TopK.from_logits(np.array(z), k), AbsoluteThreshold(theta), divergence=name)
        with mpmath.workdps(50):
            w = [mpmath.exp(x) for x in z]
            p = [x / mpmath.fsum(w) for x in w]
            n = sum(x > theta for x in p)
            assert k <= n < len(p)

            def mean(a: list) -> mpmath.mpf:
                if order == 0:
                    return mpmath.exp(mpmath.fsum(map(mpmath.log, a)) / len(a))
                return (mpmath.fsum(x**order for x in a) / len(a)) ** (1 / mpmath.mpf(order))

            active = [p[n], p[0]]
            for x in p[1:n]:
                if x > mean(active):
                    active.append(x)
            z_left = 1 - mpmath.fsum(active) + len(active) * mean(active)
            truth = -mpmath.log(z_left) * ((order or 1) / (1 - mpmath.mpf(order)))
            lower, upper = found.lower[0, 0], found.upper[0, 0]  # equal ends are rounded
            assert lower * (1 - 1e-14) <= truth <= upper * (1 + 1e-14), (z, k, theta)


@pytest.mark.parametrize("name", ["js", "renyi", "renyi:", "renyi:0", "renyi:-1", "renyi:nan", 3])
def test_unknown_divergences_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"divergence=.* is not allowed: give kl, tv"):
        certify(TopK.from_probabilities([0.5, 0.5]), StrictGreedy(), divergence=name)
