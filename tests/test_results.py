"""Every stage computes what it computed when its version was given: see tests.results.

And the embedded study's tables agree with the committed reference, on any machine;
``python -m tests.test_results`` writes that anew.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from analysis.statistics.bootstrap import QUANTILES
from pipeline.core.files import json_digest
from pipeline.study import STAGES, Study
from tests import results
from tests.conftest import pipeline
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


def different(stage, new):
    return list(results.differences(RESULTS, new, stage, results.TOLERANCES[stage]))


@pytest.mark.parametrize(
    ("file", "column", "value"),
    [
        ("data", "position", [0.0, 1]),  # another type
        ("data", "lower", [0.25 * (1 + 3e-4), float("inf")]),
        ("data", "added", [1]),
        ("page", 0, "mean 0.127 of 3 steps"),
        ("page", 1, "p5 -1.5e-03"),
    ],
)
def test_what_counts_as_another_result(file, column, value):
    changed = json.loads(json.dumps(RESULTS))
    changed[file][column] = value
    assert len(different("decoding", changed)) == 1


def test_rounding_is_no_other_result():
    rounded = {"data": RESULTS["data"] | {"lower": [0.25 * (1 + 5e-5), float("inf")]},
               "page": ["mean 0.126 of 3 steps", "p5 2.5e-07"]}  # fmt: skip
    assert different("decoding", rounded) == []
    assert different("prompts", rounded) != []  # which no rounding changes


REFERENCE = Path(__file__).parent / "reference" / "mini.json"
RULES = (
    "{rule: greedy}, {rule: additive, t: 0.1}, {rule: multiplicative, alpha: 0.1}, "
    "{rule: typical, eps0: 0.1, delta0: 0.09}, {rule: tree, m: 4}"
)
OVERRIDES = ["study=mini", f"criteria={{paper: [{RULES}]}}"]


def point_statistics(values):
    points = np.quantile(values, list(QUANTILES.values()), method="inverted_cdf")
    return {"mean": float(values.mean()), **dict(zip(QUANTILES, points.tolist(), strict=True))}


def measure(outputs):
    pipeline(*OVERRIDES, f"outputs={outputs}", "stage=certificates")
    study = Study(*OVERRIDES, f"outputs={outputs}")
    prompts = study.frame("prompts", study.targets[0])
    digest = json_digest(prompts[["prompt_id", "n_tokens"]].to_dict("list"))
    found = {"prompts": digest, "targets": {}}
    for target in study.targets:
        certificates = {}
        for rule in study.rules:
            lower = study.frame("certificates", target, rule.label)["lower"]
            certificates[rule.label] = point_statistics(lower.clip(upper=rule.ceiling))
        p0 = point_statistics(study.distributions(target).probs[:, 0])
        found["targets"][target] = {"p0": p0, "certificates": certificates}
    return found


@pytest.mark.thorough
def test_embedded_study_agrees_with_the_reference(tmp_path):
    """Prompts are equal row for row.

    Low bits of the logits can flip a token, and a trajectory then goes its own way. The tolerances
    are 99 % intervals over prompts of such a change: 0.03 for p0 and 0.04 nats for certificates.
    """
    reference, found = json.loads(REFERENCE.read_text()), measure(tmp_path)
    assert found["prompts"] == reference["prompts"]
    assert set(found["targets"]) == set(reference["targets"]) == {"mini_large", "mini_small"}
    for target, expected in reference["targets"].items():
        actual = found["targets"][target]
        assert actual["p0"] == pytest.approx(expected["p0"], abs=0.03, rel=0)
        assert set(actual["certificates"]) == set(expected["certificates"])
        for rule, statistics in expected["certificates"].items():
            near = pytest.approx(statistics, abs=0.04, rel=0)
            assert actual["certificates"][rule] == near, (target, rule)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        REFERENCE.write_text(json.dumps(measure(Path(folder)), indent=1) + "\n")
        sys.stdout.write(REFERENCE.read_text())
