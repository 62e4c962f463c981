"""Accuracy by hand-made answers: paired proportions, what a finished answer costs, thresholds."""

from __future__ import annotations

import math
from itertools import product
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.decoding.answers import (
    ALL,
    Answered,
    accuracy,
    decide,
    decisions_in_words,
    differing,
    families,
    threshold_limits,
)
from analysis.decoding.finished import COSTS, finished_costs
from analysis.rules import Additive, Mars, StrictGreedy
from analysis.rules.rule import Rule
from analysis.statistics.bootstrap import PromptBootstrap
from analysis.statistics.proportions import (
    BINS,
    calibration_error,
    difference,
    holm,
    loss_p_value,
    mcnemar,
    proportion,
    reliability,
)

RUNS = pd.DataFrame(
    {
        "method": ["Autoregressive", "Strict greedy", "Additive"],
        "drafter": ["none", "model", "model"],
        "draft_length": [0, 3, 3],
        "temperature": 0.0,
        "baseline": 0,
        "exact": [True, True, False],
    }
)
RIGHT = {  # of items a0..a3 of task a, and b0 of task b
    0: [True, True, False, False, True],
    1: [True, True, False, False, True],
    2: [False, False, True, False, True],
}


def answered() -> Answered:
    cells = [(at, run, run == 2 and at < 3) for at in range(5) for run in range(3)]
    at, run, changed = (np.array(column) for column in zip(*cells, strict=True))
    ids = np.where(at < 4, "a", "b"), at.astype(str)
    data = pd.DataFrame({"task": ids[0], "item_id": ids[1], "run": run}).assign(
        answer=[f"answer {at}{'x' * changed}" for at, _, changed in cells],
        correct=[RIGHT[run][at] for at, run, _ in cells],
        draft_length=3 * (run > 0),
        temperature=0.0,
        n_tokens=10,
        nats_given_up=4.0 + changed,
        ended=at < 3,
        departures=5 * changed,
        common_prefix=np.where(changed, 2, 10),
        gap=np.where(changed, 0.5, math.nan),
        calls=np.where(run == 0, 9, 3),
        emitted=9,
    )
    seconds = data[["task", "item_id", "run"]].assign(seconds=1.0 / (1 + data["run"]))
    return Answered("target", ["a", "b"], RUNS, data, seconds)


def row(table: pd.DataFrame, task: str, run: int) -> pd.Series:
    return table[(table["task"] == task) & (table["run"] == run)].iloc[0]


def test_counts_by_task_and_of_all() -> None:
    table = accuracy(answered(), 50, 0.95, 0, 0.05)
    assert table["task"].unique().tolist() == ["a", "b", ALL]
    relaxed = row(table, "a", 2)
    assert (relaxed["items"], relaxed["right"], relaxed["lost"], relaxed["won"]) == (4, 1, 2, 1)
    assert relaxed["difference"] == -0.25
    assert relaxed["recovery"] == 0.5
    ends = [f"{of}_ci_{end}" for end in ("low", "high") for of in ("recovery", "difference")]
    low, worst, high, best = relaxed[ends]
    before = relaxed["accuracy"] - relaxed["difference"]
    assert (low, high) == pytest.approx((max(0.0, 1 + worst / before), 1 + best / before))
    assert relaxed["changed"] == 0.75
    assert relaxed["nats_given_up"] == pytest.approx(3 / 40)
    assert relaxed["cut"] == 0.25
    assert relaxed["departures"] == pytest.approx(15 / 40)
    assert relaxed["tokens_per_call"] == 3.0
    assert relaxed["speedup"] == pytest.approx(3.0)
    assert row(table, ALL, 2)["right"] == 2
    assert row(table, ALL, 2)["items"] == 5
    assert row(table, "b", 2)["difference"] == 0


def test_the_same_answers_lose_nothing_but_their_interval_has_a_width() -> None:
    table = accuracy(answered(), 50, 0.95, 0, 0.05)
    alone, strict = row(table, ALL, 0), row(table, ALL, 1)
    for one in (alone, strict):
        assert (one["lost"], one["won"], one["changed"], one["p_value"]) == (0, 0, 0.0, 1.0)
    assert strict["difference_ci_low"] < 0 < strict["difference_ci_high"]
    assert (alone["difference_ci_low"], alone["difference_ci_high"]) == (0.0, 0.0)
    assert alone["within"]
    assert not strict["within"]  # five items exclude no loss of 5 points
    low = row(accuracy(answered(), 10, 0.95, 0, 0.5), ALL, 2)["difference_ci_low"]
    assert not row(accuracy(answered(), 10, 0.95, 0, -low), ALL, 2)["within"]  # strictly
    assert row(accuracy(answered(), 10, 0.95, 0, -low + 1e-9), ALL, 2)["within"]


