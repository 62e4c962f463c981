"""Where a loss is excluded and where accuracy falls, on made-up counts."""

from __future__ import annotations

import math
from statistics import NormalDist

import pandas as pd
import pytest

from analysis.decoding.answers import ALL
from analysis.decoding.margins import decide, families, limits, verdicts
from analysis.rules import Additive, Mars, StrictGreedy
from analysis.rules.rule import Rule
from analysis.statistics.paired import difference

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
    frame["won"] = [counts.get(run, (0, 0))[1] for run in range(len(RULES))]
    other = frame.assign(task="facts", lost=items, won=0)  # of one task: not looked at
    return pd.concat([other, frame])


def test_thresholds_go_from_strict_to_relaxed() -> None:
    additive, mars = families(runs())
    assert (additive.name, additive.parameter, additive.values) == (
        "additive",
        "t",
        (0.1, 0.2, 0.4),
    )
    assert additive.runs == (3, 4, 2)
    assert (mars.parameter, mars.values, mars.runs) == ("theta", (0.95, 0.8), (6, 5))


def test_other_draft_lengths_are_other_families() -> None:
    frame = runs()
    frame.loc[2, "draft_length"] = 8
    assert [one.runs for one in families(frame)] == [(2,), (3, 4), (6, 5)]
    assert families(runs([None, StrictGreedy()])) == []


def test_the_largest_excluded_threshold_and_the_first_fall() -> None:
    found = decide(table({3: (5, 5), 4: (10, 8), 2: (40, 2), 6: (3, 3), 5: (20, 16)}), runs(), 0.05,
                   0.95)  # fmt: skip
    assert found["excluded"].tolist() == [True, True, False, True, True]
    assert found["falls"].tolist() == [False, False, True, False, False]
    one, other = limits(found).to_dict("records")
    assert (one["family"], one["largest"], one["first"]) == ("additive", 0.2, 0.4)
    assert (other["largest"], math.isnan(other["first"])) == (0.8, True)
    assert verdicts(found) == {3: "excluded", 4: "excluded", 2: "falls", 6: "excluded",
                               5: "excluded"}  # fmt: skip


def test_a_threshold_behind_one_that_failed_is_not_counted() -> None:
    """Fixed order: t = 0.2 is not excluded, so t = 0.4 does not count though it is."""
    found = decide(table({3: (2, 2), 4: (30, 5), 2: (4, 4)}), runs(), 0.05, 0.95)
    part = found[found["family"] == "additive"]
    assert part["excluded"].tolist() == [True, False, True]
    assert part["up_to"].tolist() == [True, False, False]
    assert limits(found)["largest"].iloc[0] == 0.1
    assert part["falls"].tolist() == [False, True, False]
    assert part["down_to"].tolist() == [False, False, False]  # a fall that heals is no fall
    assert math.isnan(limits(found)["first"].iloc[0])
    assert verdicts(found)[4] == verdicts(found)[2] == "open"


def test_nothing_is_excluded_where_the_strictest_is_not() -> None:
    found = decide(table({3: (30, 5), 4: (31, 5), 2: (32, 5)}), runs(), 0.05, 0.95)
    first = limits(found).iloc[0]
    assert math.isnan(first["largest"])
    assert first["first"] == 0.1  # all fall: the first is the strictest


def test_bounds_are_one_sided() -> None:
    found = decide(table({3: (12, 4)}), runs(), 0.05, 0.95).set_index("run").loc[3]
    z = NormalDist().inv_cdf(0.95)
    mean, size = (4 - 12) / 302, 302
    spread = math.sqrt((16 + 1) / size - mean * mean)
    assert found["worst"] == pytest.approx(mean - z * spread / math.sqrt(size), abs=1e-12)
    assert found["best"] == pytest.approx(mean + z * spread / math.sqrt(size), abs=1e-12)
    assert found["worst"] > difference(12, 4, 300, 0.95)[0]  # than the two-sided end


@pytest.mark.parametrize(("step", "excluded"), [(-1e-9, False), (0.0, False), (1e-9, True)])
def test_the_margin_itself_is_not_excluded(step: float, excluded: bool) -> None:
    worst, _ = difference(12, 4, 300, 2 * 0.95 - 1)
    found = decide(table({3: (12, 4)}), runs(), -worst + step, 0.95).set_index("run")
    assert found.loc[3, "excluded"] == excluded


def test_three_hundred_items_resolve_about_four_points() -> None:
    """One answer in eight changes its verdict, as many won as lost: 3.5 points and no less."""
    counts = table({3: (19, 19)})
    assert decide(counts, runs(), 0.035, 0.95).set_index("run").loc[3, "excluded"]
    assert not decide(counts, runs(), 0.033, 0.95).set_index("run").loc[3, "excluded"]
