"""What a drafter knows: calibration, areas and scores, and what stopping costs, by plain loops."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from analysis.acceptance.confidence import (
    Asked,
    Calibrated,
    DraftedSteps,
    fit_logistic,
    measures,
    odds,
    stopping_statistics,
)
from analysis.acceptance.stopping import depths_tested, level, stopped_calls
from analysis.beyond.drafter_side import certify_draft
from analysis.certificates.certify import certify
from analysis.report.acceptance_stopping import confidence_table, stopping_table
from analysis.report.pairs import Pairs
from analysis.report.text import number_text, share_text
from analysis.rules import StrictGreedy
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.trajectories import Trajectories
from analysis.topk import TopK
from tests.analysis.cases import dirichlet
from tests.analysis.test_coverage import steps_of

LENGTHS = (12,) * 24
ASKED = Asked(3, (0.5,), 0.8, (0.4,), (0.5,))


@pytest.fixture(scope="module")
def drafted() -> DraftedSteps:
    rng = np.random.default_rng(1)
    z = (3 * rng.standard_normal((sum(LENGTHS), 9))).astype(np.float32)
    w = (z + 0.7 * rng.standard_normal(z.shape)).astype(np.float32)
    steps, distances = steps_of(z, w, 9)
    position = np.concatenate([np.arange(n) for n in LENGTHS])
    return DraftedSteps(
        TopK.from_logits(w),
        distances["kl"],
        distances["tv"],
        steps.draft_rank == 1,
        Trajectories.from_positions(position),
    )


def walk(accepted: np.ndarray, gamma: int) -> list[int]:
    depths, at = [0] * len(accepted), 0
    while at < len(accepted):
        depth = 0
        while depth < gamma and at + depth < len(accepted):
            depths[at + depth] = depth + 1
            depth += 1
            if not accepted[at + depth - 1]:
                break
        else:
            at += 1  # the token behind the draft is not tested
        at += depth
    return depths


@pytest.mark.parametrize("gamma", [1, 2, 3, 40])
def test_depths_against_a_plain_walk(gamma: int) -> None:
    rng = np.random.default_rng(gamma)
    lengths = (9, 1, 30, 4)
    steps = Trajectories.from_positions(np.concatenate([np.arange(n) for n in lengths]))
    accepted = rng.random(sum(lengths)) < 0.7
    found = depths_tested(accepted, steps, gamma)
    for p in range(len(lengths)):
        assert found[steps.prompts == p].tolist() == walk(accepted[steps.prompts == p], gamma)


def test_measures_and_their_odds() -> None:
    q = TopK.from_probabilities(dirichlet(0, 40, 6, 0.5))
    found = measures(q)
    np.testing.assert_array_equal(found["certified"], certify_draft(q, StrictGreedy()))
    margin = q.probs[:, 0] - q.probs[:, 1]
    np.testing.assert_allclose(found["certified_tv"], margin / 2, atol=1e-12)
    gap = (np.sqrt(q.probs[:, 0]) - np.sqrt(q.probs[:, 1])) ** 2
    np.testing.assert_allclose(odds("certified", found["certified"]), np.log(gap / (1 - gap)))
    np.testing.assert_allclose(odds("certified_tv", found["certified_tv"]),
                               np.log(margin / (1 - margin)))  # fmt: skip
    assert odds("max_q", np.array([0.5, 1.0, 0.0])).tolist() == [0.0, 40.0, -40.0]
    assert measures(q, ("entropy",)).keys() == {"entropy"}
    two = measures(TopK.from_logits(q.probs, k=2), ("certified", "max_q"))  # all a decoder takes
    whole = measures(TopK.from_logits(q.probs), ("certified", "max_q"))
    for name, values in two.items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-12)


def test_a_logistic_function_is_found_again() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(40_000)
    accepted = rng.random(len(x)) < 1 / (1 + np.exp(-(0.4 + 1.7 * x)))
    assert fit_logistic(x, accepted) == pytest.approx((0.4, 1.7), abs=0.06)
    apart = fit_logistic(np.array([-1.0, 1.0]), np.array([False, True]))
    assert all(map(math.isfinite, apart))


def test_a_threshold_refuses_what_its_probability_does_not_exceed(drafted: DraftedSteps) -> None:
    learned = Calibrated.on(drafted, [], 0.5)
    sure = learned.probabilities(drafted.measures())["calibrated"]
    q0 = drafted.measures()["max_q"]
    for threshold in (0.3, 0.5, 0.9):
        np.testing.assert_array_equal(q0 > learned.largest_refused(threshold), sure > threshold)
    assert learned.largest_refused(0.0) == -math.inf
    assert learned.largest_refused(1.0) == math.inf


def test_each_half_of_the_prompts_serves_the_other(drafted: DraftedSteps) -> None:
    bootstrap = PromptBootstrap(drafted.trajectories.prompts, 30, 0.9, 0)
    frame = stopping_statistics(drafted, ASKED, bootstrap)
    fold = np.arange(len(LENGTHS)) % 2 == 0
    kept = np.zeros(len(drafted.kl), dtype=bool)
    covered = []
    for mine in (fold, ~fold):
        other = drafted.part(~mine)
        eps = level(other.kl, other.trajectories, 0.5, 0.8)
        own = mine[drafted.trajectories.prompts]
        kept[own] = drafted.measures()["certified"][own] > eps
        each = (drafted.kl[drafted.trajectories.prompts == p] for p in np.flatnonzero(mine))
        covered += [np.mean(kl <= eps) >= 0.5 for kl in each]
    row = frame[(frame["measure"] == "certified") & (frame["setting"] == "share")]
    row = row.set_index("statistic")["value"]
    accepted = drafted.accepted
    assert 0 < kept.sum() < len(kept)
    assert row["kept"] == pytest.approx(kept.mean())
    assert row["precision"] == pytest.approx(accepted[kept].mean())
    assert row["recall"] == pytest.approx(kept[accepted].mean())
    assert row["covered"] == pytest.approx(np.mean(covered))
    calls, count, hits = (c.sum() for c in stopped_calls(accepted, kept, drafted.trajectories, 3))
    assert row["tokens"] == pytest.approx(len(kept) / calls)
    assert row["wasted"] == pytest.approx((count - hits) / calls)
    # what is drafted below its level is accepted: nothing is left to chance there
    sure = kept & (drafted.kl < drafted.measures()["certified"])
    assert accepted[sure].all()


def test_areas_and_scores_by_depth(drafted: DraftedSteps) -> None:
    bootstrap = PromptBootstrap(drafted.trajectories.prompts, 30, 0.9, 0)
    frame = stopping_statistics(drafted, ASKED, bootstrap)
    known = frame[frame["setting"] == ""]
    depths = depths_tested(drafted.accepted, drafted.trajectories, 3)
    q0 = drafted.measures()["max_q"]
    for depth in (0, 1, 2, 3):
        at = depths == depth if depth else depths > 0
        row = known[(known["measure"] == "max_q") & (known["depth"] == depth)]
        row = row.set_index("statistic")["value"]
        up, down = q0[at & drafted.accepted][:, None], q0[at & ~drafted.accepted][None]
        assert row["auc"] == pytest.approx(np.mean((up > down) + 0.5 * (up == down)))
        assert row["brier"] == pytest.approx(np.mean((q0[at] - drafted.accepted[at]) ** 2))
    # the whole draft keeps every step
    whole = frame[(frame["measure"] == "whole")].set_index("statistic")["value"]
    assert whole["kept"] == 1
    assert whole["recall"] == 1


def test_total_variation_certifies_from_either_side() -> None:
    """Accepted wherever TV is below the drafter's own certificate, and not always above it."""
    rng = np.random.default_rng(3)
    p, q = dirichlet(1, 400, 5, 0.7), dirichlet(2, 400, 5, 0.7)
    mix = rng.random((400, 1))
    p = mix * p + (1 - mix) * q
    tv = 0.5 * np.abs(p - q).sum(axis=1)
    own = certify(TopK.from_probabilities(q), StrictGreedy(), divergence="tv").lower[:, 0]
    accepted = p.argmax(axis=1) == q.argmax(axis=1)
    assert accepted[tv < own].all()
    assert 0 < (tv < own).sum() < accepted.sum()
    assert not accepted[tv > own].all()