def test_no_call_no_right_answer_and_other_items() -> None:
    one = answered()
    one.data["calls"] = one.data["emitted"] = 0
    one.data["correct"] = False
    table = accuracy(one, 10, 0.95, 0, 0.05)
    assert table[["tokens_per_call", "tokens_per_call_ci_low", "recovery"]].isna().all(axis=None)
    assert (table["accuracy"] == 0).all()
    for frame in (one.data, one.seconds):
        frame.loc[(frame["run"] == 2) & (frame["item_id"] == "0"), "item_id"] = "9"
    with pytest.raises(ValueError, match="different items"):
        accuracy(one, 10, 0.95, 0, 0.05)


def test_differing_answers_stand_side_by_side() -> None:
    found = differing(answered())
    shown = ["method", "item_id", "alone", "answer", "alone_correct", "correct", "gap"]
    assert found[shown].to_numpy().tolist() == [
        ["Additive", "0", "answer 0", "answer 0x", True, False, 0.5],
        ["Additive", "1", "answer 1", "answer 1x", True, False, 0.5],
        ["Additive", "2", "answer 2", "answer 2x", False, True, 0.5],
    ]


RULES: list[Rule | None] = [None, StrictGreedy(), Additive(0.4), Additive(0.1), Additive(0.2),
                            Mars(0.8), Mars(0.95)]  # fmt: skip


def runs(rules: list[Rule | None] = RULES) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "method": ["alone" if rule is None else rule.label for rule in rules],
            "rule": rules,
            "exact": [rule is None or isinstance(rule, StrictGreedy) for rule in rules],
            "drafter": ["none" if rule is None else "model" for rule in rules],
            "draft_length": 4,
            "temperature": 0.0,
        }
    )


def table(counts: dict[int, tuple[int, int]], items: int = 300) -> pd.DataFrame:
    frame = runs().assign(task=ALL, run=range(len(RULES)), items=items)
    frame["lost"] = [counts.get(run, (0, 0))[0] for run in range(len(RULES))]
    frame["seconds_ratio_ci_high"] = 0.9
    frame["won"] = [counts.get(run, (0, 0))[1] for run in range(len(RULES))]
    other = frame.assign(task="facts", lost=items, won=0)  # of one task: not looked at
    return pd.concat([other, frame])


def test_thresholds_go_from_strict_to_relaxed() -> None:
    found = families(runs())
    assert found["family"].tolist() == ["additive"] * 3 + ["mars"] * 2
    assert found["parameter"].tolist() == ["t"] * 3 + ["theta"] * 2
    assert found["value"].tolist() == [0.1, 0.2, 0.4, 0.95, 0.8]
    assert found["run"].tolist() == [3, 4, 2, 6, 5]
    other = runs()
    other.loc[2, "draft_length"] = 8  # another family
    assert families(other).groupby("group")["run"].apply(list).tolist() == [[2], [3, 4], [6, 5]]
    assert families(runs([None, StrictGreedy()])).empty


def test_the_largest_excluded_threshold_and_the_first_fall() -> None:
    found = decide(table({3: (5, 5), 4: (10, 8), 2: (40, 2), 6: (3, 3), 5: (20, 16)}), runs(), 0.05,
                   0.95)  # fmt: skip
    assert found["excluded"].tolist() == [True, True, False, True, True]
    assert found["falls"].tolist() == [False, False, True, False, False]
    one, other = threshold_limits(found).to_dict("records")
    assert (one["family"], one["largest"], one["first"]) == ("additive", 0.2, 0.4)
    assert (other["largest"], math.isnan(other["first"])) == (0.8, True)
    assert decisions_in_words(found) == {3: "excluded", 4: "excluded", 2: "falls", 6: "excluded",
                               5: "excluded"}  # fmt: skip


def test_a_threshold_behind_one_that_failed_is_not_counted() -> None:
    """Fixed order: t = 0.2 is not excluded, so t = 0.4 does not count though it is."""
    found = decide(table({3: (2, 2), 4: (30, 5), 2: (4, 4)}), runs(), 0.05, 0.95)
    part = found[found["family"] == "additive"]
    assert part["excluded"].tolist() == [True, False, True]
    assert part["up_to"].tolist() == [True, False, False]
    assert threshold_limits(found)["largest"].iloc[0] == 0.1
    assert part["falls"].tolist() == [False, True, False]
    assert part["down_to"].tolist() == [False, False, False]  # a fall that heals is no fall
    assert math.isnan(threshold_limits(found)["first"].iloc[0])
    assert decisions_in_words(found)[4] == decisions_in_words(found)[2] == "open"


