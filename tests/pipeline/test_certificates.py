"""Stage certificates: all rules in one artifact, each read by itself; tests/results holds rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from analysis.certificates.certify import certify
from pipeline.store import Store
from pipeline.stored import ROWS, read_distributions
from tests.pipeline.studies import MadeUp

RULES = [{"rule": "greedy"}, {"rule": "additive", "t": [0.3]}, {"rule": "tree", "m": 2}]


def test_every_rule_is_read_over_the_same_steps_in_their_order(tmp_path: Path) -> None:
    """Of a dump that is certified in two chunks: a row group holds a rule and a chunk."""
    store, lengths = Store(tmp_path), [128] * 64 + [9]
    assert ROWS < sum(lengths) < 2 * ROWS
    made = MadeUp(store, RULES, lengths=lengths)
    dump, certificates = map(store.get, made.target("t", 0))
    with certificates.open("data") as file:
        assert file.num_row_groups == 2 * len(made.rules)
    wanted = certify(read_distributions(dump), made.rules)
    for at, rule in enumerate(made.rules):
        found = certificates.read(rule=rule.label)
        assert set(found["rule"].to_pylist()) == {rule.label}
        assert found["prompt_id"].to_pylist() == made.prompt_id.tolist()
        np.testing.assert_array_equal(found["position"], made.position)
        np.testing.assert_array_equal(found["lower"], wanted.lower[:, at])
        np.testing.assert_array_equal(found["upper"], wanted.upper[:, at])
        np.testing.assert_array_equal(found["active_size"], wanted.active_size[:, at])
        counts = found["accepted_count"].fill_null(0).to_numpy()
        np.testing.assert_array_equal(counts, wanted.accepted_count[:, at].clip(0))
    assert len(certificates.read()) == len(made.rules) * sum(lengths)