def test_the_tables_print_what_was_measured(drafted: DraftedSteps) -> None:
    bootstrap = PromptBootstrap(drafted.trajectories.prompts, 10, 0.9, 0)
    frame = stopping_statistics(drafted, ASKED, bootstrap)
    frame = frame.assign(target="T", prompts=24, few_prompts=True)
    nothing = [pd.DataFrame() for _ in range(4)]
    pairs = Pairs("D", ["T"], {}, *nothing, stopping=frame)
    table = stopping_table(pairs)
    known = confidence_table(pairs)
    assert table is not None
    assert known is not None
    rows = {(part.title, name): cells for part in table.sections for name, cells in part.rows}
    assert len(rows) == 1 + 2 + 2 + 2
    own = frame[(frame["measure"] == "max_q") & (frame["setting"] == "threshold")]
    own = own.set_index("statistic")["value"]
    cells = rows["With a threshold of its own", "largest probability q₀ ≤ 0.4"]
    assert cells[0].text == share_text(own["kept"])
    assert cells[-1].text == number_text(own["wasted"])
    assert {"measure", "at"} <= set(table.data)
    assert (table.data["setting"] != "").all()
    auc = known.sections[0].rows[0][1]
    value = frame[(frame["measure"] == "certified") & (frame["statistic"] == "auc")]
    assert [cell.text for cell in auc] == [number_text(one, 3) for one in value["value"]]
    empty = Pairs("D", ["T"], {}, *nothing)
    assert stopping_table(empty) is None
    assert confidence_table(empty) is None
