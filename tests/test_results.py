"""Every stage computes what it computed when its version was given: see tests.results."""

import json

import pytest

from pipeline.study import STAGES
from tests import results
from tests.results.study import FixedStudy

RESULTS = {
    "data": {"position": [0, 1], "accepted": [True, None], "lower": [0.25, float("inf")]},
    "page": ["mean 0.125 of 3 steps", "p5 -1.5e-07"],
}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return FixedStudy(tmp_path_factory.mktemp("fixed"))


@pytest.mark.parametrize("stage", STAGES)
def test_stage_computes_what_its_version_says(stage, study):
    wrong = results.verdict(stage, study.versions(stage), study.results(stage))
    assert wrong is None, wrong


@pytest.mark.parametrize(
    ("file", "column", "value"),
    [
        ("data", "position", [0.0, 1]),  # another type
        ("data", "position", [0]),
        ("data", "lower", [0.25 * (1 + 3e-4), float("inf")]),
        ("data", "lower", [float("nan"), float("inf")]),
        ("data", "added", [1]),
        ("page", 0, "mean 0.127 of 3 steps"),
        ("page", 0, "mean 0.125 of 4 steps"),
        ("page", 1, "p5 -1.5e-03"),
    ],
)
def test_what_counts_as_another_result(file, column, value):
    changed = json.loads(json.dumps(RESULTS))
    changed[file][column] = value
    assert len(results.differences("decoding", RESULTS, changed)) == 1


def test_rounding_is_no_other_result():
    rounded = {"data": RESULTS["data"] | {"lower": [0.25 * (1 + 5e-5), float("inf")]},
               "page": ["mean 0.126 of 3 steps", "p5 2.5e-07"]}  # fmt: skip
    assert results.differences("decoding", RESULTS, rounded) == []
    assert results.differences("prompts", RESULTS, rounded) != []  # which no rounding changes
