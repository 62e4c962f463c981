"""The closed form of the draft length, beside an enumeration of where a call can stop."""

import numpy as np
import pytest

from analysis.decoding.draft_length import (
    best_length,
    costs_by_length,
    drafting_pass_cost,
    expected_tokens,
    speed_by_length,
)
from analysis.decoding.metrics import formula_speedup, tokens_per_call


def enumerated(rates, length):
    """The tokens of a call that stops at each position, times the probability that it does."""
    rate = [rates[min(at, len(rates) - 1)] for at in range(length)]
    stops = [np.prod(rate[:at]) * (1 - rate[at]) for at in range(length)]
    return sum((at + 1) * p for at, p in enumerate(stops)) + (length + 1) * np.prod(rate)


def test_expected_tokens_are_those_of_an_enumeration():
    rng = np.random.default_rng(0)
    for _ in range(200):
        rates = rng.uniform(size=rng.integers(1, 6)).tolist()
        longest = int(rng.integers(0, 9))
        expected = [enumerated(rates, length) for length in range(longest + 1)]
        assert expected_tokens(rates, longest) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_equal_rates_are_the_closed_form(rate):
    lengths = range(7)
    assert expected_tokens([rate], 6) == pytest.approx([tokens_per_call(rate, n) for n in lengths])
    speeds = [formula_speedup(rate, n, 0.1) for n in lengths]
    assert speed_by_length([rate] * 3, costs_by_length({2: 1.2}, 6)) == pytest.approx(speeds)


def test_the_best_length_follows_the_rates_by_position():
    """One pooled rate (0.82 of the tested tokens) would ask for the longest drafts."""
    rates, costs = [0.98, 0.87, 0.60, 0.21], costs_by_length({4: 1.4}, 5)
    assert best_length(rates, costs) == 3
    assert best_length([0.82], costs) == 5
    # a step to either side: the third position pays while 1 + gain of it exceeds its cost
    before = 1 + 0.98 + 0.98 * 0.87
    pays = (before * 1.3 / 1.2 - before) / (0.98 * 0.87)
    assert best_length([0.98, 0.87, pays + 1e-6, 0.0], costs) == 3
    assert best_length([0.98, 0.87, pays - 1e-6, 0.0], costs) == 2


def test_no_draft_pays_where_it_costs_more_than_it_gives():
    assert best_length([0.4], [1.0, 1.4 + 1e-9, 1.7]) == 0
    assert best_length([0.4], [1.0, 1.4 - 1e-9, 1.7]) == 1
    assert best_length([0.4], [1.0, 1.4, 1.56]) == 0  # equally fast: the shortest


def test_costs_are_those_measured_and_linear_between():
    costs = costs_by_length({1: 1.3, 4: 1.6}, 6)
    assert costs == pytest.approx([1.0, 1.3, 1.4, 1.5, 1.6, 1.75, 1.9])
    assert costs_by_length({}, 2).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_the_cost_of_a_drafting_pass_leaves_out_the_others(share):
    average = share * 1.7 + (1 - share) * 1.0
    assert drafting_pass_cost(average, share) == pytest.approx(1.7)
    assert np.isnan(drafting_pass_cost(1.0, 0.0))
