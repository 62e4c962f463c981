"""Areas under the curve of acceptance, against all pairs of steps and copies written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis.acceptance.ranking import SCORES, pair_wins, ranking, scores
from analysis.acceptance.realised import judge
from analysis.rules import Additive, StrictGreedy
from analysis.statistics.bootstrap import PromptBootstrap
from tests.analysis.test_coverage import steps_of

LENGTHS = (8, 5, 20, 7)
PROMPTS = np.repeat(range(4), LENGTHS)


def area(score: np.ndarray, accepted: np.ndarray) -> float:
    """All pairs, ties half."""
    up, down = score[accepted][:, None], score[~accepted][None]
    return float(np.mean((up > down) + 0.5 * (up == down))) if up.size and down.size else np.nan


def test_pairs_of_prompts() -> None:
    rng = np.random.default_rng(0)
    high, low = rng.integers(0, 5, 30) / 2.0, rng.integers(0, 5, 25) / 2.0
    high[0], low[:2] = np.inf, (-np.inf, np.inf)
    high_of, low_of = rng.integers(0, 7, 30), rng.integers(0, 7, 25)
    found = pair_wins(high, high_of, low, low_of, 7)
    for i in range(7):
        for j in range(7):
            a, b = high[high_of == i][:, None], low[low_of == j][None]
            assert found[i, j] == np.sum((a > b) + 0.5 * (a == b))


@pytest.mark.parametrize("rule", [StrictGreedy(), Additive(0.1)], ids=str)
def test_areas_and_their_intervals(rule: object) -> None:
    rng = np.random.default_rng(2)
    z = (2 * rng.standard_normal((sum(LENGTHS), 9))).astype(np.float32)
    w = (z + 0.8 * rng.standard_normal(z.shape)).astype(np.float32)
    steps, distances = steps_of(z, w, 9)
    found = {name: judge(steps, [rule], name, distances[name])[0] for name in ("kl", "tv")}  # type: ignore[list-item]
    ranked = scores(steps, found["kl"], found["tv"], distances["tv"])
    assert tuple(ranked) == SCORES
    p = np.sort(np.exp(steps.target.log_probs), axis=1)
    np.testing.assert_allclose(ranked["margin"], p[:, -1] - p[:, -2])
    if rule == StrictGreedy():
        np.testing.assert_allclose(
            ranked["tv_slack"], ranked["margin"] / 2 - distances["tv"], atol=1e-12
        )
    bootstrap = PromptBootstrap(PROMPTS, 30, 0.9, 0)
    frame = ranking(found, ranked, bootstrap).set_index(["over", "score"])
    accepted = found["kl"].accepted
    chosen = ~(found["kl"].certified | found["tv"].certified)
    assert 0 < chosen.sum() < len(chosen)
    for name, score in ranked.items():
        row = frame.loc[("uncertified", name)]
        assert row["value"] == pytest.approx(area(score[chosen], accepted[chosen]))
        assert frame.loc[("all", name), "value"] == pytest.approx(area(score, accepted))
        draws = []
        for weights in bootstrap.weights:
            copies = np.repeat(np.flatnonzero(chosen), weights[PROMPTS[chosen]].astype(int))
            draws.append(area(score[copies], accepted[copies]))
        low, high = bootstrap.interval(np.array(draws))
        assert (row["ci_low"], row["ci_high"]) == (pytest.approx(low), pytest.approx(high))
    assert frame.loc["uncertified", "steps"].unique().tolist() == [chosen.sum()]
    assert frame.loc["all", "accepted"].unique() == pytest.approx(accepted.mean())
    # certified steps are accepted, so that all steps together flatter the slack
    assert frame.loc[("all", "slack"), "value"] > frame.loc[("uncertified", "slack"), "value"]


def test_nothing_to_rank() -> None:
    z = np.array([[2.0, 1.0, 0.0]] * sum(LENGTHS), dtype=np.float32)
    steps, distances = steps_of(z, z.copy(), 3)
    found = {name: judge(steps, [StrictGreedy()], name, distances[name])[0] for name in distances}
    ranked = scores(steps, found["kl"], found["tv"], distances["tv"])
    bootstrap = PromptBootstrap(PROMPTS, 10, 0.9, 0)
    frame = ranking(found, ranked, bootstrap)  # all certified and accepted
    assert frame["value"].isna().all()
    assert set(frame.loc[frame["over"] == "uncertified", "steps"]) == {0}
    none = {name: replace(one, certified=~one.certified) for name, one in found.items()}
    assert ranking(none, ranked, bootstrap)["value"].isna().all()
