"""Steps inside repeated passages."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.statistics.trajectories import inside_repeats


def slow(tokens: list[int], n: int) -> list[bool]:
    """Of one answer, as it is defined."""
    ends = range(len(tokens))
    window = {t: tokens[t - n + 1 : t + 1] for t in ends if t >= n - 1}
    return [t in window and any(window[t] == window[s] for s in window if s < t) for t in ends]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_repeats_as_defined(n: int) -> None:
    rng = np.random.default_rng(n)
    answers = [rng.integers(0, 2, size=size).tolist() for size in (1, n, n + 1, 40, 7, 40)]
    prompts = np.repeat(np.arange(6), [len(answer) for answer in answers])
    wanted = [flag for answer in answers for flag in slow(answer, n)]
    assert any(wanted)
    assert inside_repeats(np.concatenate(answers), prompts, n).tolist() == wanted


def test_sixteen_tokens_are_a_repetition_within_one_answer() -> None:
    tokens, prompts = np.tile(np.arange(20, dtype=np.int32), 2), np.zeros(40, dtype=np.intp)
    assert np.flatnonzero(inside_repeats(tokens, prompts)).tolist() == [35, 36, 37, 38, 39]
    assert not inside_repeats(tokens, np.repeat([0, 1], 20)).any()
