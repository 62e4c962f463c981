"""Served tokens off the argmax: within twice the error of the logits."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.statistics.drift import compare_texts, drift, gaps


def test_greedy_decoding_is_unchanged_where_the_margin_exceeds_twice_the_error() -> None:
    """Random errors within the bound; the worst one changes it at any smaller margin."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4000, 8)).astype(np.float32)
    order = np.argsort(-z, axis=1)
    logits = np.take_along_axis(z, order, axis=1)
    for error in (0.03, 0.3):
        served_logits = z + rng.uniform(-error, error, z.shape)
        gap, margin, stored = gaps(served_logits.argmax(axis=1), order, logits)
        off = gap >= 0
        assert off.any()
        assert not off[margin > 2 * error].any()
        assert gap.max() <= 2 * error
        found = drift(gap, margin, stored)
        assert (found["off"], found["unstored"]) == (off.sum(), 0)
        assert found["share"] <= found["by_error"][f"{error:g}"]
    worst = z.copy()
    np.put_along_axis(worst, order[:, :1], logits[:, :1] - 0.3, axis=1)
    np.put_along_axis(worst, order[:, 1:2], logits[:, 1:2] + 0.3, axis=1)
    gap, margin, stored = gaps(worst.argmax(axis=1), order, logits)
    clear = np.abs(margin - 0.6) > 1e-6
    assert np.array_equal((gap >= 0)[clear], (margin < 0.6)[clear])
    assert drift(gap, margin, stored)["by_error"]["0.3"] == np.mean(margin <= 0.6)


def test_a_token_that_is_not_stored_has_at_least_the_gap_of_the_last() -> None:
    ids, logits = np.array([[4, 2], [4, 2], [4, 2]]), np.array([[3.0, 1.0]] * 3)
    gap, margin, stored = gaps(np.array([4, 2, 9]), ids, logits)
    assert gap.tolist() == [-1, 2, 2]
    assert margin.tolist() == [2, 2, 2]
    assert stored.tolist() == [True, True, False]
    assert drift(gap, margin, stored)["unstored"] == 1
    tie, _, _ = gaps(np.array([2]), ids[:1], np.array([[3.0, 3.0]]))
    assert tie.tolist() == [0]  # off the argmax, by nothing


@pytest.mark.parametrize(
    ("first", "second", "logits", "expected"),
    [
        ([1, 2], [1, 2], [3.0, 1.0], (0, 0, 0)),
        ([1, 2], [1, 1], [3.0, 2.9], (1, 0, 1)),
        ([1, 2], [1, 1], [3.0, 1.0], (1, 0, 0)),
        ([1, 2, 1], [1], [3.0, 1.0], (1, 1, 0)),  # the second ends where the first goes on
        ([9], [1], [3.0], (1, 0, 0)),  # the only stored token is no evidence of a tie
        ([9], [8], [3.0, 2.9], (1, 0, 0)),
    ],
)
def test_texts_differ_by_near_ties_only_where_both_gaps_are_small(
    first: list[int], second: list[int], logits: list[float], expected: tuple[int, int, int]
) -> None:
    token = np.array(first + second)
    ids = np.tile(np.array([1, 2])[: len(logits)], (len(token), 1))
    gap, _, stored = gaps(token, ids, np.tile(logits, (len(token), 1)))
    pair = compare_texts(
        token, gap, stored, [(slice(0, len(first)), slice(len(first), len(token)))]
    )
    assert (pair["parted"], pair["shorter"], pair["near_ties"]) == expected


def test_two_tokens_far_below_the_argmax_are_no_near_tie() -> None:
    pair = compare_texts(
        np.array([1, 2]), np.array([5.0, 5.0]), np.ones(2, bool), [(slice(0, 1), slice(1, 2))]
    )
    assert (pair["largest_gap"], pair["near_ties"]) == (5, 0)
