"""Stage run_lengths: its rows, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import PipelineError
from pipeline.execution.runner import ensure
from pipeline.store.artifacts import Store
from tests.pipeline.studies import EPS, MadeUp

RULES = [{"rule": "greedy"}, {"rule": "additive", "t": [0.3]}]


def test_rows_follow_the_certificates_of_each_rule(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = MadeUp(store, RULES)
    _, certificates = made.target("t", 0)
    (artifact,) = ensure([made.run_lengths("t", certificates)], store)
    table = artifact.read().to_pandas()
    assert list(table["rule"].unique()) == ["greedy", "additive t=0.3"]
    assert len(table) == 2 * len(EPS) * 4
    for rule, node in zip(made.rules, certificates, strict=True):
        found = store.find(node)
        assert found is not None
        lower = found.read(columns=["lower"])["lower"].to_numpy()
        rows = table[(table["rule"] == rule.label) & (table["estimator"] == "long_run")]
        for eps, row in zip(EPS, rows.itertuples(), strict=True):
            assert len(lower) / row.value == pytest.approx(np.sum(lower <= eps))
            assert (row.prompts, row.steps) == (len(made.lengths), sum(made.lengths))
    assert artifact.record["facts"] == {"prompts": 6, "steps": sum(made.lengths)}


def test_certificates_of_other_steps_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = MadeUp(store, RULES)
    _, certificates = made.target("t", 0)
    found = store.find(certificates[1])
    assert found is not None
    pending = store.pending(certificates[1])
    pending.write("data", found.read().slice(0, 200))
    store.publish(certificates[1], pending, {})
    with pytest.raises(PipelineError, match="certify different steps"):
        ensure([made.run_lengths("t", certificates)], store)
