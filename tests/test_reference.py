"""The embedded study's tables agree with the committed reference, on any machine.

Prompts must be equal row for row. BLAS and SIMD change low bits of the logits, which can flip a
token where two lie close together; a trajectory then goes its own way, as a sampled one would with
another seed. The tolerances are the 99 % intervals of such a change, as half-widths of the
bootstrap over prompts: 0.03 for p0 and 0.04 nats for certificates.

``python -m tests.test_reference`` writes the reference anew.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from analysis.statistics.bootstrap import QUANTILES
from pipeline.files import json_digest
from pipeline.study import Study
from tests.conftest import pipeline

REFERENCE = Path(__file__).parent / "reference" / "mini.json"
RULES = [
    "{rule: greedy}",
    "{rule: additive, t: 0.1}",
    "{rule: multiplicative, alpha: 0.1}",
    "{rule: typical, eps0: 0.1, delta0: 0.09}",
    "{rule: tree, m: 4}",
]
OVERRIDES = ["study=mini", "criteria={paper: [" + ", ".join(RULES) + "]}"]
TOLERANCE = {"p0": 0.03, "certificates": 0.04}


def point_statistics(values):
    points = np.quantile(values, list(QUANTILES.values()), method="inverted_cdf")
    return {"mean": float(values.mean()), **dict(zip(QUANTILES, points.tolist(), strict=True))}


def measure(outputs):
    """Compute dumps and certificates of the full embedded study and summarise them."""
    pipeline(*OVERRIDES, f"outputs={outputs}", "stage=certificates")
    study = Study(*OVERRIDES, f"outputs={outputs}")
    prompts = study.frame("prompts", study.targets[0])
    found = {
        "prompts": json_digest(prompts[["prompt_id", "n_tokens"]].to_dict("list")),
        "targets": {},
    }
    for target in study.targets:
        p0 = study.distributions(target).probs[:, 0]
        certificates = {
            rule.label: point_statistics(
                study.frame("certificates", target, rule.label)["lower"].clip(upper=rule.ceiling)
            )
            for rule in study.rules
        }
        found["targets"][target] = {"p0": point_statistics(p0), "certificates": certificates}
    return found


@pytest.mark.thorough
def test_embedded_study_agrees_with_the_reference(tmp_path):
    reference, found = json.loads(REFERENCE.read_text()), measure(tmp_path)
    assert found["prompts"] == reference["prompts"]
    assert set(found["targets"]) == set(reference["targets"]) == {"mini_large", "mini_small"}
    for target, expected in reference["targets"].items():
        actual = found["targets"][target]
        for name, value in expected["p0"].items():
            assert actual["p0"][name] == pytest.approx(value, abs=TOLERANCE["p0"], rel=0), name
        assert set(actual["certificates"]) == set(expected["certificates"])
        for rule, statistics in expected["certificates"].items():
            for name, value in statistics.items():
                near = pytest.approx(value, abs=TOLERANCE["certificates"], rel=0)
                assert actual["certificates"][rule][name] == near, (target, rule, name)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        REFERENCE.write_text(json.dumps(measure(Path(folder)), indent=1) + "\n")
        sys.stdout.write(REFERENCE.read_text())
