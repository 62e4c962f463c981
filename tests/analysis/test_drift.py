"""Served tokens off the argmax: within twice the error of the logits."""

from __future__ import annotations

import numpy as np

from analysis.statistics.drift import compare_texts, drift, gaps


def test_greedy_decoding_is_unchanged_where_the_margin_exceeds_twice_the_error() -> None:
    """Random errors within the bound; the worst one changes it at any smaller margin."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4000, 8)).astype(np.float32)
    order = np.argsort(-z, axis=1)
    logits = np.take_along_axis(z, order, axis=1)
    for error in (0.03, 0.3):
        served_logits = z + rng.uniform(-error, error, z.shape)
        gap, margin = gaps(served_logits.argmax(axis=1), order, logits)
        off = gap >= 0
        assert off.any()
        assert not off[margin > 2 * error].any()
        assert gap.max() <= 2 * error
        found = drift(gap, margin)
        assert found["off"] == off.sum()
        assert found["share"] <= found["by_error"][f"{error:g}"]
    worst = z.copy()
    np.put_along_axis(worst, order[:, :1], logits[:, :1] - 0.3, axis=1)
    np.put_along_axis(worst, order[:, 1:2], logits[:, 1:2] + 0.3, axis=1)
    gap, margin = gaps(worst.argmax(axis=1), order, logits)
    clear = np.abs(margin - 0.6) > 1e-6
    assert np.array_equal((gap >= 0)[clear], (margin < 0.6)[clear])
    assert drift(gap, margin)["by_error"]["0.3"] == np.mean(margin <= 0.6)


def test_a_token_that_is_not_stored_has_at_least_the_gap_of_the_last() -> None:
    ids, logits = np.array([[4, 2], [4, 2], [4, 2]]), np.array([[3.0, 1.0]] * 3)
    gap, margin = gaps(np.array([4, 2, 9]), ids, logits)
    assert gap.tolist() == [-1, 2, 2]
    assert margin.tolist() == [2, 2, 2]
    tie, _ = gaps(np.array([2]), ids[:1], np.array([[3.0, 3.0]]))
    assert tie.tolist() == [0]  # off the argmax, by nothing
    same = compare_texts(np.array([1, 2, 1, 2]), np.full(4, -1.0), [(slice(0, 2), slice(2, 4))])
    assert (same["parted"], same["largest_gap"]) == (0, 0)
