"""Rules of one's own on rounded log-probabilities: sound, or refused by name."""

import math
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import RuleError
from analysis.certificates.certify import Certificates, certify
from analysis.rules import Mars, Rule, Threshold, Typical
from analysis.topk import TopK
from tests.analysis.cases import certificate
from tests.analysis.test_truncation import assert_inside, distributions, of_the_box, printed

ROOT = Path(__file__).parents[2]
STEPS, K = 60, 8


@cache
def truth():
    return distributions(STEPS, seed=3)


@cache
def told(digits, k=K):
    return printed(truth(), k, digits)


@cache
def completions(digits):
    """Distributions that round to the log: those it was made of, vertices, and others inside."""
    rng = np.random.default_rng(digits)
    whole = (TopK.from_probabilities(truth()), np.ones(STEPS, dtype=bool))
    return [whole, *(of_the_box(told(digits), rng) for _ in range(25))]


def level(dist, reads):
    """Rising in p0 and in the entropy, or falling in one: never between its ends at the corners."""
    return {
        "entropy": dist.entropy,
        "p0": dist.top_probability,
        "both": dist.entropy + 3 * dist.top_probability,
        "each": dist.entropy - 3 * dist.top_probability,
    }[reads]


class Varying(Rule):
    """A limit on ranks and an offset, both below and above a level of the distribution."""

    reads: str
    at: float
    ranks: tuple[int, int]
    offsets: tuple[float, float]
    slope: float
    smooth: bool

    @property
    def minimum_k(self):
        return max(self.ranks) + 1

    def cut(self, dist):
        x = level(dist, self.reads) - self.at
        above = x > 0
        share = 1 / (1 + np.exp(-4 * x)) if self.smooth else above
        offset = self.offsets[0] + share * (self.offsets[1] - self.offsets[0])
        return Threshold(np.where(above, self.ranks[1], self.ranks[0]), offset, self.slope)


class VaryingCount(Rule):
    reads: str
    at: float
    ranks: tuple[int, int]

    def accepted_count(self, dist):
        above = level(dist, self.reads) > self.at
        count = np.where(above, self.ranks[1], self.ranks[0])
        return np.where(count <= dist.k, count, -1)


def levels(reads):
    """A level at which some step stands, so that other completions of it are on either side."""
    values = level(TopK.from_probabilities(truth()), reads)
    return st.integers(0, STEPS - 1).map(lambda step: float(values[step]) + 1e-9)


READS = st.sampled_from(["entropy", "p0", "both", "each"])
OFFSETS = st.tuples(*[st.floats(-0.3, 0.3)] * 2)


def rules(ranks):
    varying = READS.flatmap(
        lambda reads: st.builds(
            Varying,
            reads=st.just(reads),
            at=levels(reads),
            ranks=st.tuples(*[st.integers(1, K - 1)] * 2),
            offsets=OFFSETS,
            slope=st.sampled_from([0.0, 0.3, 1.0, -0.5]),
            smooth=st.booleans(),
        )
    )
    counting = READS.flatmap(
        lambda reads: st.builds(
            VaryingCount, reads=st.just(reads), at=levels(reads), ranks=st.tuples(ranks, ranks)
        )
    )
    return st.one_of(varying, counting)


@settings(max_examples=30, deadline=None)
@given(rule=rules(st.integers(1, 20)), digits=st.integers(1, 3))
def test_the_interval_has_the_certificate_of_everything_that_rounds_to_the_log(rule, digits):
    found = certify(told(digits), rule)
    for full, fits in completions(digits):
        exact = certify(full, rule)
        assert_inside(Certificates(*(column[fits] for column in found)), exact)


