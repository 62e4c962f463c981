"""The range of the first rejected probability against tails that are listed one by one.

A tail with the least or the greatest b has few different probabilities: p_K, theta or a little
more, zero, and two others, which its sum and its entropy determine. All such tails of six tokens
are listed, and each is certified as a full distribution.
"""

import itertools
import math

import numpy as np

from analysis.certificates.certify import certify
from analysis.rules import AbsoluteThreshold
from analysis.topk import TopK
from benchmarks.soundness import tail_entropy, targets

N = 6
ABOVE = 1 + 1e-9  # a token that is accepted, but only just
COUNTS = np.array(
    [
        (at_p_k, above, at_theta, x, y)
        for at_p_k, above, at_theta, x, y in itertools.product(
            range(N), range(N), range(2), range(1, N), range(1, N)
        )
        if at_p_k + above + at_theta + x + y <= N
    ]
)


def surprise(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, -x * np.log(np.maximum(x, 1e-300)), 0.0)


def listed_tails(mass: float, h: float, p_k: float, theta: float) -> np.ndarray:
    """Every (M, N) tail of this mass and entropy that has the said few probabilities."""
    fixed = np.array([p_k, theta * ABOVE, theta])
    many_x, many_y = COUNTS[:, 3], COUNTS[:, 4]
    mass_left = mass - COUNTS[:, :3] @ fixed
    h_left = h - COUNTS[:, :3] @ surprise(fixed)
    # the entropy falls as x rises from the common mean to where y is 0
    low, high = mass_left / (many_x + many_y), mass_left / many_x
    for _ in range(60):
        x = 0.5 * (low + high)
        more = many_x * surprise(x) + many_y * surprise((mass_left - many_x * x) / many_y) > h_left
        low, high = np.where(more, x, low), np.where(more, high, x)
    y = (mass_left - many_x * low) / many_y
    levels = np.column_stack([np.broadcast_to(fixed, (len(COUNTS), 3)), low, y, np.zeros(len(y))])
    counts = np.column_stack([COUNTS, N - COUNTS.sum(axis=1)])
    tails = np.array([np.repeat(*row) for row in zip(levels, counts, strict=True)])
    valid = (tails >= 0).all(axis=1) & (tails <= p_k).all(axis=1)
    valid &= np.abs(tails.sum(axis=1) - mass) < 1e-12
    return tails[valid & (np.abs(tail_entropy(tails) - h) < 1e-12)]


def compare(p: np.ndarray, k: int, theta: float) -> tuple[float, float] | None:
    """Assert that the listed tails are inside; return the listed width and the project's."""
    stored = TopK.from_probabilities(p[None], k=k)
    rule = AbsoluteThreshold(theta)
    found = certify(stored, [rule])
    lower, upper = found.lower[0, 0], found.upper[0, 0]
    if lower == upper:
        return None
    tails = listed_tails(p[k:].sum(), float(tail_entropy(p[None, k:])[0]), p[k - 1], theta)
    full = np.column_stack([np.broadcast_to(p[:k], (len(tails), k)), tails])
    truth = np.append(
        certify(TopK.from_probabilities(full), [rule]).lower,
        certify(TopK.from_probabilities(p[None]), [rule]).lower,
    )
    assert lower <= truth.min() * (1 + 1e-9)
    assert upper >= truth.max() * (1 - 1e-9)
    assert math.isinf(upper) == math.isinf(truth.max())  # unbounded only if a tail is all accepted
    return (
        (float(truth.max() - truth.min()), float(upper - lower)) if math.isfinite(upper) else None
    )


def cases(flat: bool) -> list[tuple[float, float]]:
    rng = np.random.default_rng(7)
    found = []
    while len(found) < 40:
        k = int(rng.integers(1, 4))
        p = targets(rng, 1, k + N)[0]
        if flat:
            p = -np.sort(-rng.dirichlet(np.full(k + N, 20.0)))
        else:
            p[0] += 2.0  # p_K is below every level, so that no unseen token is active
            p /= p.sum()
            k += 1
            p = np.append(p, 0.0)
        if p[k] < 1e-6:
            continue
        widths = compare(p, k, float(p[k - 1] * rng.uniform(0.05, 0.99)))
        if widths is not None and widths[1] > 1e-6:
            found.append(widths)
    return found


def test_intervals_are_as_narrow_as_can_be() -> None:
    """But for the allowed errors of T and H, where the active tokens are all stored."""
    for listed, width in cases(flat=False):
        assert width < listed * 1.001 + 1e-6


def test_intervals_are_nearly_so_where_unseen_tokens_are_active() -> None:
    """The other tokens are then the worst that T allows, whatever the entropy."""
    ratios = [width / listed for listed, width in cases(flat=True)]
    assert np.median(ratios) < 1.2
    assert max(ratios) < 2.1