def test_bounds_are_one_sided_and_the_margin_itself_is_not_excluded() -> None:
    found = decide(table({3: (12, 4)}), runs(), 0.05, 0.95).set_index("run").loc[3]
    z = NormalDist().inv_cdf(0.95)
    mean, size = (4 - 12) / 302, 302
    spread = math.sqrt((16 + 1) / size - mean * mean)
    assert found["worst"] == pytest.approx(mean - z * spread / math.sqrt(size), abs=1e-12)
    assert found["best"] == pytest.approx(mean + z * spread / math.sqrt(size), abs=1e-12)
    assert found["worst"] > difference(12, 4, 300, 0.95)[0]  # than the two-sided end
    for step, excluded in ((-1e-9, False), (0.0, False), (1e-9, True)):
        margin = -float(found["worst"]) + step
        beside = decide(table({3: (12, 4)}), runs(), margin, 0.95).set_index("run")
        assert beside.loc[3, "excluded"] == excluded


def test_holm_rejects_what_the_step_down_procedure_rejects() -> None:
    """The least p at level / n, the next at level / (n - 1), ...; the first that fails ends it."""
    rng = np.random.default_rng(0)
    for size in (1, 2, 9):
        for _ in range(50):
            p = rng.choice([0.0, 0.001, 0.0125, 0.025, 0.05, 0.3, 1.0], size=size).tolist()
            corrected = holm(p)
            for level in (0.01, 0.04, 0.06):
                rejected, order = set(), sorted(range(size), key=lambda at: p[at])
                for step, at in enumerate(order):
                    if p[at] * (size - step) > level:
                        break
                    rejected.add(at)
                assert {at for at in range(size) if corrected[at] <= level} == rejected
    assert holm([]) == []


def test_the_p_value_of_a_loss_belongs_to_its_one_sided_bound() -> None:
    for lost, won, items in ((0, 0, 10), (20, 21, 316), (40, 15, 316), (316, 0, 316)):
        for confidence in (0.9, 0.95, 0.99):
            worst, _ = difference(lost, won, items, 2 * confidence - 1)
            if worst > -1:
                assert loss_p_value(lost, won, items, -worst) == pytest.approx(1 - confidence)


def test_rules_are_excluded_together_by_holms_correction() -> None:
    """Of nine rules on SmolLM2, 316 items, additive 0.1 stays and multiplicative 0.5 does not."""
    counts = {3: (20, 21), 4: (32, 23), 2: (71, 15), 6: (19, 17), 5: (33, 20)}
    found = decide(table(counts, 316), runs(), 0.05, 0.95).set_index("run")
    assert found["excluded"].to_dict() == {3: True, 4: False, 2: False, 6: True, 5: False}
    assert found["p_holm"][3] == pytest.approx(5 * 0.00456, rel=1e-3)
    assert found["p_holm"][6] == pytest.approx(4 * 0.01113, rel=1e-3)
    assert found["up_to_together"].to_dict() == {3: True, 4: False, 2: False, 6: True, 5: False}
    nine = [
        (20, 21),
        (32, 23),
        (19, 17),
        (33, 20),
        (21, 17),
        (24, 19),
        (30, 19),
        (40, 15),
        (71, 15),
    ]
    corrected = holm([loss_p_value(*of, 316, 0.05) for of in nine])
    assert [round(p, 3) for p in corrected[:5:2]] == [0.041, 0.089, 0.198]
    # a threshold counts only with all that are stricter
    healed = decide(table({3: (30, 5), 4: (4, 4)}), runs(), 0.05, 0.95).set_index("run")
    assert (healed["p_holm"][4] < 0.05, healed["up_to_together"][4]) == (True, False)
    # a single rule is not corrected
    single = decide(table({})[lambda frame: frame["run"] < 3], runs()[:3], 0.05, 0.95)
    assert single["p_holm"].tolist() == [loss_p_value(0, 0, 300, 0.05)]
    none = decide(table({}), runs([None, StrictGreedy()]), 0.05, 0.95)
    assert none.empty


ALONE = pd.DataFrame([(10, True, 9, 2.0), (20, True, 19, 4.0), (30, False, 29, 6.0)], columns=COSTS)
MINE = pd.DataFrame([(12, True, 4, 1.0), (30, False, 9, 2.0), (30, False, 9, 2.0)], columns=COSTS)
BOOTSTRAP = PromptBootstrap(np.arange(3), 400, 0.98, 0)


def test_ratios_by_hand() -> None:
    found = finished_costs(MINE.assign(correct=[True, False, True]), ALONE, BOOTSTRAP)
    assert found["length_ratio"] == 72 / 60
    assert found["cut"] == pytest.approx(2 / 3)
    assert found["calls_finished"] == 22  # one answer ended, and the cut ones are paid for
    assert found["seconds_finished"] == 5.0
    assert found["calls_ratio"] == pytest.approx(22 / (57 / 2))
    assert found["seconds_ratio"] == pytest.approx(5.0 / 6.0)  # half the time, and half as many end
    assert found["right_per_second"] == pytest.approx(2 / 5)
    # pairs stay together: resamples of the third prompt alone and the second alone are the ends
    assert (found["length_ratio_ci_low"], found["length_ratio_ci_high"]) == (1.0, 1.5)
    assert "right_per_second" not in finished_costs(MINE, ALONE, BOOTSTRAP)


