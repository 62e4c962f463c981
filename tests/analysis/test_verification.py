"""Verification laws: lossless by exact enumeration, acceptance by closed form, walks by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from analysis.decoding import laws as verification
from analysis.decoding.laws import Floats

V = 3
SEEDS = range(6)


def midpoints(breaks: Floats) -> list[tuple[float, float]]:
    """Cut [0, 1) at the breaks; return the middle and the length of each piece."""
    edges = np.unique(np.clip(np.concatenate([[0.0, 1.0], breaks]), 0, 1))
    return [((a + b) / 2, b - a) for a, b in itertools.pairwise(edges.tolist())]


def distributions(seed: int) -> tuple[Floats, Floats]:
    """Target and draft for the first, the second and the third token, by what came before."""
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.full(V, 0.7), size=(3, V, V))
    q = generator.dirichlet(np.full(V, 0.7), size=(3, V, V))
    if seed == 0:
        q[0, 0, 0], p[0, 0, 0] = [0.5, 0.5, 0.0], [0.0, 0.2, 0.8]  # neither covers the other
    if seed == 1:
        q = p.copy()
    return p, q


def rows(at: int, text: tuple[int, ...]) -> tuple[int, int, int]:
    """Index of the distribution of token `at` after `text`."""
    known = (*text[:at], 0, 0)
    return at, known[0], known[1]


def enumerate_first_two(p: Floats, q: Floats, gamma: int, also: np.ndarray | None = None) -> Floats:
    """The exact law (V, V) of the first two tokens, by enumerating drafts and uniform numbers.

    Where a call emits one token only, the second is drawn from the target as the next call would.
    """
    law = np.zeros((V, V))
    for drafts in itertools.product(range(V), repeat=gamma):
        prior = np.prod([q[rows(i, drafts)][y] for i, y in enumerate(drafts)])
        if prior == 0:
            continue
        py = np.array([p[rows(i, drafts)][y] for i, y in enumerate(drafts)])
        qy = np.array([q[rows(i, drafts)][y] for i, y in enumerate(drafts)])
        every = [p[rows(i, drafts)] for i in range(gamma + 1)]
        every += [np.maximum(p[rows(i, drafts)] - q[rows(i, drafts)], 0) for i in range(gamma)]
        ends = np.concatenate([np.cumsum(row) / max(row.sum(), 1e-300) for row in every])
        for pieces in itertools.product(
            *(midpoints(np.array([a / b])) for a, b in zip(py, qy, strict=True))
        ):
            for u, width in midpoints(ends):
                verdict = verification.speculative_sampling(
                    py,
                    qy,
                    np.array([piece[0] for piece in pieces]),
                    lambda a, d=drafts: (p[rows(a, d)], q[rows(a, d)] if a < gamma else None),
                    lambda _, u=u: u,
                    also,
                )
                text = (*drafts[: verdict[0]], verdict[1])
                weight = prior * width * np.prod([piece[1] for piece in pieces])
                if len(text) == 1:
                    law[text[0]] += weight * p[rows(1, text)]
                else:
                    law[text[:2]] += weight
    return law


@pytest.mark.parametrize("gamma", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_speculative_sampling_is_lossless(seed: int, gamma: int) -> None:
    p, q = distributions(seed)
    joint = np.array([[p[0, 0, 0][a] * p[rows(1, (a,))][b] for b in range(V)] for a in range(V)])
    np.testing.assert_allclose(enumerate_first_two(p, q, gamma), joint, atol=1e-12)


def test_tokens_accepted_beside_the_test_add_exactly_their_rejected_draws() -> None:
    p, q = distributions(2)
    law = enumerate_first_two(p, q, 1, also=np.array([True])).sum(1)
    np.testing.assert_allclose(law, q[0, 0, 0], atol=1e-12)  # everything drafted is kept


@pytest.mark.parametrize("seed", SEEDS)
def test_first_draft_is_accepted_with_one_minus_total_variation(seed: int) -> None:
    p, q = (d[0, 0, 0] for d in distributions(seed))
    accepted = 0.0
    for y in np.flatnonzero(q):
        accepted += sum(
            width * q[y]
            for u, width in midpoints(np.array([p[y] / q[y]]))
            if verification.sampling_accepts(p[y : y + 1], q[y : y + 1], np.array([u]))[0]
        )
    assert accepted == pytest.approx(1 - np.abs(p - q).sum() / 2, abs=1e-12)


def simplex(cells: int) -> Floats:
    """Midpoints of equal triangles that tile the simplex: the law of e / sum(e), e from Exp(1)."""
    up = [(i + 1 / 3, j + 1 / 3) for i in range(cells) for j in range(cells - i)]
    down = [(i + 2 / 3, j + 2 / 3) for i in range(cells) for j in range(cells - i - 1)]
    ij = np.array(up + down) / cells
    return np.column_stack([ij, 1 - ij.sum(1)])


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_races_are_lossless_and_accept_as_the_closed_form_says(seed: int) -> None:
    p, q = (d[0, 0, 0] for d in distributions(seed))
    log_times = np.log(simplex(500))  # 250,000 equally probable cells
    target = verification.race(np.log(p) + 5.0, log_times)  # logits need not be normalised
    drafted = verification.race(np.log(q), log_times)
    tolerance = 0.005  # cells on a border: at most 3 lines of 500 cells each, halves cancel
    np.testing.assert_allclose(np.bincount(target, minlength=V) / len(target), p, atol=tolerance)
    np.testing.assert_allclose(np.bincount(drafted, minlength=V) / len(target), q, atol=tolerance)
    closed = sum(1 / np.maximum(p / p[i], q / q[i]).sum() for i in range(V))
    assert np.mean(target == drafted) == pytest.approx(closed, abs=tolerance)
    for a, b in itertools.product(range(V), repeat=2):  # whatever is drafted, the target speaks
        assert verification.match([a], [b, 2]) == ((1, 2) if a == b else (0, b))


def test_races_of_two_positions_have_the_joint_law() -> None:
    p, _ = distributions(5)
    log_times = np.log(simplex(120))
    first = np.bincount(verification.race(np.log(p[0, 0, 0]), log_times), minlength=V)
    second = [
        np.bincount(verification.race(np.log(p[1, a, 0]), log_times), minlength=V) for a in range(V)
    ]
    law = np.array([first[a] * second[a] for a in range(V)]) / len(log_times) ** 2
    joint = p[0, 0, 0][:, None] * p[1, :, 0]
    np.testing.assert_allclose(law, joint, atol=0.02)


def test_greedy_laws_stop_at_the_first_failure() -> None:
    assert verification.match([4, 5, 6], [4, 5, 7, 8]) == (2, 7)
    assert verification.match([4, 5, 7], [4, 5, 7, 8]) == (3, 8)
    assert verification.match([], [9]) == (0, 9)
    accepts = np.array([True, False, True])
    assert verification.relaxed(accepts, [1, 2, 3, 4]) == (1, 2)
    assert verification.relaxed(accepts[:0], [9]) == (0, 9)


def test_impossible_rejection_and_rounding_leave_a_token_of_the_target() -> None:
    p = np.array([0.25, 0.75, 0.0])
    assert verification.pick(verification.residual(p, p), 0.5) == 1
    assert verification.pick(p, np.nextafter(1.0, 0.0)) == 1  # never the token without mass
    assert verification.pick(np.array([0.0, 1.0]), 0.0) == 1


def test_history_skips_bonus_positions() -> None:
    yes, no = True, False
    # a call of 2: both accepted, position 2 is the bonus and its failure is never seen
    assert verification.history([yes, yes, no, yes, no, yes, no, yes], 2) == [
        (0, 2, 2),
        (3, 2, 1),
        (5, 2, 1),
        (7, 0, 0),
    ]
    assert verification.history([], 2) == []
    assert verification.history([no], 5) == [(0, 0, 0)]