def documented_rules():
    (source,) = re.findall(
        r"```python\n(from typing.*?class Confident.*?)```",
        (ROOT / "docs/certify.md").read_text(),
        re.DOTALL,
    )
    (other,) = re.findall(
        r"```python\n(class Perplexity.*?)```", (ROOT / "docs/certify.md").read_text(), re.DOTALL
    )
    names = {"__name__": "my_rules"}
    exec(source + other, names)
    return names["Confident"], names["Perplexity"]


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_the_documented_rules_and_their_opposites(digits):
    """Lenient at a high entropy, and at a low one: each end was wrong in one of the two."""
    confident, perplexity = documented_rules()

    class Opposite(confident):
        def cut(self, dist):
            sure = dist.entropy <= self.entropy
            return Threshold(slope=self.alpha, max_rank=np.where(sure, self.m, 1), offset=0.0)

    wide = distributions(4000, seed=1)
    log, full = printed(wide, 20, digits), TopK.from_probabilities(wide)
    chosen = [kind(0.3, 1.0, 4) for kind in (confident, Opposite)] + [perplexity(0.9)]
    found = certify(log, chosen)
    assert_inside(found, certify(full, chosen))
    least, most = log.entropy_range
    open_ = (least <= 1.0) & (most > 1.0)
    assert open_.any()
    # elsewhere the limit on ranks is known, and the ends are those of a fixed limit
    fixed = certify(log, [Varying("p0", 2.0, (m, m), (0.0, 0.0), 0.3, False) for m in (1, 4)])
    for column, ranks in enumerate([(1, 4), (4, 1)]):
        for known, m in ((most <= 1.0, ranks[0]), (least > 1.0, ranks[1])):
            np.testing.assert_array_equal(
                found.lower[known, column], fixed.lower[known, [1, 4].index(m)]
            )


def test_a_step_whose_limit_is_open_by_hand():
    """p0 = 0.6 or less: rank 1 alone; above: three ranks. The log says 0.6 within 1 %."""

    class Sure(Rule):
        def cut(self, dist):
            return Threshold(max_rank=np.where(dist.top_probability > 0.6, 3, 1))

        @property
        def minimum_k(self):
            return 4

    log = TopK.from_log_probs([[0, 1, 2, 3]], [np.log([0.6, 0.2, 0.1, 0.05])], 0.01, 20)
    found = certify(log, Sure())
    for p0, m in ((0.6, 1), (0.6001, 3)):
        p = np.array([p0, 0.2, 0.1, 0.05, *[(0.65 - p0) / 16] * 16])
        assert found.lower[0, 0] <= certificate(p, Sure()) <= found.upper[0, 0], m
    # a step to either side: above or below for certain
    for p0, m in ((0.6 * np.exp(-0.011), 1), (0.6 * np.exp(0.011), 3)):
        told_ = TopK.from_log_probs([[0, 1, 2, 3]], [np.log([p0, 0.2, 0.1, 0.05])], 0.01, 20)
        fixed = Varying("p0", 2.0, (m, m), (-1.0, -1.0), 0.0, False)
        assert certify(told_, Sure()).lower == certify(told_, fixed).lower


class Reading(Rule):
    """Rules of which the four corners say too little."""

    what: str

    @property
    def minimum_k(self):
        return 4

    def cut(self, dist):
        h, p = dist.entropy, dist.probs
        lenient = {
            "an entropy within a window": lambda: (h > 1.0) & (h < 1.2),
            "p0 outside of a window": lambda: np.abs(p[:, 0] - 0.5) > 0.01,
            "p0 outside of a wide one": lambda: np.abs(p[:, 0] - 0.5) > 0.15,
            "rank 2": lambda: p[:, 1] > 0.2,
            "the gap of ranks 2 and 3": lambda: p[:, 1] - p[:, 2] > 0.05,
            "the mass of three": lambda: p[:, :3].sum(axis=1) > 0.8,
            "the tail": lambda: dist.log_tail > -2.0,
            "the token": lambda: dist.ids[:, 0] % 2 == 0,
            "its log-probability": lambda: dist.log_probs[:, 3] > -4.0,
            "a band of rank 2": lambda: np.abs(p[:, 1] - 0.14) < 1e-3,
            "a band of the tail": lambda: np.abs(dist.log_tail + 1.2) < 1e-3,
            "a token that is not there": lambda: dist.ids[:, 0] == 10**6,
            "all of them": lambda: (p > 0.999999).all(axis=1),
            "their roots": lambda: np.sqrt(p).sum(axis=1) > 99,
            "their sum": lambda: p.sum(axis=1) > 2,
            "what it hides": lambda: hides(dist),
        }[self.what]()
        return Threshold(max_rank=np.where(lenient, 3, 1))


def hides(dist):
    with suppress(Exception):
        return dist.log_tail == 0.12345
    return np.zeros(len(dist), dtype=bool)


class Nucleus(Rule):
    """A count that depends on all probabilities."""

    mass: float

    def accepted_count(self, dist):
        return 1 + (np.cumsum(dist.probs, axis=1) < self.mass).sum(axis=1).clip(max=dist.k - 1)


class Wave(Rule):
    def cut(self, dist):
        return Threshold(offset=0.1 * np.sin(3 * dist.entropy))