def test_no_answer_ends() -> None:
    """No number, and resamples without an answer that ended leave the others their interval."""
    found = finished_costs(MINE.assign(ended=False), ALONE, BOOTSTRAP)
    assert found["cut"] == 1.0
    assert np.isnan([found["calls_finished"], found["seconds_ratio"]]).all()
    assert np.isnan(found["seconds_ratio_ci_low"])
    same = finished_costs(ALONE, ALONE, BOOTSTRAP)  # the target beside itself costs itself
    for name in ("length_ratio", "calls_ratio", "seconds_ratio"):
        assert [same[name], same[f"{name}_ci_low"], same[f"{name}_ci_high"]] == [1.0] * 3
    one = finished_costs(MINE, ALONE, BOOTSTRAP)
    assert np.isfinite([one["seconds_ratio_ci_low"], one["seconds_ratio_ci_high"]]).all()


@pytest.mark.parametrize(("right", "items"), [(0, 1), (1, 1), (3, 7), (50, 100), (299, 300)])
def test_the_interval_of_a_proportion_is_scipys(right: int, items: int) -> None:
    wanted = stats.binomtest(right, items).proportion_ci(0.9, method="wilson")
    assert proportion(right, items, 0.9) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def test_mcnemar_is_the_enumeration_of_fair_coins() -> None:
    for lost, won in product(range(5), repeat=2):
        pairs = lost + won
        coins = [sum(toss) for toss in product((0, 1), repeat=pairs)]
        as_far = [abs(2 * heads - pairs) >= abs(lost - won) for heads in coins]
        assert mcnemar(lost, won) == pytest.approx(sum(as_far) / len(as_far), abs=1e-15)
    assert mcnemar(400, 300) == pytest.approx(stats.binomtest(300, 700).pvalue, rel=1e-9)


def test_the_paired_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Also where hardly a pair is discordant, and Wald's interval would have no width."""
    rng = np.random.default_rng(0)
    for lost, won, items in ((0.002, 0.0, 300), (0.05, 0.01, 100), (0.1, 0.1, 50), (0.3, 0.1, 80)):
        drawn = rng.multinomial(items, [lost, won, 1 - lost - won], size=2000)
        ends = [difference(int(c), int(b), items, 0.95) for c, b, _ in drawn]
        held = [low <= won - lost <= high for low, high in ends]
        assert np.mean(held) >= 0.93, (lost, won, items)


def test_edges() -> None:
    assert difference(0, 0, 1, 0.95)[0] < 0 < difference(0, 0, 1, 0.95)[1]
    assert difference(1, 0, 1, 0.95)[0] == -1.0
    low, high = difference(3, 8, 40, 0.95)
    assert difference(8, 3, 40, 0.95) == pytest.approx((-high, -low))
    assert proportion(0, 5, 0.95)[0] == 0.0
    assert proportion(5, 5, 0.95)[1] == 1.0
    for wrong in ((2, 2, 3), (0, 0, 0), (-1, 0, 3)):
        with pytest.raises(ValueError, match="not a paired table"):
            difference(*wrong, 0.95)
    for right, items in ((1, 0), (2, 1), (-1, 1)):
        with pytest.raises(ValueError, match="not a proportion"):
            proportion(right, items, 0.95)


def test_the_calibration_error_is_the_weighted_gap_of_equal_bins() -> None:
    """By its definition, bin by bin; an edge belongs to the bin above it, 1 to the last."""
    rng = np.random.default_rng(0)
    q = np.append(rng.random(500), [0.0, 0.1, 0.5, 0.9, 1.0])
    accepted, prompts = rng.random(505) < q**2, rng.integers(3, size=505)
    wanted = 0.0
    for low in range(BINS):
        here = (q >= low / BINS) & ((q < (low + 1) / BINS) | (low == BINS - 1))
        wanted += here.mean() * abs(accepted[here].mean() - q[here].mean())
    sums = reliability(q, accepted, prompts)
    assert sums.shape == (3, BINS, 3)
    assert calibration_error(sums.sum(axis=0)) == pytest.approx(wanted, abs=1e-12)
    calibrated = reliability(np.full(4, 0.75), np.arange(4) < 3, np.zeros(4, dtype=np.intp))
    assert calibration_error(calibrated) == 0
    for wrong in (-1e-9, 1 + 1e-9, np.nan):
        with pytest.raises(ValueError, match="outside"):
            reliability(np.array([0.5, wrong]), np.ones(2, dtype=bool), np.zeros(2, dtype=np.intp))
