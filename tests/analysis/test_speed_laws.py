"""Speed laws: published values, a simulation, the stationarity condition."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from analysis.decoding import formulas, speed
from tests.analysis.test_decoding_metrics import made

# Seed table: expected tokens a call, to two digits
PUBLISHED = {
    0.5: {3: 1.88, 5: 1.97, 7: 1.99, 10: 2.00},
    0.7: {3: 2.53, 5: 2.94, 7: 3.14, 10: 3.27},
    0.8: {3: 2.95, 5: 3.69, 7: 4.16, 10: 4.57},
    0.9: {3: 3.44, 5: 4.69, 7: 5.70, 10: 6.86},
    0.95: {3: 3.71, 5: 5.30, 7: 6.73, 10: 8.62},
}


def test_tokens_per_call_has_the_published_values_and_its_limits() -> None:
    for a, row in PUBLISHED.items():
        for gamma, tokens in row.items():
            assert formulas.tokens_per_call(a, gamma) == pytest.approx(tokens, abs=0.0051)
    assert formulas.tokens_per_call(1.0, 6) == 7
    assert formulas.tokens_per_call(0.0, 6) == 1
    near = 1 - 1e-12  # the closed form cancels here
    assert formulas.tokens_per_call(near, 6) == pytest.approx(7, rel=1e-10)


@pytest.mark.parametrize("a", [0.05, 0.5, 0.8, 0.95, 0.999])
@pytest.mark.parametrize("rho", [1e-3, 0.05, 0.3])
def test_the_formulas_at_50_digits(a: float, rho: float) -> None:
    """gamma* by Lambert's W, and S at whole lengths beside it by its definition."""
    with mpmath.workdps(50):
        x, r = mpmath.mpf(a), mpmath.mpf(rho)
        # with u = -log(x) (g + 1/r), the condition is e^(u + c) = 1 + u, c = -log(x) (1 - 1/r)
        c = -mpmath.log(x) * (1 - 1 / r)
        u = -1 - mpmath.lambertw(-mpmath.exp(c - 1), -1).real
        exact = -u / mpmath.log(x) - 1 / r
        found = formulas.formula_length(a, rho)
        assert found == pytest.approx(max(float(exact), 0.0), rel=1e-9, abs=1e-9)
        speedups = [(1 - x ** (g + 1)) / (1 - x) / (1 + g * r) for g in range(math.ceil(found) + 3)]
        for g, speedup in enumerate(speedups):
            assert formulas.formula_speedup(a, g, rho) == pytest.approx(float(speedup), rel=1e-12)
        assert abs(int(np.argmax([float(s) for s in speedups])) - found) < 1


def test_the_formulas_at_their_ends_and_beside_what_was_measured() -> None:
    assert formulas.formula_length(0.8, 0.0) == formulas.formula_length(1.0, 0.3) == math.inf
    assert formulas.formula_length(0.0, 0.0) == formulas.formula_length(0.0, 0.1) == 0
    # the seed: a = 0.9 with a dear drafter loses to a = 0.75 with a cheap one
    assert formulas.formula_speedup(0.9, 5, 0.5) < formulas.formula_speedup(0.75, 5, 0.02)
    one = made()
    table = speed.speed(one, 20, 0.9, 0)
    assert table.loc[0, ["formula", "formula_length"]].isna().all()  # the target alone
    for run in (1, 2):
        a, gamma, rho = table.loc[run, ["rate", "draft_length", "rho"]]
        assert table["formula"][run] == (1 - a ** (gamma + 1)) / (1 - a) / (1 + gamma * rho)
        assert table["formula_length"][run] == formulas.formula_length(a, rho)


def test_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a=1\.5"):
        formulas.tokens_per_call(1.5, 3)
    with pytest.raises(ValueError, match="gamma=-1"):
        formulas.tokens_per_call(0.5, -1)
