"""Mean budgets against enumeration of every set of rejected steps."""

import itertools

import numpy as np
import pytest

from analysis.beyond.budget import certified_tokens, rejections


def calls(rejected: set[int], ends: list[int], length: int | None) -> int:
    """Walk: a call stops at a rejected token, at its length, or where the trajectory ends."""
    count, at = 0, 0
    for end in ends:
        while at <= end:
            count += 1
            drafted = 0
            while at <= end and at not in rejected and (length is None or drafted < length):
                at, drafted = at + 1, drafted + 1
            at = at + 1 if at <= end else at  # the corrected token, or the one behind the draft
    return count


@pytest.mark.parametrize("length", [1, 2, 3, None])
def test_tokens_per_call_bound_every_set_of_rejected_steps(length: int | None) -> None:
    rng = np.random.default_rng(length or 0)
    ends = [3, 4, 9]
    sets = [set(c) for n in range(11) for c in itertools.combinations(range(10), n)]
    walked = np.array([calls(chosen, ends, length) for chosen in sets])
    for _ in range(6):
        drawn, kind = np.round(rng.exponential(0.3, 10), 3), rng.choice(5, 10)
        r = np.select([kind == 0, kind == 1], [0.0, np.inf], drawn)
        spent = np.array([sum(r[i] for i in sorted(chosen)) for chosen in sets])
        for eps in (0.0, 0.01, 0.05, 0.13, 0.5, np.inf):
            most = walked[(spent <= 10 * eps) & np.isfinite(spent)].max()
            found = certified_tokens(r, ends, eps, length)
            assert found <= 10 / most + 1e-12
            assert 10 / found <= most + (0 if length is None else 1) + 1e-9


@pytest.mark.parametrize(
    ("certificates", "mean_kl", "length", "tokens"),
    [
        # 3 eps rounds below the certificate that it is equal to
        ([0.10312224871247906, np.inf, np.inf], 0.034374082904159685, None, 1.5),
        ([0.10312224871247906, np.inf, np.inf], 0.034374082904159685, 2, 1.5),
        # the dual of a budget that is spent to the last digit is rounded below a whole call
        ([0.9, 0.9, 0.9, 0.9], 0.675, 2, 1.0),
        ([0.1, 0.4, 0.3, 0.2], 0.025, 1, 4 / 3),
    ],
)
def test_a_budget_that_is_spent_exactly_rejects(
    certificates: list[float], mean_kl: float, length: int | None, tokens: float
) -> None:
    assert certified_tokens(certificates, [len(certificates) - 1], mean_kl, length) == tokens


def test_rejections_at_exact_budgets() -> None:
    r = [0.5, np.inf, 0.25, 0.0, 1.0]
    # sorted sums: 0, 0.25, 0.75, 1.75
    levels = [0.0, 0.04, 0.05, 0.15, 0.35, 9.0, np.inf]
    assert rejections(r, levels).tolist() == [1, 1, 2, 3, 4, 4, 4]
    tenths = [0.1] * 10  # their sum in floats is below 1, that of 0.1 and 0.2 is above 0.3
    assert rejections(tenths, 0.1) == 10
    assert rejections([0.1, 0.2], 0.15) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [0], 0.1), "N >= 1"),
        (([0.1, np.nan], [1], 0.1), "at least 0"),
        (([0.1, 0.2], [1], -0.1), "mean_kl=-0.1"),
        (([0.1, 0.2], [0], 0.1), "the last 1"),
        (([0.1, 0.2], [1, 1], 0.1), "increasing"),
        (([0.1, 0.2], [1], 0.1, 0), "draft_length=0"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        certified_tokens(*arguments)
