"""The usual drafter, against drafters that are put at exactly a KL and then looked at."""

import itertools
import re

import numpy as np
import pytest

from analysis import Steps, TopK, certify, judge, rules, topk, typical_acceptance
from analysis.acceptance import usual_drafter
from analysis.acceptance.usual_drafter import usual_statistics
from analysis.statistics.bootstrap import PromptBootstrap
from benchmarks.usual_drafter import by_brute_force
from tests.analysis.cases import dirichlet, noisy

VOCAB = 9
GREEDY = rules.StrictGreedy()
RANKS = [  # each accepts a number of ranks
    GREEDY,
    rules.Additive(0.1),
    rules.Additive(0.4),
    rules.Multiplicative(0.3),
    rules.TopMAdditive(3, 0.3),
    rules.Typical(0.1, 0.09),
    rules.AbsoluteThreshold(0.05),
]
TREES = [rules.Tree(2), rules.Tree(4)]
EIGHT = [*RANKS, TREES[0]]


def steps_of(count, seed=0):
    """Random steps, nearly certain to spread out, the tokens in the order of their ranks."""
    p = dirichlet(seed, count // 2, VOCAB, 0.2, 1.0)
    return -np.sort(-np.maximum(p, 1e-12) / np.maximum(p, 1e-12).sum(axis=1, keepdims=True))


def drafters_at(p, xi, eps):
    """s (draws,) with KL(p || q_s) = eps, by bisection, and the definition of the KL."""

    def kl(s):
        q = p * np.exp(s[:, None] * xi)
        q /= q.sum(axis=1, keepdims=True)
        return (p * np.log(p / q)).sum(axis=1)

    low, high = np.zeros(len(xi)), np.full(len(xi), 60.0)
    for _ in range(60):
        middle = (low + high) / 2
        below = kl(middle) < eps
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low


def rejected_on_the_way(p, xi, s, accepts):
    """Whether a token outside `accepts` is ever the drafter's first choice up to s: (draws,).

    Between two neighbouring crossings of any two lines the first choice is one and the same.
    """
    pairs = np.array(list(itertools.combinations(range(len(p)), 2)))
    gap = np.log(p[pairs[:, 0]] / p[pairs[:, 1]])
    crossings = gap / (xi[:, pairs[:, 1]] - xi[:, pairs[:, 0]])
    crossings = np.where((crossings > 0) & (crossings < s[:, None]), crossings, 0.0)
    ends = np.sort(np.column_stack([np.zeros(len(s)), crossings, s]), axis=1)
    between = (ends[:, 1:] + ends[:, :-1]) / 2
    first = (np.log(p) + between[:, :, None] * xi[:, None, :]).argmax(axis=2)
    return (~accepts[first]).any(axis=1)


@pytest.mark.parametrize("count", [16, pytest.param(200, marks=pytest.mark.thorough)])
def test_the_share_is_that_of_drafters_at_exactly_this_kl(count):
    """Of the same directions: one by one, strict greedy and trees by what is drafted at the KL."""
    p, draws = steps_of(count), 60
    dist = TopK.from_probabilities(p)
    eps = np.random.default_rng(1).uniform(0.01, 0.8, count)
    share = typical_acceptance(dist, [*RANKS, *TREES], eps, draws=draws, seed=7)
    accepted_ranks = certify(dist, RANKS).accepted_count
    for step in range(count):
        xi = np.random.default_rng([7, step]).standard_normal((draws, VOCAB))
        s = drafters_at(p[step], xi, eps[step])
        lines = np.log(p[step]) + s[:, None] * xi
        assert share[step, 0] == (lines.argmax(axis=1) == 0).mean()
        for at, tree in enumerate(TREES, len(RANKS)):
            rank = (lines >= lines[:, :1]).sum(axis=1)
            assert share[step, at] == (rank <= tree.m).mean()
        for at, n in enumerate(accepted_ranks[step]):
            accepts = np.arange(VOCAB) < n
            wanted = ~rejected_on_the_way(p[step], xi, s, accepts)
            assert share[step, at] == wanted.mean(), RANKS[at]
            # a drafter may come back to accepted tokens
            assert share[step, at] <= accepts[lines.argmax(axis=1)].mean() <= share[step, at] + 0.1


@pytest.mark.thorough
def test_the_benchmark_by_brute_force_finds_the_same_shares():
    found = by_brute_force(20, 5_000)
    assert len(found) == 8
    assert found["standard_errors"].max() < 4.5
    assert found[["most_below", "most_above"]].max(axis=None) < 0.05
    assert not found[["rising", "rejected"]].any(axis=None)


@pytest.mark.thorough
def test_the_share_is_that_of_many_other_drafters():
    """100,000 drafters, drawn otherwise, at exactly eps; within 5 standard errors."""
    p, eps, draws = steps_of(8, seed=3), 0.2, 100_000
    share = typical_acceptance(TopK.from_probabilities(p), "greedy", eps, draws=draws)
    for step, row in enumerate(p):
        xi = np.random.default_rng([99, step]).standard_normal((draws, VOCAB))
        lines = np.log(row) + drafters_at(row, xi, eps)[:, None] * xi
        wanted = (lines.argmax(axis=1) == 0).mean()
        error = np.sqrt(2 * max(wanted * (1 - wanted), 1 / draws) / draws)
        assert abs(share[step] - wanted) < 5 * error


def test_it_falls_in_the_kl_and_rises_with_the_rule():
    dist = TopK.from_probabilities(steps_of(40), k=6)
    curve = np.stack([typical_acceptance(dist, EIGHT, eps) for eps in (0, 0.01, 0.1, 0.3, 1, 4)])
    assert (np.diff(curve, axis=0) <= 0).all()
    assert (curve[0] == 1).all()  # every certificate is above 0
    assert (curve[-1] < curve[1]).any(axis=0).all()
    relaxed = typical_acceptance(dist, [rules.Additive(t) for t in (0, 0.1, 0.3, 0.6, 1)], 0.5)
    assert (np.diff(relaxed, axis=1) >= 0).all()
    np.testing.assert_array_equal(relaxed[:, 0], typical_acceptance(dist, "greedy", 0.5))
    wider = typical_acceptance(dist, ["greedy", *(rules.Tree(m) for m in (1, 2, 3, 5))], 0.5)
    assert (np.diff(wider, axis=1) >= 0).all()
    np.testing.assert_array_equal(wider[:, 0], wider[:, 1])  # a tree of one is strict greedy


def test_below_the_certificate_every_drafter_is_accepted():
    """Of the arithmetic itself: `typical_acceptance` does not even ask it there."""
    dist = TopK.from_probabilities(steps_of(60))
    found = certify(dist, EIGHT)
    xi = np.random.default_rng(0).standard_normal((300, VOCAB))
    trees = np.array([isinstance(rule, rules.Tree) for rule in EIGHT])
    seen = 0
    for step in range(len(dist)):
        ranks = np.where(trees, 0, found.accepted_count[step])
        for at, certificate in enumerate(found.lower[step]):
            if np.isinf(certificate):
                continue
            below, above = (
                usual_drafter.rejections(
                    dist.log_probs[step],
                    -np.inf,
                    usual_drafter.Directions(xi, xi @ dist.probs[step], xi.max(axis=1)),
                    np.full(len(EIGHT), certificate * factor),
                    ranks,
                    np.where(trees, 2, 0),
                )[at]
                for factor in (1 - 1e-9, 1.3)
            )
            assert below == 0
            seen += above > 0
    assert seen > 200  # the certificate is not far from the first rejected drafter
    at = found.lower[:, 0]
    assert (typical_acceptance(dist, "greedy", np.nextafter(at, 0)) == 1).all()
    assert (typical_acceptance(dist, "greedy", at * 2) < 1).mean() > 0.5


def test_ties_and_the_ends_of_the_kl():
    tied = TopK.from_probabilities([[0.4, 0.4, 0.2]])
    share = typical_acceptance(tied, ["greedy", "additive:0.1", "tree:2"], 1e-12, draws=4000)
    assert share[0, 0] == pytest.approx(0.5, abs=0.04)  # the other one leads at once, or never
    assert share[0, 1:].tolist() == [1, 1]
    # where the draft is the target, a tie counts as rejected, as it does when a draft is judged
    same = typical_acceptance(tied, ["greedy", "additive:0.1", "tree:1", "tree:2"], 0.0)
    assert same.tolist() == [[0, 1, 0, 1]]
    wide = typical_acceptance(tied, ["greedy", "tree:2000000000"], 1.0)  # the width costs nothing
    assert wide[0, 1] == 1
    every = typical_acceptance(tied, ["greedy", "absolute:0.1", "tree:2"], np.inf)
    assert every.tolist() == [[0, 1, 0]]  # nothing is rejected: at any KL
    sure = TopK.from_logits([[0.0, -np.inf, -np.inf]])
    assert typical_acceptance(sure, "greedy", 50.0).tolist() == [1]


def test_directions_depend_on_the_seed_and_the_step_alone(monkeypatch):
    dist = TopK.from_probabilities(steps_of(30))
    share = typical_acceptance(dist, "greedy", 0.3)
    np.testing.assert_array_equal(share[:10], typical_acceptance(dist[:10], "greedy", 0.3))
    np.testing.assert_array_equal(share, typical_acceptance(dist, EIGHT, 0.3)[:, 0])
    assert (share != typical_acceptance(dist, "greedy", 0.3, seed=1)).any()
    monkeypatch.setattr(topk, "PART", 7)
    np.testing.assert_array_equal(share, typical_acceptance(dist, "greedy", 0.3))
    each = typical_acceptance(dist, "greedy", np.linspace(0, 1, 30))
    assert each[9] == typical_acceptance(dist, "greedy", 9 / 29)[9]


def test_columns_of_one_pass_are_the_single_answers():
    """Several rules, KLs and laws at once, certain and endless ones among them."""
    dist = TopK.from_probabilities(steps_of(30))
    each = np.random.default_rng(2).uniform(0, 1, 30)
    each[:3] = 0.0, 1e-9, np.inf
    columns = [(rule, kl) for rule in EIGHT for kl in (0.05, each, 0.3)]
    together = usual_drafter.usual_counts(dist, columns, list(usual_drafter.LAWS), draws=40, seed=5)
    assert list(together) == list(usual_drafter.LAWS)
    for law, counts in together.items():
        for (rule, kl), count in zip(columns, counts, strict=True):
            alone = typical_acceptance(dist, rule, kl, draws=40, seed=5, law=law)
            np.testing.assert_array_equal(count / 40, alone)


def test_the_compiled_parts_are_those_of_numpy():
    x = np.concatenate([np.linspace(-700, 0, 20_001), -np.logspace(-300, 2, 2000)])
    exponentials = np.array([usual_drafter.exponential(value) for value in x])
    np.testing.assert_allclose(exponentials, np.exp(x), rtol=5e-16, atol=0)
    generators = np.random.default_rng(3), np.random.default_rng(3)
    mine = usual_drafter.LAWS["laplace"](generators[0], (300, 40))
    wanted = generators[1].laplace(0.0, np.sqrt(0.5), (300, 40))
    np.testing.assert_allclose(mine, wanted, rtol=1e-14, atol=1e-15)


def test_tokens_that_are_masked_or_far_below_change_nothing():
    """A KL far beyond the range of the exponential, and tokens at -inf."""
    logits = np.array([[0.0, -1.0, -900.0, -np.inf]])
    share = typical_acceptance(TopK.from_logits(logits), ["greedy", "tree:2"], 0.4, draws=300)
    short = typical_acceptance(TopK.from_logits(logits[:, :2]), "greedy", 0.4, draws=3000)
    assert share[0].tolist() == pytest.approx([short[0], 1.0], abs=0.1)
    assert 0.1 < share[0, 0] < 0.9
    distant = typical_acceptance(TopK.from_logits([[0.0, -2000.0]]), "greedy", [3000.0], draws=300)
    assert 0 < distant[0] <= 1


def test_tokens_without_a_direction_count_as_one():
    """At moderate KLs they hardly matter; of rounded log-probabilities the given ones count."""
    z, _ = noisy(150, 400, 3.0, 0.0, 2)
    whole = typical_acceptance(TopK.from_logits(z), EIGHT, 0.3, tokens=400)
    stored = TopK.from_logits(z, 60)
    cut = typical_acceptance(stored, EIGHT, 0.3)
    np.testing.assert_allclose(cut.mean(axis=0), whole.mean(axis=0), atol=0.01)
    few = typical_acceptance(TopK.from_logits(z), EIGHT, 0.3, tokens=60)
    np.testing.assert_allclose(few, cut, atol=0.0101)  # two draws of 200: rounding of a threshold
    log = TopK.from_log_probs(stored.ids, np.round(stored.log_probs, 4), 1e-4, 400)
    told = typical_acceptance(log, GREEDY, 0.3)
    np.testing.assert_allclose(told.mean(), cut[:, 0].mean(), atol=0.005)


def test_a_drafter_with_random_noise_is_a_usual_one():
    """Normal noise in its logits is the model: acceptance at the KLs of its steps, rule by rule."""
    z, w = noisy(1500, 40, 3.0, 0.9, 5)
    steps = Steps.from_logits(z, w, np.repeat(np.arange(60), 25), k=20)
    bootstrap = PromptBootstrap(steps.trajectories.answer_index, 100, 0.95, 0)
    rows = usual_statistics(steps.target, EIGHT, steps.kl, bootstrap, draws=40)
    table = steps.table(EIGHT)
    for row, judgement in zip(rows, judge(steps, EIGHT), strict=True):
        measured, certified = judgement.accepted.mean(), judgement.certified.mean()
        assert row["rule"] == judgement.rule.label
        assert row["value"] == pytest.approx(measured, abs=0.03)
        assert certified < row["value"]
        assert row["ci_low"] < row["value"] < row["ci_high"]
        assert table.loc[row["rule"], "usual_drafter"] == pytest.approx(row["value"], abs=0.01)


def test_heavier_tails_are_accepted_less_and_lighter_ones_more():
    dist = TopK.from_probabilities(steps_of(200))
    heavy, normal, light = (
        typical_acceptance(dist, "additive:0.1", 0.2, law=law).mean()
        for law in ("laplace", "normal", "uniform")
    )
    assert heavy < normal < light
    for law in usual_drafter.LAWS:
        xi = usual_drafter.LAWS[law](np.random.default_rng(0), (1000, 100))
        assert [xi.mean(), xi.var()] == pytest.approx([0, 1], abs=0.02)


DIST = TopK.from_probabilities(steps_of(4))
WRONG = [
    (lambda: typical_acceptance(steps_of(4), GREEDY, 0.1), "dist is ndarray"),
    (lambda: typical_acceptance(DIST, 3, 0.1), "3 is not a rule"),
    (lambda: typical_acceptance(DIST, GREEDY, [0.1, 0.2]), "shape (2,)"),
    (lambda: typical_acceptance(DIST, GREEDY, -1e-9), "least -1e-09"),
    (lambda: typical_acceptance(DIST, GREEDY, np.nan), "kl has the least nan"),
    (lambda: typical_acceptance(DIST, GREEDY, "0.1 nats"), "kl is '0.1 nats'"),
    (lambda: typical_acceptance(DIST, GREEDY, 0.1, draws=0), "draws=0"),
    (lambda: typical_acceptance(DIST, GREEDY, 0.1, draws=2.5), "draws=2.5"),
    (lambda: typical_acceptance(DIST, GREEDY, 0.1, tokens=0), "tokens=0"),
    (lambda: typical_acceptance(DIST, GREEDY, 0.1, law="cauchy"), "law='cauchy'"),
]


@pytest.mark.parametrize(("call", "named"), WRONG, ids=[named for _, named in WRONG])
def test_an_error_names_the_argument(call, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        call()
