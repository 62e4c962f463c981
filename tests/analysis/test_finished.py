"""What a finished answer costs, by hand: three prompts, of which the limit cuts some answers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.decoding.finished import COSTS, finished
from analysis.statistics.bootstrap import PromptBootstrap

ALONE = pd.DataFrame([(10, True, 9, 2.0), (20, True, 19, 4.0), (30, False, 29, 6.0)], columns=COSTS)
MINE = pd.DataFrame([(12, True, 4, 1.0), (30, False, 9, 2.0), (30, False, 9, 2.0)], columns=COSTS)
BOOTSTRAP = PromptBootstrap(np.arange(3), 400, 0.98, 0)


def test_ratios_by_hand() -> None:
    found = finished(MINE.assign(correct=[True, False, True]), ALONE, BOOTSTRAP)
    assert found["length_ratio"] == 72 / 60
    assert found["cut"] == pytest.approx(2 / 3)
    assert found["calls_finished"] == 22  # one answer ended, and the cut ones are paid for
    assert found["seconds_finished"] == 5.0
    assert found["calls_ratio"] == pytest.approx(22 / (57 / 2))
    assert found["seconds_ratio"] == pytest.approx(5.0 / 6.0)  # half the time, and half as many end
    assert found["right_per_second"] == pytest.approx(2 / 5)
    # pairs stay together: resamples of the third prompt alone and the second alone are the ends
    assert (found["length_ratio_ci_low"], found["length_ratio_ci_high"]) == (1.0, 1.5)
    assert "right_per_second" not in finished(MINE, ALONE, BOOTSTRAP)


def test_the_target_beside_itself_costs_itself() -> None:
    found = finished(ALONE, ALONE, BOOTSTRAP)
    for name in ("length_ratio", "calls_ratio", "seconds_ratio"):
        assert [found[name], found[f"{name}_ci_low"], found[f"{name}_ci_high"]] == [1.0] * 3


def test_no_answer_ends() -> None:
    """No number, and resamples without an answer that ended leave the others their interval."""
    found = finished(MINE.assign(ended=False), ALONE, BOOTSTRAP)
    assert found["cut"] == 1.0
    assert np.isnan([found["calls_finished"], found["seconds_ratio"]]).all()
    assert np.isnan(found["seconds_ratio_ci_low"])
    one = finished(MINE, ALONE, BOOTSTRAP)
    assert np.isfinite([one["seconds_ratio_ci_low"], one["seconds_ratio_ci_high"]]).all()
