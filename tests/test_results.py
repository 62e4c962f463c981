"""Every stage computes what it computed when its version was given: see tests.results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.graph import VERSIONS
from tests import results
from tests.results import __main__ as command
from tests.results.study import FixedStudy

RESULTS: dict[str, Any] = {
    "data": {"position": [0, 1], "accepted": [True, None], "lower": [0.25, float("inf")]},
    "page": ["mean 0.125 of 3 steps", "p5 -1.5e-07"],
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> FixedStudy:
    return FixedStudy(tmp_path_factory.mktemp("fixed"))


@pytest.mark.parametrize("stage", VERSIONS)
def test_stage_computes_what_its_version_says(stage: str, study: FixedStudy) -> None:
    wrong = results.verdict(stage, study.versions(stage), study.results(stage))
    assert wrong is None, wrong


@pytest.mark.parametrize(
    ("file", "column", "value"),
    [
        ("data", "position", [0, 2]),
        ("data", "position", [0.0, 1]),  # another type
        ("data", "position", [0]),
        ("data", "accepted", [True, False]),
        ("data", "lower", [0.25 * (1 + 3e-4), float("inf")]),
        ("data", "lower", [0.25, 1e300]),
        ("data", "lower", [float("nan"), float("inf")]),
        ("data", "added", [1]),
        ("page", 0, "mean 0.127 of 3 steps"),
        ("page", 0, "mean 0.125 of 4 steps"),
        ("page", 0, "means 0.125 of 3 steps"),
        ("page", 0, "mean 0.125 of 3 steps, 1"),
        ("page", 1, "p5 -1.5e-03"),
    ],
)
def test_what_counts_as_another_result(file: str, column: Any, value: Any) -> None:
    changed = json.loads(json.dumps(RESULTS))
    changed[file][column] = value
    assert len(results.differences("decoding", RESULTS, changed)) == 1
    changed = {name: RESULTS[name] for name in RESULTS if name != file}
    assert len(results.differences("decoding", RESULTS, changed)) == 1


def test_rounding_is_no_other_result() -> None:
    rounded = {"data": RESULTS["data"] | {"lower": [0.25 * (1 + 5e-5), float("inf")]},
               "page": ["mean 0.126 of 3 steps", "p5 2.5e-07"]}  # fmt: skip
    assert results.differences("decoding", RESULTS, rounded) == []
    assert results.differences("certificates", RESULTS, rounded) != []  # a stricter stage


def test_only_new_versions_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other results need a higher version, of the stage or of one above it."""
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    old, other = {"prompts": 1, "decoding": 2}, {"data": {"position": [0, 1]}}
    assert "first version" in str(command.refusal("decoding", old, RESULTS))  # the file is missing
    assert command.refusal("decoding", old | {"decoding": 1}, RESULTS) is None
    results.save("decoding", old, RESULTS)
    assert results.verdict("decoding", old, RESULTS) is None
    assert "nothing changed" in str(command.refusal("decoding", old, RESULTS))
    for said in (results.verdict("decoding", old, other), command.refusal("decoding", old, other)):
        assert "other results under the same version" in str(said)
        assert "pipeline/stages/decoding and run" in str(said)
        assert "python -m tests.results decoding" in str(said)
    assert "went back" in str(command.refusal("decoding", old | {"prompts": 0}, other))
    for name in old:
        new = old | {name: old[name] + 1}
        assert "has new versions" in str(results.verdict("decoding", new, RESULTS))
        assert command.refusal("decoding", new, other) is None
