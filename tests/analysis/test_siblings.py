"""Acceptance over sibling indices from stored steps: against enumeration and closed forms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from analysis.trees.acceptance import Stored, aligned, drawn_rates, greedy_rates

P = np.array([0.5, 0.1, 0.25, 0.15])
Q = np.array([0.2, 0.4, 0.4, 0.0])


def drawn(p: np.ndarray, q: np.ndarray, count: int, races: bool) -> np.ndarray:
    steps = 40_000
    times = np.random.default_rng(1).exponential(size=(steps, len(p)))
    rows = [np.tile(row, (steps, 1)) for row in (p, q)]
    return drawn_rates(rows[0], rows[1], times, count, races) / steps


def enumerated(p: np.ndarray, q: np.ndarray, count: int) -> np.ndarray:
    """R of speculative sampling without replacement, over every order of drafts."""
    rates = np.zeros(count)
    for order in itertools.permutations(np.flatnonzero(q), count):
        target, draft, reached, drafted = p.copy(), q.copy(), 1.0, 1.0
        for index, token in enumerate(order):
            drafted *= draft[token]
            accepted = min(1.0, target[token] / draft[token])
            # of the orders that begin like this one, the probability of all is summed
            rates[index] += _whole(q, order, index) * reached * accepted
            reached *= 1 - accepted
            rest = np.maximum(target - draft, 0)
            target = rest / rest.sum() if rest.any() else target
            draft = draft.copy()
            draft[token] = 0
            draft = draft / draft.sum() if draft.any() else draft
    return rates


def _whole(q: np.ndarray, order: tuple[int, ...], index: int) -> float:
    """Probability of an order of drafts, shared among the orders that begin like it."""
    left, probability = 1.0, 1.0
    for token in order:
        probability *= q[token] / left
        left -= q[token]
    return probability


def test_speculative_sampling_has_the_rates_of_all_orders() -> None:
    assert drawn(P, Q, 3, races=False) == pytest.approx(enumerated(P, Q, 3), abs=0.008)
    first = drawn(P, Q, 1, races=False)[0]
    assert first == pytest.approx(1 - np.abs(P - Q).sum() / 2, abs=0.008)


def test_races_have_the_closed_form_and_find_all_that_can_be_drafted() -> None:
    rates = drawn(P, Q, 4, races=True)
    both = np.flatnonzero(P * Q)
    first = sum(1 / np.maximum(P / P[i], Q / Q[i]).sum() for i in both)
    assert rates[0] == pytest.approx(first, abs=0.008)
    assert rates.sum() == pytest.approx(P[Q > 0].sum(), abs=0.008)  # of three children, some one
    assert rates[3] == 0  # q has three tokens


@pytest.mark.parametrize("races", [False, True])
def test_equal_models_accept_the_first_child(races: bool) -> None:
    assert drawn(P, P, 3, races) == pytest.approx([1, 0, 0])


def test_greedy_rates_are_shares_of_ranks() -> None:
    assert greedy_rates(np.array([1, 2, 2, 4]), 2).tolist() == [0.25, 0.5]
    assert greedy_rates(np.array([5]), 3).tolist() == [0, 0, 0]


def test_stored_tokens_meet_where_both_models_stored_them() -> None:
    target = Stored(np.array([[0, 2]]), np.array([[0.5, 0.25]]), np.array([0.25]))
    draft = Stored(np.array([[2, 1]]), np.array([[0.4, 0.4]]), np.array([0.2]))
    p, q = aligned(target, draft, 4)
    assert p.tolist() == [[0.25, 0, 0.5, 0, 0.25, 0]]
    assert q.tolist() == [[0.4, 0.4, 0, 0, 0, 0.2]]


@pytest.mark.parametrize(
    ("top_p", "top_k", "weights", "tail"),
    [
        (1.0, 0, [4, 2, 1], 1),
        (1.0, 2, [4, 2, 0], 0),
        (0.5, 0, [4, 0, 0], 0),  # exactly half before the second
        (0.51, 0, [4, 2, 0], 0),
        (0.875, 0, [4, 2, 1], 0),
        (0.88, 0, [4, 2, 1], 1),
        (0.7, 2, [4, 2, 0], 0),  # of the two 4/6 come before the second
        (0.6, 2, [4, 0, 0], 0),
    ],
)
def test_truncation_of_what_is_stored(
    top_p: float, top_k: int, weights: list[float], tail: float
) -> None:
    stored = Stored(np.array([[3, 1, 0]]), np.array([[4.0, 2.0, 1.0]]), np.array([1.0]))
    found = stored.truncated(top_p, top_k)
    assert found.weights.tolist() == [weights]
    assert found.tail.tolist() == [tail]