UNBOUNDED = [
    *map(Reading, ["an entropy within a window", "p0 outside of a window", "rank 2"]),
    *map(Reading, ["the gap of ranks 2 and 3", "the mass of three", "the tail", "the token"]),
    *(Reading("its log-probability"), Nucleus(0.9), Wave()),
    # at no step of these another than elsewhere: what is read tells, not what is found
    *map(Reading, ["a band of rank 2", "a band of the tail", "a token that is not there"]),
    *map(Reading, ["all of them", "their roots", "their sum", "what it hides"]),
]


@pytest.mark.parametrize("rule", UNBOUNDED, ids=str)
def test_a_rule_that_corners_do_not_bound_is_refused_by_name(rule):
    certify(TopK.from_probabilities(truth()), rule)  # as such it is a rule
    with pytest.raises(RuleError, match=f"rule {re.escape(repr(rule.label))} "):
        certify(told(1), [Typical(0.1, 0.09), rule])


def test_a_rule_is_refused_only_where_it_turns_within_what_a_step_allows():
    rule = Reading("p0 outside of a wide one")
    assert_inside(certify(told(1), rule), certify(TopK.from_probabilities(truth()), rule))


def test_p0_may_be_read_from_any_column():
    class Same(Varying):
        def cut(self, dist):
            assert np.all(dist.probs[:, 0] == dist.top_probability)
            assert np.all(dist.probs[:, :1] == dist.top_probability[:, None])
            assert dist.probs.shape == (len(dist), dist.k)
            p0 = (dist.probs[:, 0] + np.exp(-dist.top_surprisal) + np.exp(dist.log_probs[:, 0])) / 3
            return Threshold(max_rank=np.where(p0 > self.at, self.ranks[1], self.ranks[0]))

    values = "p0", 0.5, (1, 4), (0.0, 0.0), 0.0, False
    found = certify(told(2), [Same(*values), Varying("p0", 0.5, (1, 4), (-1, -1), 0.0, False)])
    np.testing.assert_allclose(found.lower[:, 0], found.lower[:, 1], rtol=1e-9)


def test_a_limit_on_ranks_that_leaves_no_stored_token_is_refused():
    """Rank 4 is rejected whatever its probability: what is known of it is p_K alone."""

    class Forgotten(Rule):
        def cut(self, dist):
            return Threshold(max_rank=np.where(dist.entropy > self.at, 3, 1), offset=0.001)

        at: float

    log = TopK.from_log_probs([[0, 1, 2]], [np.log([0.3, 0.25, 0.2])], 0.001, 20)
    for at in (1.0, 1.7):  # at the printed values, or at another corner only
        with pytest.raises(RuleError, match=r"rule 'Forgotten at=.*minimum_k must be 4; K=3"):
            certify(log, Forgotten(at))
    assert certify(log, Forgotten(9.0)).upper < np.inf


def test_raw_logits_are_still_refused():
    with pytest.raises(RuleError, match=r"mars theta=0\.9.*raw logits"):
        certify(told(2), Mars(0.9))


def test_counts_beyond_what_is_stored():
    """A known count of 4 of 2 stored: rank 5 has at most a third of the tail."""

    class Fixed(Rule):
        count: int

        def accepted_count(self, dist):
            return np.full(len(dist), self.count)

    p = np.array([0.5, 0.2, 0.1, 0.1, 0.1, 0.0])
    log = TopK.from_log_probs([[0, 1]], [np.log(p[:2])], 0, 6)
    found = certify(log, [Fixed(2), Fixed(4), Fixed(6)])
    truths = [certificate(p, Fixed(n)) for n in (2, 4, 6)]
    assert found.lower[0] == pytest.approx([certificate(np.array([0.5, 0.2, 0.2, 0.1, 0, 0]),
                                                        Fixed(2)), truths[1], np.inf])  # fmt: skip
    assert found.upper[0, 0] == pytest.approx(
        certificate(np.array([0.5, 0.2, 0.075, 0.075, 0.075, 0.075]), Fixed(2))
    )
    assert np.all(truths <= found.upper[0])
    assert found.upper[0, 1:].tolist() == [np.inf, np.inf]


def test_no_entropy_exceeds_that_of_equal_tokens():
    """Rounded upwards, the sum over all tokens would: of V + 1 tokens, which no rule may accept."""
    _, perplexity = documented_rules()
    log = TopK.from_log_probs(np.arange(10)[None], np.full((1, 10), np.log(0.1)), 0.05, 10)
    assert log.entropy_range[1] <= math.log(10)
    found = certify(log, perplexity(1.0))
    assert found.lower <= certificate(np.full(10, 0.1), perplexity(0.9))
    assert np.isinf(found.upper)
